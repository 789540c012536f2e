"""Rollouts as their manifests ask for them: how they go on and end, are cancelled, reversed and applied again."""

from datetime import timedelta
from typing import Any, Literal

import pytest

from model.errors import (
    ReleaseNotFoundError,
    RequestInvalidError,
    RolloutInProgressError,
    RolloutRefusedError,
    RolloutStateError,
    StreamNotFoundError,
)
from model.principal import STREAMS_READ, Principal
from model.rollout_record import RolloutSide, RolloutState
from model.stream_options import StreamKind
from model.stream_record import Wanted
from model.stream_update import (
    ShadowRequest,
    UpdateFault,
    UpdateState,
    UpdateStrategy,
    WhenInconclusive,
)
from rollout.manifests.rollout import RolloutSideWanted, RolloutWanted
from rollout.updates import UpdateService
from tests.rollout.rollout_yard import ANN, HALT, NEW, OLD, SLOW, TEXT, UPDATE, Yard, yard
from tests.worlds.update_jobs import note_update

__all__ = ["yard"]
OTHER = UpdateFault("some_code", "Some reason.")


def test_a_restart_is_an_update_that_goes_through_its_steps(yard: Yard) -> None:
    made = yard.apply()
    assert (made.state, made.strategy, made.is_trusted) == (RolloutState.PENDING, "restart", False)
    request = made.update.request
    assert (request.strategy, request.release) == (UpdateStrategy.RESTART, "1.3")
    assert (request.options, request.mapping) == ({"batch_seconds": 3.0}, {})
    assert (made.from_side, made.to_side) == (OLD, NEW)
    assert (made.generation, made.update.created_by) == (1, "ann")
    yard.advance(UpdateState.MEASURING)
    assert yard.state() is RolloutState.PENDING
    yard.advance(UpdateState.STOPPING, UpdateState.RESTARTING, UpdateState.WATCHING)
    assert yard.side() == NEW
    figures = {"before": {"messages": 1.0}, "after": {"messages": 2.0}}
    done = yard.advance(UpdateState.STABLE, figures=figures, paused_seconds=1.5, why="All is well.")
    assert yard.steps() == ["PENDING", "DRAINING", "STARTING", "WATCHING", "STABLE"]
    assert (done.steps[-1].why, done.error) == ("All is well.", None)
    assert done.compared == {**figures, "paused_seconds": 1.5}


def test_any_other_rollout_is_updating_from_its_check_on(yard: Yard) -> None:
    made = yard.apply(UPDATE)
    assert made.update.request.strategy is UpdateStrategy.HAND_OVER
    yard.advance(UpdateState.SNAPSHOTTING, UpdateState.STARTING, UpdateState.HANDING_OVER, UpdateState.WATCHING)
    yard.advance(UpdateState.STABLE)
    assert yard.steps() == ["PENDING", "UPDATING", "STABLE"]


def test_what_the_manifest_says_of_its_validation_is_the_update_s(yard: Yard) -> None:
    text = TEXT.replace("min_messages: 10", "min_messages: 10, thresholds: {lag_seconds: 1000}")
    request = yard.apply(text + HALT).update.request
    assert (request.validate_seconds, request.min_messages, request.is_halting) == (60.0, 10, True)
    assert (request.bounds.lag_seconds, request.when_inconclusive) == (1000.0, WhenInconclusive.FAIL)
    yard.advance(UpdateState.FAILED)
    keep = yard.apply(text.replace("{seconds", "{when_inconclusive: keep, seconds")).update.request
    assert (keep.when_inconclusive, keep.is_halting) == (WhenInconclusive.KEEP, False)


FORTH = (UpdateState.HANDING_OVER, UpdateState.WATCHING)
RESTARTED = (UpdateState.STOPPING, UpdateState.RESTARTING)


