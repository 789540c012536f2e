"""Rollouts by two replicas' engines: forward, back, halted, cancelled, and over deaths."""

from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from model import failpoint
from model.errors import RolloutStateError
from model.fault import FaultRecord
from model.principal import STREAMS_READ, Principal
from model.rollout_record import RolloutState
from model.stream_options import StreamKind
from model.stream_record import StreamState, Wanted
from model.stream_update import ShadowRequest, UpdateFault, UpdateState, WhenInconclusive
from tests.rollout.rollout_yard import AGENT, ANN, GOOD, HALT, NEW, OLD, TEXT, UPDATE, Killed, Yard, yard
from tests.worlds.update_jobs import advance_update

__all__ = ["yard"]


def test_a_restart_drains_starts_watches_and_is_stable(yard: Yard) -> None:
    yard.restart()
    assert yard.side() == NEW
    assert yard.tick(59) is RolloutState.WATCHING
    assert yard.tick(1) is RolloutState.STABLE
    done = yard.rollout
    assert yard.steps() == ["PENDING", "DRAINING", "STARTING", "WATCHING", "STABLE"]
    assert (done.compared["before"]["messages"], done.compared["after"]["messages"]) == (600.0, 600.0)
    assert (done.steps[-1].why, done.error) == (
        "600 messages in 60 s. All compared figures are within their limits.",
        None,
    )
    assert yard.tick(100) is RolloutState.STABLE


def test_a_restart_waits_until_the_old_release_has_figures_of_a_whole_minute(yard: Yard) -> None:
    yard.status = {**GOOD, "rates": {}, "rates_over_seconds": 0.0}
    yard.apply()
    assert yard.tick() is RolloutState.PENDING
    yard.status = {**GOOD, "rates_over_seconds": 59.0}
    assert yard.tick(59) is RolloutState.PENDING
    assert yard.store.get_stream("backup").wanted is Wanted.RUNNING
    yard.status = GOOD
    assert yard.tick(1) is RolloutState.DRAINING
    assert yard.rollout.compared["before"]["messages"] == 600.0


@pytest.mark.parametrize(
    ("status", "lag", "before"),
    [
        ({}, 1.0, None),
        (GOOD, None, {"messages": 600.0, "lag_seconds": None}),
        ({**GOOD, "rates_over_seconds": 30.0}, 1.0, {"messages": 300.0, "lag_seconds": 1.0}),
    ],
)
def test_a_restart_waits_two_minutes_at_most_for_figures(yard, status, lag, before):
    yard.status, yard.lag = status, lag
    yard.apply()
    assert yard.tick(119) is RolloutState.PENDING
    assert yard.tick(1) is RolloutState.DRAINING
    found = yard.rollout.compared["before"]
    assert found == before if before is None else found.items() >= before.items()


def test_a_restart_that_waits_for_figures_is_refused_as_soon_as_its_stream_is_drained(yard: Yard) -> None:
    yard.status = {}
    yard.apply()
    assert yard.tick(1) is RolloutState.PENDING
    yard.store.end_stream("backup", Wanted.DRAINED, actor="bob")
    assert yard.tick(1) is RolloutState.REFUSED


@pytest.mark.parametrize(
    ("status", "lag", "code"),
    [
        ({"totals": {"messages": 600, "dead_letters": 300, "faults": 0}}, 1.0, "rollout_failed"),
        ({"totals": {"messages": 600, "dead_letters": 0, "faults": 600}}, 1.0, "rollout_failed"),
        ({"totals": {"messages": 600, "dead_letters": 0, "faults": 0}}, 300.0, "rollout_failed"),
        ({"totals": {"messages": 9, "dead_letters": 0, "faults": 0}}, 1.0, "rollout_inconclusive"),
        ({"totals": {"messages": 600, "dead_letters": 0, "faults": 0}}, None, "rollout_inconclusive"),
    ],
)
@pytest.mark.parametrize("halts", [False, True])
def test_a_release_that_is_not_proven_good_goes_back_or_halts(yard, status, lag, code, halts):
    yard.restart(TEXT + HALT if halts else TEXT)
    yard.status, yard.lag = status, lag
    if halts:
        assert yard.tick(60) is RolloutState.HALTED
        assert (yard.side(), yard.store.get_stream("backup").wanted) == (NEW, Wanted.RUNNING)
    else:
        yard.now += timedelta(seconds=60)
        assert yard.go_back() is RolloutState.ROLLED_BACK
        assert yard.side() == OLD
    assert yard.rollout.error.code == code
    assert yard.rollout.compared["after"]["messages"] == status["totals"]["messages"]


