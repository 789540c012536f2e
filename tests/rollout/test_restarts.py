"""Updates by a restart as an agent carries them out, there and back, with real processes."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from model import failpoint
from model.errors import StreamStateError
from model.stream_options import StreamKind
from model.stream_record import StreamState, Wanted
from model.stream_update import UNWANTED, UpdateFault, UpdateRequest, UpdateState, UpdateStrategy, WhenInconclusive
from tests.rollout.update_yard import kill_at, look_until_killed, yard

__all__ = ["yard"]
FAULT = UpdateFault(UNWANTED, "bob does not want it.")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The old release's figures prove something after a moment."""
    monkeypatch.setattr("rollout.restart_steps.RATE_SECONDS", 0.1)


def restart(yard, **given):
    return yard.update(strategy=UpdateStrategy.RESTART, **given)


def pass_time(store, seconds):
    store._database.now = lambda _: datetime.now(UTC) + timedelta(seconds=seconds)  # type: ignore[method-assign]


def sides(yard):
    record = yard.record()
    return record.release, record.options


def test_a_restart_drains_the_old_release_starts_the_new_one_and_watches_it(yard):
    yard.look_until(lambda: yard.record().state is StreamState.RUNNING, "the old release runs")
    asked = restart(yard)
    shown = []

    def is_over():
        # Never two at once.
        assert len(yard.instances()) <= 1
        if (state := yard.record().state) not in shown[-1:]:
            shown.append(state)
        return yard.living().state.is_ended

    yard.look_until(is_over, "it ends")
    done = yard.living()
    assert (done.id, done.state, done.error) == (asked.id, UpdateState.STABLE, None)
    assert shown == [StreamState.RUNNING, StreamState.DRAINING, StreamState.STARTING, StreamState.RUNNING]
    assert sides(yard) == ("new", {"slots": 8})
    assert yard.record().wanted is Wanted.RUNNING
    assert yard.record().generation == 1
    assert (done.outgoing_id, done.instance_id) == (yard.first, yard.record().instance_id)
    assert done.figures["before"]["messages"] > 0
    assert done.figures["after"]["messages"] >= 5
    assert 0 <= done.paused_seconds < 20
    assert yard.store.list_snapshots() == [], "its state stays where it is"
    wanted = [each for each in yard.store.list_stream_events("backup") if each.what == "wanted DRAINED"]
    assert wanted == [], "nobody wanted the stream to end"
    assert yard.check_one_runs("new").instance_id == done.instance_id


def test_a_restart_may_take_every_option_away_and_needs_no_check(yard):
    options = {"slots": 2, "mapping": {"a": "b"}}
    yard.store.change_stream("backup", actor="ann", options=options)
    request = UpdateRequest("new", {"slots": None, "mapping": None}, {}, 0.2, 1, strategy=UpdateStrategy.RESTART)
    yard.checker.check = None  # type: ignore[assignment]
    yard.store.create_update("backup", request, actor="ann")
    yard.look_until_it_is(UpdateState.STABLE)
    assert sides(yard) == ("new", {})


def test_a_restart_to_the_work_of_another_stream_is_refused(yard):
    yard.store.launch_stream("other", StreamKind.BACKUP, actor="ann")
    restart(yard)
    refused = yard.look_until_it_is(UpdateState.REFUSED)
    assert refused.error.code == "stream_exists"
    assert yard.check_one_runs("old").instance_id == yard.first


def test_a_restart_waits_two_minutes_at_most_for_figures_that_prove_something(yard, monkeypatch):
    monkeypatch.setattr("rollout.restart_steps.RATE_SECONDS", 3600.0)
    restart(yard, when_inconclusive=WhenInconclusive.FAIL)
    yard.look_until_it_is(UpdateState.MEASURING)
    pass_time(yard.store, 119)
    for _ in range(3):
        yard.agent.look()
    assert yard.living().state is UpdateState.MEASURING
    pass_time(yard.store, 121)
    yard.look_until_it_is(UpdateState.STABLE)
    assert yard.living().figures["before"]["messages"] > 0