@pytest.mark.parametrize(
    ("text", "through", "end", "state"),
    [
        (UPDATE, (), UpdateState.REFUSED, RolloutState.REFUSED),
        (UPDATE, FORTH, UpdateState.ROLLED_BACK, RolloutState.ROLLED_BACK),
        (UPDATE, FORTH, UpdateState.FAILED, RolloutState.FAILED),
        (UPDATE, (), UpdateState.ROLLED_BACK, RolloutState.CANCELLED),
        (UPDATE + HALT, FORTH, UpdateState.FAILED, RolloutState.HALTED),
        (UPDATE + HALT, (), UpdateState.FAILED, RolloutState.FAILED),
        (TEXT, (UpdateState.MEASURING,), UpdateState.ROLLED_BACK, RolloutState.CANCELLED),
        (TEXT, RESTARTED, UpdateState.ROLLED_BACK, RolloutState.ROLLED_BACK),
        (TEXT, RESTARTED, UpdateState.FAILED, RolloutState.FAILED),
        (TEXT + HALT, RESTARTED, UpdateState.FAILED, RolloutState.HALTED),
        (TEXT + HALT, (UpdateState.STOPPING,), UpdateState.FAILED, RolloutState.FAILED),
    ],
)
def test_how_an_update_ends_is_how_its_rollout_ends(yard, text, through, end, state):
    yard.apply(text)
    yard.advance(*through)
    ended = yard.advance(end, error=OTHER)
    assert ended.state is state
    assert (ended.error.code, ended.error.message) == ("some_code", "Some reason.")
    assert yard.steps()[-1] == state


@pytest.mark.parametrize("text", [TEXT + HALT, TEXT, UPDATE])
def test_a_person_who_ends_the_stream_ends_its_rollout_and_the_stream_stays_so(yard: Yard, text: str) -> None:
    yard.apply(text)
    yard.advance(*(RESTARTED if text != UPDATE else FORTH))
    yard.store.end_stream("backup", Wanted.DRAINED, actor="bob")
    assert yard.state() is RolloutState.FAILED
    assert yard.rollout.error.code == "update_abandoned"
    assert yard.store.get_stream("backup").wanted is Wanted.DRAINED


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
    made = yard.apply(
        TEXT.replace("stream: backup", "stream: orders")
        .replace("REFEED_BACKUP", "REFEED_PIPELINE")
        .replace("restart", "rolling")
        .replace("min_messages: 10", "may_differ: [price]")
    )
    assert made.update.request.shadow == ShadowRequest(may_differ=("price",))
    example = {"topic": "orders", "message_id": "1", "running": "3.1", "new": "3.2"}
    figures = {"shadow": {"rows_different": 1, "examples": [example]}}
    yard.advance(UpdateState.SHADOWING)
    yard.advance(UpdateState.FAILED, error=UpdateFault(code, "1 row differs."), figures=figures)
    assert yard.state() is end
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


@pytest.mark.parametrize(
    ("text", "through", "state"),
    [
        (TEXT, (), RolloutState.CANCELLED),
        (TEXT, (UpdateState.MEASURING,), RolloutState.CANCELLED),
        (TEXT + HALT, (UpdateState.STOPPING,), RolloutState.DRAINING),
        (TEXT + HALT, RESTARTED, RolloutState.ROLLING_BACK),
        (TEXT + HALT, (*RESTARTED, UpdateState.WATCHING), RolloutState.ROLLING_BACK),
        (UPDATE, (), RolloutState.CANCELLED),
        (UPDATE, (UpdateState.SNAPSHOTTING, UpdateState.STARTING), RolloutState.CANCELLED),
        (UPDATE, (UpdateState.HANDING_OVER,), RolloutState.UPDATING),
        (UPDATE, FORTH, RolloutState.UPDATING),
    ],
)
def test_a_rollout_is_cancelled_at_any_step(yard, text, through, state):
    made = yard.apply(text)
    note_update(yard.store, made.update, checked={"has_way_back": True})
    yard.advance(*through)
    cancelled = yard.rollouts.cancel(made.id, principal=ANN)
    assert (cancelled.state, cancelled.unwanted_by) == (state, "ann")
    assert (cancelled.error.code, cancelled.error.message) == ("update_unwanted", "ann cancelled the rollout.")
    assert yard.rollouts.list_inbox(principal=ANN) == []
    if cancelled.state.is_ended:
        assert yard.side() == OLD
        with pytest.raises(RolloutStateError, match="has ended"):
            yard.rollouts.cancel(made.id, principal=ANN)


def test_a_rollout_that_goes_back_already_is_not_cancelled(yard: Yard) -> None:
    made = yard.restart()
    yard.advance(UpdateState.STOPPING_BACK, error=SLOW)
    with pytest.raises(RolloutStateError, match="goes back already"):
        yard.rollouts.cancel(made.id, principal=ANN)
    yard.advance(UpdateState.RESTARTING_BACK, UpdateState.ROLLED_BACK)
    made = yard.apply(UPDATE + "description: again\n")
    yard.advance(*FORTH, UpdateState.ROLLING_BACK, error=SLOW)
    with pytest.raises(RolloutStateError, match="is ROLLING_BACK"):
        yard.rollouts.cancel(made.id, principal=ANN)