def test_thresholds_of_the_manifest_decide(yard: Yard) -> None:
    yard.restart(TEXT.replace("min_messages: 10", "min_messages: 10, thresholds: {lag_seconds: 1000}"))
    yard.lag = 300.0
    assert yard.tick(60) is RolloutState.STABLE


@pytest.mark.parametrize(("halts", "state"), [(True, RolloutState.HALTED), (False, RolloutState.ROLLED_BACK)])
@pytest.mark.parametrize("is_late", [False, True])
def test_a_release_that_does_not_start_goes_back_or_halts(yard, halts, is_late, state):
    yard.apply(TEXT + HALT if halts else TEXT)
    yard.tick()
    yard.drain()
    assert yard.tick() is RolloutState.STARTING
    if is_late:
        yard.run(StreamState.STARTING)
        yard.now += timedelta(seconds=300)
    else:
        yard.run(StreamState.FAILED, error=FaultRecord("release_not_found", "No such release."))
    found = yard.tick()
    assert (found if halts else yard.go_back()) is state
    assert yard.rollout.error.code == ("start_failed" if is_late else "release_not_found")


def test_a_release_that_ends_while_it_is_watched_goes_back_even_when_it_runs_again(yard: Yard) -> None:
    yard.restart()
    error = FaultRecord("process_ended", "backup ended with code 1.")
    yard.store.report_stream("backup", AGENT, StreamState.FAILED, error=error)
    yard.run()
    assert yard.go_back() is RolloutState.ROLLED_BACK
    assert yard.rollout.error.code == "stream_died"
    assert "backup ended with code 1." in yard.rollout.error.message


def test_a_process_that_another_agent_started_is_watched_from_the_beginning(yard: Yard) -> None:
    yard.restart()
    yard.now += timedelta(seconds=50)
    yard.run()
    assert yard.tick() is RolloutState.WATCHING
    assert yard.tick(59) is RolloutState.WATCHING
    assert yard.tick(1) is RolloutState.STABLE
    assert yard.rollout.steps[-2].why == "watched again as in_3"


def test_nothing_is_judged_while_no_agent_holds_the_stream(yard: Yard) -> None:
    yard.restart()
    yard.store.release_streams(AGENT)
    assert yard.tick(600) is RolloutState.WATCHING
    yard.store.take_streams(AGENT, limit=1, lease_seconds=7200)
    assert yard.tick() is RolloutState.STABLE


def test_an_old_release_that_does_not_start_again_is_said_and_stays_wanted(yard: Yard) -> None:
    yard.restart()
    yard.lag = 1000.0
    assert yard.tick(60) is RolloutState.ROLLING_BACK
    yard.drain()
    assert yard.tick() is RolloutState.STARTING_BACK
    yard.run(StreamState.FAILED, error=FaultRecord("process_ended", "It ended."))
    assert yard.tick(299) is RolloutState.STARTING_BACK
    assert yard.tick(1) is RolloutState.FAILED
    assert yard.rollout.error.code == "rollout_failed", "the first reason stays"
    assert (yard.rollout.steps[-1].why or "").startswith("no_way_back: The old release of backup")
    assert yard.side() == OLD


@pytest.mark.parametrize("step", ["DRAINING", "STARTING", "WATCHING", "ROLLING_BACK"])
def test_a_person_who_cancels_the_stream_ends_its_rollout(yard: Yard, step: str) -> None:
    yard.reach(step)
    yard.store.end_stream("backup", Wanted.CANCELLED, actor="bob")
    assert yard.tick() is RolloutState.FAILED
    assert (yard.rollout.steps[-1].why or "").startswith(
        "rollout_abandoned: Somebody requested CANCELLED for backup"
    )
    assert yard.store.get_stream("backup").wanted is Wanted.CANCELLED


# -- updates


def test_an_update_carries_a_rollout_and_its_end_is_the_rollout_s(yard: Yard) -> None:
    yard.apply(UPDATE)
    assert yard.tick() is RolloutState.UPDATING
    request = yard.update.request
    assert (request.release, request.options, request.mapping) == ("1.3", {"batch_seconds": 3.0}, {})
    assert (request.validate_seconds, request.min_messages, request.is_halting) == (60.0, 10, False)
    assert yard.rollout.update_id == yard.update.id
    figures = {"before": {"messages": 1.0}, "after": {"messages": 2.0}}
    yard.advance(UpdateState.WATCHING, figures=figures, paused_seconds=1.5)
    assert yard.tick() is RolloutState.UPDATING
    yard.advance(UpdateState.STABLE)
    assert yard.tick() is RolloutState.STABLE
    assert yard.rollout.compared == {**figures, "paused_seconds": 1.5}


