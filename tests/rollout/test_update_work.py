"""Updates as an agent carries them out; the streams are small scripts that hold the lock of the home."""

import re
import time
from datetime import UTC, datetime, timedelta

import pytest

from model import failpoint
from model.errors import RegistryError, StreamStateError
from model.stream_record import StreamState, Wanted
from model.stream_snapshot import SnapshotReason
from model.stream_update import UpdateFault, UpdateRequest, UpdateState, WhenInconclusive
from rollout.check import CheckReason, Remedy, UpdateCheck
from rollout.updates import UpdateService
from tests.rollout.update_yard import ANN, NO_WAY_BACK, Yard, kill_at, look_until_killed, yard
from tests.worlds.update_jobs import advance_update, note_update

__all__ = ["yard"]


def test_a_new_release_takes_the_stream_over_is_watched_and_stays(yard):
    asked = yard.update()
    shown = set()
    yard.look_until(lambda: shown.add(yard.record().state) or yard.living().state.is_ended, "it ends")
    done = yard.living()
    assert (done.id, done.state, done.error) == (asked.id, UpdateState.STABLE, None)
    assert StreamState.UPDATING in shown
    record = yard.record()
    assert (record.release, record.options) == ("new", {"slots": 8})
    assert record.instance_id == done.instance_id != yard.first == done.outgoing_id
    assert done.has_way_back is True
    assert 0 <= done.paused_seconds < 10
    assert done.figures["after"]["messages"] >= 20
    (snapshot,) = yard.store.list_snapshots()
    assert (snapshot.id, snapshot.reason) == (done.snapshot_id, SnapshotReason.UPDATE)
    yard.check_one_runs("new")


def test_a_stable_update_is_reverted_by_another_one_that_nothing_watches(yard):
    asked = yard.update()
    yard.look_until_it_is(UpdateState.STABLE)
    updates = UpdateService(yard.store)
    back = updates.revert(asked.id, principal=ANN)
    assert back.id != asked.id
    assert (back.request.release, back.request.options) == (asked.from_release, {"slots": None})
    assert back.request.is_trusted, "it was launched with them"
    yard.look_until_it_is(UpdateState.STABLE)
    record = yard.record()
    assert (record.release, record.options) == (asked.from_release, asked.from_options)
    with pytest.raises(
        StreamStateError, match="is STABLE and can't be reverted: backup does not run with its release and options"
    ):
        updates.revert(asked.id, principal=ANN)
    again = updates.revert(back.id, principal=ANN)
    assert again.request.options == {"slots": 8}
    yard.look_until_it_is(UpdateState.STABLE)
    yard.check_one_runs("new")


def test_an_update_that_the_check_refuses_touches_nothing_and_says_what_to_do(yard):
    reason = CheckReason("source_renamed", "sources.orders", "orders is gone.", Remedy.MAP)
    yard.checker.found = UpdateCheck((reason,), (), ())
    yard.update()
    refused = yard.look_until_it_is(UpdateState.REFUSED)
    assert refused.error.code == "update_refused"
    assert refused.error.message == f"orders is gone. {Remedy.MAP.advice}"
    assert [each["code"] for each in refused.checked["reasons"]] == ["source_renamed"]
    yard.checker.found = RegistryError("The registry can't be read.")
    yard.update()
    refused = yard.look_until_it_is(UpdateState.REFUSED)
    assert refused.error.message == "The registry can't be read."
    assert yard.check_one_runs("old").instance_id == yard.first


@pytest.mark.parametrize("mood", ["never ready", "gone"])
def test_a_new_release_that_does_not_start_leaves_the_old_one_running(yard, mood):
    yard.moods["new"] = mood
    yard.update()
    failed = yard.look_until_it_is(UpdateState.FAILED)
    assert failed.error.code == "standby_failed"
    why = "Its packages are gone." if mood == "gone" else "It does not start."
    assert why in failed.error.message
    assert failed.attempts == (0 if mood == "gone" else 3)
    assert yard.check_one_runs("old").instance_id == yard.first


