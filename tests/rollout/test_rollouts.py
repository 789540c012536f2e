"""Reversals of rollouts, and what their manifests may say."""

from datetime import timedelta
from typing import Literal

import pytest

from model.errors import (
    ReleaseNotFoundError,
    RequestInvalidError,
    RolloutInProgressError,
    RolloutRefusedError,
    StreamNotFoundError,
)
from model.fault import FaultRecord
from model.rollout_record import RolloutSide, RolloutState
from model.stream_options import StreamKind
from model.stream_record import StreamState
from model.stream_update import UpdateFault, UpdateState
from rollout.manifests.rollout import RolloutSideWanted, RolloutWanted
from rollout.rollouts import update_request
from tests.rollout.rollout_yard import ANN, HALT, NEW, OLD, TEXT, Yard, yard
from tests.worlds.update_jobs import note_update

__all__ = ["yard"]


def test_a_reversal_exchanges_from_and_to_and_validates_nothing_towards_a_stable_release(yard: Yard) -> None:
    done = yard.make_stable()
    made = yard.rollouts.reverse(done.id, principal=ANN)
    assert (made.from_side, made.to_side, made.reverses, made.is_trusted) == (NEW, OLD, done.id, True)
    assert (made.document["from"], made.document["to"]) == (done.document["to"], done.document["from"])
    assert yard.store.get_manifest("faster").document == done.document, "what was applied stays"
    yard.status = {}
    assert yard.tick() is RolloutState.DRAINING, "it waits for no figures"
    yard.drain()
    yard.tick()
    yard.lag = None
    yard.run()
    assert yard.tick() is RolloutState.STABLE
    assert yard.steps() == ["PENDING", "DRAINING", "STARTING", "STABLE"]
    assert yard.side() == OLD
    with pytest.raises(RolloutRefusedError, match="does not run with the release and options in 'from'"):
        yard.rollouts.reverse(done.id, principal=ANN)


def test_a_reversal_towards_a_release_that_was_never_stable_is_watched(yard: Yard) -> None:
    yard.restart(TEXT + HALT)
    yard.lag = 1000.0
    assert yard.tick(60) is RolloutState.HALTED
    yard.lag = 1.0
    assert yard.rollouts.reverse(yard.rollout.id, principal=ANN).is_trusted, "it was launched as 1.2"
    assert yard.exchange() is RolloutState.STABLE
    again = yard.rollouts.reverse(yard.rollout.id, principal=ANN)
    assert (again.to_side, again.is_trusted) == (NEW, False)
    assert yard.exchange() is RolloutState.WATCHING


def test_a_reversal_by_an_update_watches_for_no_time_and_has_nothing_to_prove(yard: Yard) -> None:
    yard.begin_update()
    yard.advance(UpdateState.HANDING_OVER, UpdateState.STABLE)
    assert yard.tick() is RolloutState.STABLE
    made = yard.rollouts.reverse(yard.rollout.id, principal=ANN)
    request = update_request(made)
    assert (request.release, request.options) == ("1.2", {"batch_seconds": None})
    assert (request.validate_seconds, request.min_messages) == (0.0, 0)
    yard.tick()
    note_update(yard.store, yard.update, instance_id="in_10")
    yard.advance(UpdateState.HANDING_OVER, UpdateState.WATCHING)
    yard.advance(UpdateState.STABLE, error=UpdateFault("update_inconclusive", "Unknown."))
    assert yard.tick() is RolloutState.STABLE
    assert yard.rollout.error is None
    assert yard.side() == OLD


def test_a_rollout_that_goes_on_or_went_back_is_not_reversed(yard: Yard) -> None:
    made = yard.apply()
    with pytest.raises(RolloutInProgressError, match="cancel"):
        yard.rollouts.reverse(made.id, principal=ANN)
    yard.tick()
    yard.rollouts.cancel(made.id, principal=ANN)
    yard.drain()
    yard.tick()
    yard.run()
    assert yard.tick() is RolloutState.ROLLED_BACK
    with pytest.raises(RolloutRefusedError, match=r"release is 1\.2, but in 'from' it is 1\.3"):
        yard.rollouts.reverse(made.id, principal=ANN)


# -- manifests


def test_the_same_content_again_says_what_became_of_it(yard: Yard) -> None:
    def note(text: str = TEXT) -> str | None:
        return yard.manifests.plan("faster", text.encode(), principal=ANN).note

    assert note() is None
    made = yard.apply()
    assert note() == f"{made.id} is PENDING."
    yard.tick()
    yard.drain()
    yard.tick()
    yard.run(StreamState.FAILED, error=FaultRecord("stream_died", "It ended."))
    assert yard.go_back() is RolloutState.ROLLED_BACK
    said = note("# again\n" + TEXT) or ""
    assert said.startswith(f"{made.id} was ROLLED_BACK at 2026-03-02T12:00:00Z: The new release of backup did not")
    assert said.endswith("It ended. Refeed tries the file again when its content changes.")
    assert yard.apply() == yard.store.get_rollout(made.id)
    assert yard.tick() is RolloutState.ROLLED_BACK
    changed = yard.apply(TEXT + "description: again\n")
    assert (changed.id != made.id, changed.state) == (True, RolloutState.PENDING)


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


def test_faults_of_options_have_their_side_in_their_pointers(yard: Yard) -> None:
    text = TEXT.replace("options: {slots: 2}", "options: {slots: 0}")
    with pytest.raises(RequestInvalidError) as caught:
        yard.apply(text)
    pointers = [error["pointer"] for error in caught.value.details["errors"]]
    assert pointers == ["/from/options/slots", "/to/options/slots"]


def test_what_did_not_come_through_waits_for_a_person_until_the_next_one(yard: Yard) -> None:
    yard.restart(TEXT + HALT)
    assert yard.rollouts.list_inbox(principal=ANN) == []
    yard.lag = 1000.0
    assert yard.tick(60) is RolloutState.HALTED
    (item,) = yard.rollouts.list_inbox(principal=ANN)
    assert (item.kind, item.resource, item.id, item.state) == (
        "failure",
        "rollout",
        yard.rollout.id,
        RolloutState.HALTED,
    )
    assert item.message.startswith("The rollout faster of backup is HALTED. rollout_failed: The oldest message")
    before, yard.now = yard.now, yard.now + timedelta(days=8)
    assert yard.rollouts.list_inbox(principal=ANN) == []
    yard.now = before
    yard.rollouts.reverse(yard.rollout.id, principal=ANN)
    assert yard.rollouts.list_inbox(principal=ANN) == []