@pytest.mark.parametrize(
    ("text", "through", "end", "state"),
    [
        (UPDATE, (), UpdateState.REFUSED, RolloutState.REFUSED),
        (UPDATE, (UpdateState.HANDING_OVER, UpdateState.ROLLING_BACK), UpdateState.ROLLED_BACK, "ROLLED_BACK"),
        (UPDATE, (UpdateState.HANDING_OVER,), UpdateState.FAILED, RolloutState.FAILED),
        (UPDATE, (), UpdateState.ROLLED_BACK, RolloutState.CANCELLED),
        (UPDATE + HALT, (UpdateState.HANDING_OVER,), UpdateState.FAILED, RolloutState.HALTED),
        (UPDATE + HALT, (), UpdateState.FAILED, RolloutState.FAILED),
    ],
)
def test_how_an_update_ends_is_how_its_rollout_ends(yard, text, through, end, state):
    yard.begin_update(text)
    yard.advance(*through)
    yard.advance(end, error=UpdateFault("some_code", "Some reason."))
    assert yard.tick() == state
    assert (yard.rollout.error.code, yard.rollout.error.message) == ("some_code", "Some reason.")


@pytest.mark.parametrize(
    ("text", "decides"),
    [
        (UPDATE, WhenInconclusive.FAIL),
        (UPDATE.replace("{seconds", "{when_inconclusive: keep, seconds"), WhenInconclusive.KEEP),
    ],
)
def test_an_update_that_proves_nothing_is_decided_by_its_manifest(yard, text, decides):
    yard.begin_update(text)
    assert yard.update.request.when_inconclusive is decides
    fault = UpdateFault("update_inconclusive", "3 messages came.")
    yard.advance(UpdateState.HANDING_OVER, UpdateState.STABLE, error=fault)
    assert yard.tick() is RolloutState.STABLE
    assert yard.rollout.error.code == "update_inconclusive"


def test_a_restart_that_proves_nothing_may_be_kept(yard: Yard) -> None:
    yard.restart(TEXT.replace("{seconds", "{when_inconclusive: keep, seconds"))
    yard.lag = None
    assert yard.tick(60) is RolloutState.STABLE
    assert yard.rollout.error.code == "rollout_inconclusive"
    assert yard.rollout.error.message.endswith("The new release stays.")
    again = yard.rollouts.reverse(yard.rollout.id, principal=ANN)
    assert again.is_trusted, "it was launched as 1.2"
    assert yard.exchange() is RolloutState.STABLE
    assert not yard.rollouts.reverse(yard.rollout.id, principal=ANN).is_trusted, "nothing ever proved 1.3"


@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("shadow_differs", RolloutState.HALTED),
        ("shadow_inconclusive", RolloutState.HALTED),
        ("shadow_failed", RolloutState.FAILED),
    ],
)
def test_a_rolling_rollout_is_an_update_with_a_shadow_and_halts_where_rows_differ(yard, code, end):
    options = {"group": "default", "slots": 2}
    yard.store.launch_stream("orders", StreamKind.PIPELINE, actor="ann", release="1.2", options=options)
    yard.apply(
        TEXT.replace("stream: backup", "stream: orders")
        .replace("REFEED_BACKUP", "REFEED_PIPELINE")
        .replace("restart", "rolling")
        .replace("min_messages: 10", "may_differ: [price]")
    )
    assert yard.tick() is RolloutState.UPDATING
    update = yard.store.list_updates("orders")[0]
    assert update.request.shadow == ShadowRequest(may_differ=("price",))
    example = {"topic": "orders", "message_id": "1", "running": "3.1", "new": "3.2"}
    figures = {"shadow": {"rows_different": 1, "examples": [example]}}
    fault = UpdateFault(code, "1 row differs.")
    advance_update(yard.store, update, UpdateState.SHADOWING)
    advance_update(yard.store, update, UpdateState.FAILED, error=fault, figures=figures)
    assert yard.tick() is end
    assert yard.rollout.compared == {**figures, "paused_seconds": None}
    record = yard.store.get_stream("orders")
    assert (record.release, record.options) == ("1.2", options)
    # Values are payloads, which not everybody may read.
    reader = Principal("bob", frozenset({STREAMS_READ}))
    (listed, *_) = yard.rollouts.list_rollouts(principal=reader)
    assert listed == yard.rollouts.get(yard.rollout.id, principal=reader)
    assert listed.compared["shadow"]["examples"] == [{**example, "running": None, "new": None}]
    assert yard.rollouts.get(yard.rollout.id, principal=ANN) == yard.rollout


# -- cancelling