# -- reversals


def test_a_reversal_exchanges_from_and_to_and_validates_nothing_towards_a_stable_release(yard: Yard) -> None:
    done = yard.make_stable()
    yard.pass_time(seconds=1)
    made = yard.rollouts.reverse(done.id, principal=ANN)
    assert (made.from_side, made.to_side, made.reverses, made.is_trusted) == (NEW, OLD, done.id, True)
    assert (made.document["from"], made.document["to"]) == (done.document["to"], done.document["from"])
    assert made.update.request.options == {"batch_seconds": None}
    assert yard.store.get_manifest("faster").document == done.document, "what was applied stays"
    yard.advance(*RESTARTED, UpdateState.STABLE)
    assert yard.side() == OLD
    with pytest.raises(RolloutRefusedError, match="does not run with the release and options in 'from'"):
        yard.rollouts.reverse(done.id, principal=ANN)


def test_a_reversal_towards_a_release_that_was_never_stable_is_watched(yard: Yard) -> None:
    yard.restart(TEXT + HALT)
    halted = yard.advance(UpdateState.FAILED, error=SLOW)
    assert halted.state is RolloutState.HALTED
    yard.pass_time(seconds=1)
    back = yard.rollouts.reverse(halted.id, principal=ANN)
    assert back.is_trusted, "it was launched as 1.2"
    yard.advance(*RESTARTED, UpdateState.STABLE)
    yard.pass_time(seconds=1)
    again = yard.rollouts.reverse(back.id, principal=ANN)
    assert (again.to_side, again.is_trusted) == (NEW, False)


def test_a_release_that_was_kept_without_a_proof_is_not_trusted_later(yard: Yard) -> None:
    yard.restart(TEXT.replace("{seconds", "{when_inconclusive: keep, seconds"))
    kept = yard.advance(UpdateState.STABLE, error=UpdateFault("update_inconclusive", "It stays."))
    assert (kept.state, kept.error.code) == (RolloutState.STABLE, "update_inconclusive")
    yard.pass_time(seconds=1)
    back = yard.rollouts.reverse(kept.id, principal=ANN)
    assert back.is_trusted, "it was launched as 1.2"
    yard.advance(*RESTARTED, UpdateState.STABLE)
    yard.pass_time(seconds=1)
    assert not yard.rollouts.reverse(back.id, principal=ANN).is_trusted, "nothing ever proved 1.3"


def test_a_rollout_that_goes_on_or_went_back_is_not_reversed(yard: Yard) -> None:
    made = yard.apply()
    with pytest.raises(RolloutInProgressError, match="cancel"):
        yard.rollouts.reverse(made.id, principal=ANN)
    yard.advance(*RESTARTED)
    assert yard.go_back().state is RolloutState.ROLLED_BACK
    assert yard.side() == OLD
    with pytest.raises(RolloutRefusedError, match=r"release is 1\.2, but in 'from' it is 1\.3"):
        yard.rollouts.reverse(made.id, principal=ANN)


# -- manifests


def test_the_same_content_again_says_what_became_of_it(yard: Yard) -> None:
    def note(text: str = TEXT) -> str | None:
        return yard.manifests.plan("faster", text.encode(), principal=ANN).note

    assert note() is None
    made = yard.apply()
    assert note() == f"{made.id} is PENDING."
    yard.advance(*RESTARTED)
    yard.go_back(UpdateFault("stream_died", "The new release of backup did not start: It ended."))
    said = note("# again\n" + TEXT) or ""
    assert said.startswith(f"{made.id} was ROLLED_BACK at 2026-03-02T12:00:00Z: The new release of backup did not")
    assert said.endswith("It ended. Refeed tries the file again when its content changes.")
    assert yard.apply() == yard.store.get_rollout(made.id)
    changed = yard.apply(TEXT + "description: again\n")
    assert (changed.id != made.id, changed.state, changed.generation) == (True, RolloutState.PENDING, 2)


def test_a_content_that_comes_again_after_another_one_is_another_rollout(yard: Yard) -> None:
    other = TEXT + "description: other\n"
    made = []
    for text in (TEXT, other, TEXT):
        made.append(yard.apply(text))
        yard.advance(UpdateState.REFUSED)
    assert len({each.id for each in made}) == 3
    assert [each.generation for each in made] == [1, 2, 3]
    assert made[0].digest == made[2].digest


