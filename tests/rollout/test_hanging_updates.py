"""Updates whose next process becomes a standby, and hangs when it is told to run."""

from model.stream_record import StreamState, Wanted
from model.stream_update import UpdateState
from rollout.updates import UpdateService
from tests.rollout.update_yard import ANN, Yard, yard

__all__ = ["yard"]


def test_a_new_release_that_hangs_in_the_hand_over_is_killed_and_the_old_one_goes_on(yard, monkeypatch):
    monkeypatch.setattr("rollout.handover.HUNG_SECONDS", 2.0)
    yard.moods["new"] = "hangs"
    yard.update()
    back = yard.look_until_it_is(UpdateState.ROLLED_BACK)
    assert back.error.code == "stream_died"
    assert "During the hand-over" in back.error.message
    yard.check_one_runs("old")


def test_an_old_release_that_hangs_when_it_takes_the_stream_back_is_started_again(yard, monkeypatch):
    monkeypatch.setattr("rollout.handover.HUNG_SECONDS", 2.0)
    yard.moods |= {"new": "bad", "old": "hangs"}
    yard.update(validate_seconds=20)
    yard.look_until_it_is(UpdateState.HANDING_BACK)
    back = yard.look_until_it_is(UpdateState.ROLLED_BACK)
    assert "became dead letters" in back.error.message
    assert yard.check_one_runs("old").instance_id != back.instance_id


def test_a_cancel_ends_a_hand_over_in_which_the_new_release_hangs(yard: Yard) -> None:
    yard.moods["new"] = "hangs"
    yard.update()
    yard.look_until_it_is(UpdateState.HANDING_OVER)
    yard.store.end_stream("backup", Wanted.CANCELLED, actor="ann")
    yard.look_until(lambda: yard.record().state is StreamState.CANCELLED, "it is cancelled")
    assert yard.living().state is UpdateState.FAILED
    assert yard.instances() == []


def test_an_update_is_taken_back_in_a_hand_over_in_which_the_new_release_hangs(yard: Yard) -> None:
    yard.moods["new"] = "hangs"
    yard.update(is_halting=True)
    asked = yard.look_until_it_is(UpdateState.HANDING_OVER)
    for _ in range(2):
        UpdateService(yard.store).roll_back(asked.id, principal=ANN)
    back = yard.look_until_it_is(UpdateState.ROLLED_BACK)
    assert back.error.code == "update_unwanted"
    yard.check_one_runs("old")
    noted = [event.what for event in yard.store.list_stream_events("backup")]
    assert noted.count(f"update {asked.id} to be rolled back") == 1
