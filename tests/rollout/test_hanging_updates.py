"""Updates of which something hangs or breaks: each step ends within its bound, and one process runs then."""

import threading

import pytest

from model.stream_record import StreamState, Wanted
from model.stream_update import UpdateState
from rollout.handover import HandOver
from rollout.updates import UpdateService
from tests.rollout.update_yard import ANN, WAY_BACK, yard

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


def test_a_cancel_ends_a_hand_over_in_which_the_new_release_hangs(yard):
    yard.moods["new"] = "hangs"
    yard.update()
    yard.look_until_it_is(UpdateState.HANDING_OVER)
    yard.store.end_stream("backup", Wanted.CANCELLED, actor="ann")
    yard.look_until(lambda: yard.record().state is StreamState.CANCELLED, "it is cancelled")
    assert yard.living().state is UpdateState.FAILED
    assert yard.instances() == []


def test_an_update_is_taken_back_in_a_hand_over_in_which_the_new_release_hangs(yard):
    yard.moods["new"] = "hangs"
    yard.update(is_halting=True)
    asked = yard.look_until_it_is(UpdateState.HANDING_OVER)
    for _ in range(2):
        UpdateService(yard.store).revert(asked.id, principal=ANN)
    back = yard.look_until_it_is(UpdateState.ROLLED_BACK)
    assert back.error.code == "update_unwanted"
    yard.check_one_runs("old")
    noted = [event.what for event in yard.store.list_stream_events("backup")]
    assert noted.count(f"update {asked.id} to be rolled back") == 1


@pytest.fixture
def hasty(yard, monkeypatch):
    """Give each step of an update two seconds."""
    for name in ("_CHECK_SECONDS", "_STANDBY_SECONDS", "_HAND_OVER_SECONDS"):
        monkeypatch.setattr(f"rollout.update_steps.{name}", 2.0)
    yard.store.release_streams(yard.agent.owner)
    yard.agent = yard.make_agent()
    return yard


def test_a_check_that_hangs_is_made_three_times_and_then_refuses(hasty):
    wakes_up, checks = threading.Event(), []

    def hang(*_, **__):
        checks.append(1)
        wakes_up.wait(60)
        return WAY_BACK

    hasty.checker.check = hang  # type: ignore[method-assign]
    hasty.update()
    refused = hasty.look_until_it_is(UpdateState.REFUSED)
    wakes_up.set()
    assert (len(checks), refused.error.code) == (3, "step_timeout")
    assert hasty.check_one_runs("old").instance_id == hasty.first
    assert hasty.living() == refused, "what the threads found later is refused"


def test_a_standby_that_is_never_ready_is_followed_by_another_one_three_at_most(hasty):
    hasty.moods["new"] = "never stands by"
    hasty.update()
    failed = hasty.look_until_it_is(UpdateState.FAILED)
    assert (failed.error.code, failed.attempts) == ("standby_failed", 3)
    assert "did not end within 2 s" in failed.error.message
    assert hasty.check_one_runs("old").instance_id == hasty.first


def test_a_hand_over_that_nothing_else_ends_is_over_within_its_bound(hasty):
    hasty.moods["new"] = "hangs"
    hasty.update()
    back = hasty.look_until_it_is(UpdateState.ROLLED_BACK)
    assert (back.error.code, back.handed_over_at is None) == ("stream_died", False)
    hasty.check_one_runs("old")


@pytest.mark.parametrize("is_ordered", [True, False])
def test_a_hand_over_that_breaks_leaves_one_process_of_what_the_record_names(yard, monkeypatch, is_ordered):
    look = HandOver.look

    def break_down(hand_over):
        if is_ordered:
            look(hand_over)
        raise ZeroDivisionError

    monkeypatch.setattr(HandOver, "look", break_down)
    yard.update()
    failed = yard.look_until_it_is(UpdateState.FAILED)
    assert "The step hand_over failed (ZeroDivisionError)" in failed.error.message
    assert yard.check_one_runs("new").instance_id not in {failed.instance_id, failed.outgoing_id}