@pytest.mark.parametrize(
    ("mood", "code", "why"),
    [
        ("not over", "stream_died", "ended during the hand-over"),
        ("crash", "stream_died", "It crashed."),
        ("bad", "update_failed", "became dead letters"),
    ],
)
def test_a_new_release_that_fails_goes_back_by_itself_with_both_logs(yard, mood, code, why):
    yard.moods["new"] = mood
    yard.update(validate_seconds=20)
    back = yard.look_until_it_is(UpdateState.ROLLED_BACK)
    assert back.error.code == code
    assert why in back.error.message
    assert [item.id for item in UpdateService(yard.store).list_inbox(principal=ANN)] == [back.id]
    assert back.outgoing_id is not None
    assert f"{yard.first} begins" in back.error.logs["old"]
    assert "in_" in back.error.logs["new"]
    process = yard.check_one_runs("old")
    assert process.instance_id == back.instance_id != yard.first
    assert yard.record().options == {}
    assert back.replay is None, "a backup stages nothing"


def test_too_few_messages_keep_the_new_release_and_the_record_says_why(yard):
    yard.moods["new"] = "idle"
    yard.update()
    kept = yard.look_until_it_is(UpdateState.STABLE)
    assert kept.error.code == "update_inconclusive"
    assert kept.error.message.startswith("0 messages arrived")
    assert kept.error.message.endswith("The new release stays.")
    yard.check_one_runs("new")


def test_too_few_messages_fail_an_update_that_wants_it_so(yard):
    yard.moods["new"] = "idle"
    yard.update(when_inconclusive=WhenInconclusive.FAIL)
    back = yard.look_until_it_is(UpdateState.ROLLED_BACK)
    assert (back.error.code, back.finished_at is None) == ("update_inconclusive", False)
    assert "0 messages arrived" in back.error.message
    yard.check_one_runs("old")


def test_an_update_without_a_way_back_only_goes_forward(yard):
    yard.checker.found = NO_WAY_BACK
    yard.moods["new"] = "crash"
    yard.update(validate_seconds=20)
    failed = yard.look_until_it_is(UpdateState.FAILED)
    assert failed.has_way_back is False
    assert any("it can't be rolled back" in (each.why or "") for each in yard.store.list_stream_events("backup"))
    assert failed.error.code == "no_way_back"
    assert "old can't read the journal" in failed.error.message
    yard.moods["new"] = ""
    yard.look_until(lambda: yard.record().state is StreamState.FAILED, "the agent sees that it ended")
    assert yard.record().release == "new"


def test_a_new_release_that_never_owned_the_stream_goes_back_also_without_a_way_back(yard):
    yard.checker.found = NO_WAY_BACK
    yard.moods["new"] = "not over"
    yard.update()
    yard.look_until_it_is(UpdateState.ROLLED_BACK)
    yard.check_one_runs("old")


def test_an_old_release_that_can_t_be_started_again_leaves_the_new_one(yard):
    yard.moods["new"] = "bad"
    yard.moods["old"] = "gone"
    yard.update(validate_seconds=20)
    failed = yard.look_until_it_is(UpdateState.FAILED)
    assert failed.error.code == "no_way_back"
    assert "became dead letters" in failed.error.message
    assert yard.check_one_runs("new").instance_id == failed.instance_id


def test_a_process_that_does_not_let_go_is_killed_and_the_new_one_goes_on(yard, monkeypatch):
    monkeypatch.setattr("rollout.update_steps._DRAIN_SECONDS", 0.1)
    monkeypatch.setattr("rollout.handover.KILL_GRACE_SECONDS", 0.1)
    yard.moods["new"] = "deaf"
    yard.update()
    yard.look_until_it_is(UpdateState.STABLE)
    request = UpdateRequest("newer", {}, {}, 0.2, 20)
    yard.store.create_update("backup", request, actor="ann")
    yard.look_until_it_is(UpdateState.STABLE)
    yard.check_one_runs("newer")


@pytest.mark.parametrize("state", [UpdateState.STARTING, UpdateState.WATCHING])
def test_a_drain_ends_the_update_with_its_stream(yard, state):
    yard.moods["new"] = "" if state is UpdateState.WATCHING else "never ready"
    yard.update(validate_seconds=20)
    yard.look_until_it_is(state)
    yard.store.end_stream("backup", Wanted.DRAINED, actor="ann")
    yard.look_until(lambda: yard.record().state is StreamState.DRAINED, "it is drained")
    ended = yard.living()
    assert (ended.state, ended.error.code) == (UpdateState.FAILED, "update_abandoned")
    assert yard.instances() == []


def test_an_update_that_is_taken_back_before_its_hand_over_ends_the_standby(yard):
    yard.update()
    yard.look_until(lambda: yard.living().instance_id is not None, "a standby is started")
    UpdateService(yard.store).revert(yard.living().id, principal=ANN)
    assert yard.check_one_runs("old").instance_id == yard.first


