"""The query of a rollout's validation: asked once after the watch, and its rows prove nothing good."""

from datetime import timedelta

import pytest

from model.errors import QueryError
from model.rollout_record import RolloutState
from model.stream_update import UpdateFault, UpdateState
from rollout.watch_query import WatchRows
from tests.rollout.rollout_yard import ANN, HALT, NEW, OLD, TEXT, Killed, Yard, yard

__all__ = ["yard"]


QUERY = "validate: {seconds: 60, min_messages: 10, query: SELECT 1, max_bytes_billed: 20000000}"
ASKS = TEXT.replace("validate: {seconds: 60, min_messages: 10}", QUERY)
ROWS = [
    (WatchRows(1, is_cut=False), "rollout_failed", "The validation query returned 1 row."),
    (WatchRows(1000, is_cut=True), "rollout_failed", "The validation query returned more than 1,000 rows."),
    (
        QueryError("Could not cast 'card 4111' to INT64"),
        "rollout_inconclusive",
        "The validation query failed: query_failed: The query failed while it ran.",
    ),
]


def test_a_query_that_gives_no_rows_is_asked_once_after_the_watch(yard: Yard) -> None:
    yard.answers = [WatchRows(0, is_cut=False)]
    yard.restart(ASKS)
    began = next(step.at for step in yard.rollout.steps if step.state is RolloutState.STARTING)
    assert yard.tick(59) is RolloutState.WATCHING
    assert yard.asked == []
    assert yard.tick(1) is RolloutState.STABLE
    assert yard.asked == [("SELECT 1", began, 20_000_000)]
    assert yard.steps()[-3:] == ["WATCHING", "VALIDATING", "STABLE"]
    assert [step.why for step in yard.rollout.steps[-2:]] == [
        "600 messages in 60 s, as before.",
        "The query gave no rows.",
    ]
    assert yard.rollout.compared["after"]["messages"] == 600.0


@pytest.mark.parametrize(("answer", "code", "why"), ROWS)
@pytest.mark.parametrize("halts", [False, True])
def test_a_query_that_gives_rows_or_no_answer_proves_nothing_good(yard, answer, code, why, halts):
    yard.answers = [answer]
    yard.restart(ASKS + HALT if halts else ASKS)
    yard.now += timedelta(seconds=60)
    if halts:
        assert yard.tick() is RolloutState.HALTED
        assert yard.side() == NEW
    else:
        assert yard.go_back() is RolloutState.ROLLED_BACK
    assert (yard.rollout.error.code, yard.rollout.error.message) == (code, why)


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (UpdateState.STABLE, RolloutState.ROLLED_BACK),
        (UpdateState.FAILED, RolloutState.FAILED),
        (UpdateState.REFUSED, RolloutState.FAILED),
    ],
)
def test_an_update_whose_query_gives_rows_goes_back_by_another_update(yard, end, state):
    yard.answers = [WatchRows(2, is_cut=False)]
    yard.apply(ASKS.replace("restart", "update"))
    yard.tick()
    first = yard.update
    figures = {"before": {"messages": 1.0}, "after": {"messages": 2.0}}
    yard.store.note_update(first, instance_id="in_9")
    yard.advance(UpdateState.HANDING_OVER, UpdateState.WATCHING, figures=figures, paused_seconds=1.5)
    yard.advance(UpdateState.STABLE)
    assert (yard.side(), yard.tick()) == (NEW, RolloutState.ROLLING_BACK)
    assert yard.asked[0][1] == (yard.store.get_update(first.id).handed_over_at or first.created_at)
    request = yard.update.request
    assert (yard.update.id != first.id, request.release, request.options) == (True, "1.2", {"batch_seconds": None})
    assert (request.validate_seconds, request.is_halting) == (0.0, False)
    yard.store.note_update(yard.update, instance_id="in_10")
    if end is UpdateState.STABLE:
        yard.advance(UpdateState.HANDING_OVER)
    yard.advance(end, error=None if end is UpdateState.STABLE else UpdateFault("some_code", "Some reason."))
    assert yard.tick() is state
    assert yard.steps()[1:] == ["UPDATING", "VALIDATING", "ROLLING_BACK", state]
    assert yard.rollout.error.message == "The validation query returned 2 rows."
    assert yard.rollout.compared == {**figures, "paused_seconds": 1.5}, "what it was judged by stays"
    if end is UpdateState.STABLE:
        assert yard.side() == OLD


def test_a_replica_that_dies_with_its_query_is_followed_by_one_that_asks_again(yard: Yard) -> None:
    yard.answers = [Killed(), WatchRows(0, is_cut=False)]
    yard.restart(ASKS)
    yard.now += timedelta(seconds=60)
    with pytest.raises(Killed):
        yard.engines[0].tick()
    assert yard.tick(119) is RolloutState.VALIDATING
    assert len(yard.asked) == 1, "it may be that the other one still waits for its answer"
    assert yard.tick(1) is RolloutState.STABLE
    assert len(yard.asked) == 2


def test_a_rollout_that_is_cancelled_while_its_query_runs_goes_back(yard: Yard) -> None:
    yard.answers = [Killed()]
    yard.restart(ASKS)
    yard.now += timedelta(seconds=60)
    with pytest.raises(Killed):
        yard.engines[0].tick()
    yard.rollouts.cancel(yard.rollout.id, principal=ANN)
    assert yard.go_back() is RolloutState.ROLLED_BACK
    assert yard.rollout.error.code == "rollout_unwanted"


def test_a_reversal_towards_a_stable_release_asks_no_query(yard: Yard) -> None:
    yard.answers = [WatchRows(0, is_cut=False)]
    done = yard.make_stable(ASKS)
    yard.rollouts.reverse(done.id, principal=ANN)
    assert yard.exchange() is RolloutState.STABLE
    assert len(yard.asked) == 1