@pytest.mark.parametrize(
    ("old", "new", "error", "words"),
    [
        ("stream: backup", "stream: bakcup", StreamNotFoundError, "backup"),
        ('{release: "1.3"', '{release: "1.9"', ReleaseNotFoundError, "1.9"),
        ("slots: 2}}", "slots: 3}}", RolloutRefusedError, "options.slots is 2, but in 'from' it is 3"),
        ("slots: 2}}", "group: a}}", RequestInvalidError, "no option group"),
        (
            "REFEED_BACKUP_BATCH_SECONDS: 3",
            "REFEED_PIPELINE_BATCH_SECONDS: 3",
            RequestInvalidError,
            "not a setting of a",
        ),
        (
            "strategy: restart",
            "strategy: rolling",
            RolloutRefusedError,
            "only a pipeline can use the strategy rolling",
        ),
    ],
)
def test_a_rollout_that_can_t_begin_is_refused_and_nothing_is_kept(yard, old, new, error, words):
    text = TEXT.replace(old, new, 1)
    assert text != TEXT
    with pytest.raises(error, match=words):
        yard.apply(text)
    assert (yard.store.list_manifests(), yard.store.list_rollouts()) == ([], [])


def test_a_stream_that_can_t_stand_by_is_rolled_out_by_a_restart(yard: Yard) -> None:
    options = {"stream": "clicks", "region": "eu-north-1", "topic": "clicks"}
    yard.store.launch_stream("clicks", StreamKind.KINESIS, actor="ann", release="1.2", options=options)

    def check(strategy: Literal["restart", "update", "rolling"]) -> tuple[RolloutSide, RolloutSide]:
        to = RolloutSideWanted(release="1.3", options=options)
        return yard.rollouts.check(RolloutWanted(stream="clicks", to=to, strategy=strategy), "clicks")

    for strategy in ("update", "rolling"):
        with pytest.raises(
            RolloutRefusedError, match=r"kinesis stream can't be updated while it runs\. Use the strategy restart"
        ):
            check(strategy)
    assert check("restart")[1].release == "1.3"


def test_a_restart_takes_entries_of_the_mapping_away_and_an_update_only_adds_them(yard: Yard) -> None:
    options: dict[str, Any] = {"group": "default", "mapping": {"a": "b", "c": "d"}}
    yard.store.launch_stream("orders", StreamKind.PIPELINE, actor="ann", release="1.2", options=options)
    text = (
        "kind: Rollout\nname: faster\nstream: orders\n"
        'from: {release: "1.2", options: {group: default, mapping: {a: b, c: d}}}\n'
        'to: {release: "1.3", options: {group: default, mapping: {a: b}}}\nstrategy: '
    )
    with pytest.raises(RolloutRefusedError, match="can't remove any"):
        yard.apply(text + "update\n")
    made = yard.apply(text + "restart\n")
    assert made.to_side.options == {"group": "default", "mapping": {"a": "b"}}


def test_faults_of_options_have_their_side_in_their_pointers(yard: Yard) -> None:
    text = TEXT.replace("options: {slots: 2}", "options: {slots: 0}")
    with pytest.raises(RequestInvalidError) as caught:
        yard.apply(text)
    pointers = [error["pointer"] for error in caught.value.details["errors"]]
    assert pointers == ["/from/options/slots", "/to/options/slots"]


def test_what_did_not_come_through_waits_for_a_person_until_the_next_one(yard: Yard) -> None:
    yard.restart(TEXT + HALT)
    assert yard.rollouts.list_inbox(principal=ANN) == []
    yard.advance(UpdateState.FAILED, error=SLOW)
    (item,) = yard.rollouts.list_inbox(principal=ANN)
    assert (item.kind, item.resource, item.id, item.state) == (
        "failure",
        "rollout",
        yard.rollout.id,
        RolloutState.HALTED,
    )
    assert item.message.startswith("The rollout faster of backup is HALTED. update_failed: The oldest message")
    assert UpdateService(yard.store).list_inbox(principal=ANN) == [], "it is in the inbox once"
    before, yard.now = yard.now, yard.now + timedelta(days=8)
    assert yard.rollouts.list_inbox(principal=ANN) == []
    yard.now = before
    yard.rollouts.reverse(yard.rollout.id, principal=ANN)
    assert yard.rollouts.list_inbox(principal=ANN) == []