def test_a_rollout_that_has_not_begun_ends_when_it_is_cancelled(yard: Yard) -> None:
    made = yard.apply()
    assert yard.rollouts.cancel(made.id, principal=ANN).state is RolloutState.CANCELLED
    assert yard.tick() is RolloutState.CANCELLED
    assert yard.side() == OLD
    with pytest.raises(RolloutStateError, match="has ended"):
        yard.rollouts.cancel(made.id, principal=ANN)


@pytest.mark.parametrize("step", ["DRAINING", "STARTING", "WATCHING"])
def test_a_restart_that_is_cancelled_starts_the_old_release_again(yard: Yard, step: str) -> None:
    yard.reach(step, TEXT + HALT)
    assert yard.rollouts.cancel(yard.rollout.id, principal=ANN).unwanted_by == "ann"
    if step == "DRAINING":
        yard.drain()
        assert yard.tick() is RolloutState.STARTING_BACK
        yard.run()
        assert yard.tick() is RolloutState.ROLLED_BACK
    else:
        assert yard.tick() is RolloutState.ROLLING_BACK
        with pytest.raises(RolloutStateError, match="goes back already"):
            yard.rollouts.cancel(yard.rollout.id, principal=ANN)
        assert yard.go_back() is RolloutState.ROLLED_BACK
    assert yard.side() == OLD
    assert yard.rollout.error.code == "rollout_unwanted"


@pytest.mark.parametrize(
    ("through", "end"),
    [
        ((), UpdateState.ROLLED_BACK),
        ((UpdateState.SNAPSHOTTING, UpdateState.STARTING), UpdateState.ROLLED_BACK),
        ((UpdateState.HANDING_OVER,), UpdateState.HANDING_OVER),
        ((UpdateState.HANDING_OVER, UpdateState.WATCHING), UpdateState.ROLLING_BACK),
    ],
)
def test_an_update_that_is_cancelled_is_taken_back_once_it_can_be(yard, through, end):
    yard.begin_update(checked={"has_way_back": True})
    yard.advance(*through)
    yard.rollouts.cancel(yard.rollout.id, principal=ANN)
    yard.tick()
    assert yard.update.state is end


# -- deaths


PLACES = ("rollout.begun", "rollout.launched", "rollout.watching", "rollout.rolling_back")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_replica_that_dies_in_a_step_is_followed_by_one_that_goes_on(yard, monkeypatch, place, when):
    """A step and what it does to the stream are one: the replica dies right before it is kept, or right after."""
    first, second = yard.engines
    died: list[str] = []

    def die_after(name: str) -> None:
        if name == place and not died:
            died.append(name)
            raise Killed

    if when == "after":
        monkeypatch.setattr(failpoint, "hit", die_after)
    else:
        number = PLACES.index(place)
        method = ("drain_for_rollout", "launch_for_rollout", "advance_rollout", "drain_for_rollout")[number]
        kept = getattr(yard.store, method)
        skipped = iter([False] * (place == "rollout.rolling_back"))

        def die_before(*given: Any, **named: Any) -> Any:
            if not died and next(skipped, True):
                died.append(place)
                raise Killed
            return kept(*given, **named)

        monkeypatch.setattr(yard.store, method, die_before)

    def look() -> RolloutState:
        with suppress(Killed):
            (second if died else first).tick()
        second.tick()
        return yard.rollout.state

    yard.apply()
    assert look() is RolloutState.DRAINING
    yard.drain()
    assert look() is RolloutState.STARTING
    yard.run()
    assert look() is RolloutState.WATCHING
    yard.lag = 1000.0
    yard.now += timedelta(seconds=60)
    assert look() is RolloutState.ROLLING_BACK
    yard.drain()
    look()
    yard.run()
    assert look() is RolloutState.ROLLED_BACK
    assert died == [place]
    assert yard.steps() == [
        *("PENDING", "DRAINING", "STARTING", "WATCHING"),
        *("ROLLING_BACK", "STARTING_BACK", "ROLLED_BACK"),
    ]
    assert yard.store.get_stream("backup").generation == 3, "each release was launched once"
    assert yard.side() == OLD


@pytest.mark.parametrize("step", ["DRAINING", "ROLLING_BACK"])
def test_a_person_who_drains_the_stream_that_its_rollout_drains_has_it_stay_drained(yard: Yard, step: str) -> None:
    yard.reach(step)
    yard.store.end_stream("backup", Wanted.DRAINED, actor="bob")
    yard.drain()
    assert yard.tick() is RolloutState.FAILED
    assert (yard.rollout.steps[-1].why or "").startswith("rollout_abandoned: bob wanted backup DRAINED")
    assert yard.store.get_stream("backup").state is StreamState.DRAINED