def test_a_release_that_was_stable_before_is_measured_by_nothing(yard, monkeypatch):
    monkeypatch.setattr("rollout.restart_steps.RATE_SECONDS", 3600.0)
    yard.lag = None
    restart(yard, is_trusted=True, validate_seconds=3600.0)
    done = yard.look_until_it_is(UpdateState.STABLE)
    assert (done.figures, done.error) == (None, None)


@pytest.mark.parametrize(
    ("mood", "code", "why"),
    [
        ("gone", "registry_invalid", "did not start: Its packages are gone."),
        ("never ready", "broken", "did not start: It does not start."),
        ("crash", "stream_died", "It crashed."),
        ("bad", "update_failed", "became dead letters"),
    ],
)
@pytest.mark.parametrize("halts", [False, True])
def test_a_new_release_that_fails_goes_back_or_stays_for_a_person(yard, mood, code, why, halts):
    yard.moods["new"] = mood
    restart(yard, validate_seconds=20, is_halting=halts)
    ended = yard.look_until_it_is(UpdateState.FAILED if halts else UpdateState.ROLLED_BACK)
    assert ended.error.code == code
    assert why in ended.error.message
    if halts:
        assert sides(yard) == ("new", {"slots": 8})
        assert yard.record().wanted is Wanted.RUNNING
    else:
        assert f"{yard.first} begins" in ended.error.logs["old"]
        assert sides(yard) == ("old", {})
        assert yard.check_one_runs("old").instance_id == ended.instance_id != yard.first


def test_a_new_release_that_takes_too_long_to_start_goes_back_by_the_store_s_clock(yard):
    yard.moods["new"] = "silent"
    restart(yard)
    yard.look_until_it_is(UpdateState.RESTARTING)
    yard.look_until(lambda: yard.living().instance_id is not None, "the new release is started")
    pass_time(yard.store, 301)
    back = yard.look_until_it_is(UpdateState.ROLLED_BACK)
    assert back.error.code == "start_failed"
    yard.check_one_runs("old")


@pytest.mark.parametrize("was_started", [False, True])
def test_an_agent_that_follows_after_long_has_the_whole_time_for_the_start(yard, monkeypatch, was_started):
    restart(yard)
    if was_started:
        yard.moods["new"] = "silent"
        yard.look_until_it_is(UpdateState.RESTARTING)
        yard.look_until(lambda: yard.living().instance_id is not None, "the new release is started")
        yard.moods["new"] = ""
        for process in yard.started:
            process.kill()
    else:
        kill_at(monkeypatch, "update.start.entered")
        look_until_killed(yard)
    pass_time(yard.store, 301)
    yard.agent = yard.make_agent()
    done = yard.look_until_it_is(UpdateState.STABLE, UpdateState.ROLLED_BACK)
    assert (done.state, done.error) == (UpdateState.STABLE, None)
    assert sides(yard) == ("new", {"slots": 8})
    yard.check_one_runs("new")


def test_an_agent_that_follows_after_long_starts_the_old_release_again(yard, monkeypatch):
    yard.moods["new"] = "bad"
    restart(yard, validate_seconds=20)
    kill_at(monkeypatch, "update.back_start.entered")
    look_until_killed(yard)
    pass_time(yard.store, 301)
    yard.agent = yard.make_agent()
    ended = yard.look_until_it_is(UpdateState.ROLLED_BACK, UpdateState.FAILED)
    assert ended.state is UpdateState.ROLLED_BACK
    yard.check_one_runs("old")


def test_an_old_release_that_does_not_start_again_is_said_and_stays_wanted(yard):
    yard.moods["new"], yard.moods["old"] = "bad", "gone"
    restart(yard, validate_seconds=20)
    yard.look_until_it_is(UpdateState.RESTARTING_BACK)
    yard.look_until(lambda: yard.record().state is StreamState.FAILED, "it does not start")
    assert yard.living().state is UpdateState.RESTARTING_BACK
    pass_time(yard.store, 301)
    failed = yard.look_until_it_is(UpdateState.FAILED)
    assert failed.error.code == "no_way_back"
    assert "became dead letters" in failed.error.message
    yard.moods["old"] = ""
    yard.check_one_runs("old")