@pytest.mark.parametrize(
    "place",
    [
        name
        for name in failpoint.FAILPOINTS
        if name.startswith("update.") and not re.search(r"back|shadow|\.(measure|stop|start)\.", name)
    ],
)
def test_an_agent_that_is_killed_at_any_step_is_followed_by_one_that_goes_forward(yard, monkeypatch, place):
    kill_at(monkeypatch, place)
    yard.update()
    look_until_killed(yard)
    yard.agent = yard.make_agent()
    done = yard.look_until_it_is(UpdateState.STABLE, UpdateState.FAILED)
    # Where the old release's last figures were lost with the agent, a person decides.
    assert done.state is UpdateState.STABLE, done
    yard.check_one_runs("new")


@pytest.mark.parametrize("place", ["update.back_stand_by.entered", "update.standby_started", "update.ordered"])
def test_an_agent_that_is_killed_on_the_way_back_is_followed_by_one_that_goes_back(yard, monkeypatch, place):
    yard.moods["new"] = "bad"
    # The places of a hand-over are passed once on the way there.
    kill_at(monkeypatch, place, skip=0 if place == "update.back_stand_by.entered" else 1)
    yard.update(validate_seconds=20)
    look_until_killed(yard)
    yard.agent = yard.make_agent()
    yard.look_until_it_is(UpdateState.ROLLED_BACK)
    yard.check_one_runs("old")


@pytest.mark.parametrize("place", ["update.standby_started", "update.hand_over.entered", "update.ordered"])
def test_an_agent_of_another_home_waits_for_no_process_that_it_can_not_steer(yard, monkeypatch, tmp_path, place):
    kill_at(monkeypatch, place)
    yard.update()
    look_until_killed(yard)
    before = yard.instances()
    yard.home = tmp_path / "other"
    yard.agent = yard.make_agent()
    # After the hand-over has begun, this agent does not know whether the new release had the stream.
    done = yard.look_until_it_is(UpdateState.STABLE, UpdateState.ROLLED_BACK)
    assert (done.state is UpdateState.STABLE) == (place == "update.standby_started")
    yard.check_one_runs("new" if done.state is UpdateState.STABLE else "old")
    assert not any(each.is_running for each in before)


def leave_standby(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Kill the agent when it has started a standby, which is returned; another machine's agent has the stream."""
    kill_at(monkeypatch, "update.standby_started")
    yard.update()
    look_until_killed(yard)
    standby = yard.await_standby()
    yard.store.release_streams(yard.agent.owner)
    yard.store.take_streams("elsewhere", limit=1, lease_seconds=600)
    yard.agent = yard.make_agent()
    return standby


@pytest.mark.parametrize("is_over", [True, False])
def test_a_standby_whose_update_another_machine_s_agent_goes_on_with_is_ended_here(yard, monkeypatch, is_over):
    orphan = leave_standby(yard, monkeypatch)
    if is_over:
        fault = UpdateFault("standby_failed", "It did not start.")
        advance_update(yard.store, yard.living(), UpdateState.FAILED, error=fault)
    else:
        note_update(yard.store, yard.living(), instance_id="in_elsewhere")
    yard.look_until(
        lambda: orphan not in [each.instance_id for each in yard.instances()],
        "an agent that does not hold the stream ends the standby",
    )
    assert yard.record().agent == "elsewhere"


def test_a_standby_that_its_update_names_is_no_orphan(yard, monkeypatch):
    standby = leave_standby(yard, monkeypatch)
    yard.agent.look()
    assert {each.instance_id for each in yard.instances()} == {yard.first, standby}


def test_a_watch_lasts_by_the_store_s_clock_whatever_the_agent_s_shows(yard):
    yard.store._database.now = lambda _: datetime.now(UTC) - timedelta(hours=1)  # type: ignore[method-assign]
    yard.update(validate_seconds=60)
    yard.look_until_it_is(UpdateState.WATCHING)
    yard.look_until(lambda: yard.status().get("totals", {}).get("messages", 0) > 100, "messages come")
    yard.agent.look()
    assert yard.living().state is UpdateState.WATCHING


def test_a_check_that_raises_what_nobody_expects_is_not_tried_at_every_look(yard):
    checks = []

    def fail(*_, **__):
        checks.append(1)
        raise ZeroDivisionError

    yard.checker.check = fail  # type: ignore[method-assign]
    yard.update()
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        yard.agent.look()
    assert 1 <= len(checks) <= 2, "a look that began before the end may come to it once more"