def test_a_process_that_does_not_drain_is_killed(yard):
    yard.moods["new"] = "deaf"
    restart(yard, validate_seconds=0.1)
    yard.look_until_it_is(UpdateState.STABLE)
    request = UpdateRequest("newer", {}, {}, 0.1, 1, strategy=UpdateStrategy.RESTART)
    yard.store.create_update("backup", request, actor="ann")
    yard.look_until_it_is(UpdateState.STOPPING)
    for _ in range(5):
        yard.agent.look()
    assert yard.living().state is UpdateState.STOPPING
    pass_time(yard.store, 241)
    yard.look_until_it_is(UpdateState.STABLE)
    yard.check_one_runs("newer")


@pytest.mark.parametrize(
    "state", [UpdateState.MEASURING, UpdateState.STOPPING, UpdateState.RESTARTING, UpdateState.WATCHING]
)
def test_a_restart_that_is_taken_back_starts_the_old_release_again(yard, monkeypatch, state):
    if state is UpdateState.MEASURING:
        monkeypatch.setattr("rollout.restart_steps.RATE_SECONDS", 3600.0)
    yard.moods["new"] = "silent" if state is UpdateState.RESTARTING else ""
    restart(yard, validate_seconds=3600.0, is_halting=True)
    yard.look_until_it_is(state)
    yard.store.take_update_back(yard.living().id, FAULT, actor="bob", may_stay=True)
    back = yard.look_until_it_is(UpdateState.ROLLED_BACK)
    assert back.error.message == FAULT.message
    assert sides(yard) == ("old", {})
    process = yard.check_one_runs("old")
    assert (process.instance_id == yard.first) == (state is UpdateState.MEASURING)
    with pytest.raises(StreamStateError):
        yard.store.take_update_back(back.id, FAULT, actor="bob")


@pytest.mark.parametrize("wanted", [Wanted.DRAINED, Wanted.CANCELLED])
@pytest.mark.parametrize(
    "state", [UpdateState.STOPPING, UpdateState.RESTARTING, UpdateState.WATCHING, UpdateState.STOPPING_BACK]
)
def test_a_person_who_ends_the_stream_ends_its_restart(yard, state, wanted):
    yard.moods["new"] = "bad" if state is UpdateState.STOPPING_BACK else ""
    restart(yard, validate_seconds=3600.0)
    yard.look_until_it_is(state)
    yard.store.end_stream("backup", wanted, actor="bob")
    yard.look_until(lambda: yard.record().state.is_ended, "it ends")
    ended = yard.living()
    assert (ended.state, ended.error.code) == (UpdateState.FAILED, "update_abandoned")
    assert yard.instances() == []


PLACES = [
    f"update.{step}.{when}"
    for step in ("measure", "stop", "start", "watch")
    for when in ("entered", "done")
    if f"update.{step}.{when}" in failpoint.FAILPOINTS
]


@pytest.mark.parametrize("place", PLACES)
def test_an_agent_that_is_killed_at_any_step_is_followed_by_one_that_goes_forward(yard, monkeypatch, place):
    kill_at(monkeypatch, place)
    restart(yard)
    look_until_killed(yard)
    yard.agent = yard.make_agent()
    yard.look_until_it_is(UpdateState.STABLE)
    yard.check_one_runs("new")


@pytest.mark.parametrize(
    "place", [name for name in failpoint.FAILPOINTS if re.match(r"update\.back_st(op|art)\.", name)]
)
def test_an_agent_that_is_killed_on_the_way_back_is_followed_by_one_that_goes_back(yard, monkeypatch, place):
    yard.moods["new"] = "bad"
    kill_at(monkeypatch, place)
    restart(yard, validate_seconds=20)
    look_until_killed(yard)
    yard.agent = yard.make_agent()
    yard.look_until_it_is(UpdateState.ROLLED_BACK)
    yard.check_one_runs("old")
