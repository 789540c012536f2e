"""Rollouts as their manifests ask for them: which updates they are, taken back, reversed and applied again."""

import json
from datetime import timedelta
from unittest.mock import patch

import pytest

from jobs.store import JobStore
from model.errors import (
    ForbiddenError,
    JobChangedError,
    ReleaseNotFoundError,
    RequestInvalidError,
    RolloutRefusedError,
    StreamNotFoundError,
    StreamStateError,
)
from model.principal import ROLLOUTS_APPLY, SCHEDULES_APPLY, STREAMS_OPERATE, STREAMS_READ, Principal
from model.rollout_record import RolloutSide
from model.stream_options import StreamKind
from model.stream_update import (
    ShadowRequest,
    StreamUpdate,
    UpdateFault,
    UpdateManifest,
    UpdateRequest,
    UpdateState,
    UpdateStrategy,
    WhenInconclusive,
)
from rollout.manifests.rollout import RolloutSideWanted, RolloutWanted
from rollout.shadow_work import show_update
from tests.rollout.rollout_yard import ANN, HALT, NEW, OLD, SLOW, TEXT, UPDATE, yard
from tests.worlds.update_jobs import advance_update, note_update

__all__ = ["yard"]
FORTH = (UpdateState.HANDING_OVER, UpdateState.WATCHING)
RESTARTED = (UpdateState.STOPPING, UpdateState.RESTARTING)


def sides(update: StreamUpdate) -> tuple[RolloutSide, RolloutSide]:
    before = RolloutSide(update.from_release, update.from_options)
    return before, RolloutSide(update.request.release, update.to_options)


def test_a_rollout_is_an_update_from_what_runs_with_its_manifest(yard):
    made = yard.apply()
    request = made.request
    assert (made.state, request.strategy, request.is_trusted) == (UpdateState.CHECKING, "restart", False)
    assert (request.options, request.mapping, sides(made)) == ({"batch_seconds": 3.0}, {}, (OLD, NEW))
    digest = yard.store.get_manifest("faster").digest
    assert (made.manifest, made.created_by) == (UpdateManifest("faster", digest, 1), "ann")
    yard.advance(UpdateState.REFUSED)
    assert yard.apply(UPDATE).request.strategy is UpdateStrategy.HAND_OVER
    yard.advance(UpdateState.REFUSED)
    yard.restart(TEXT + "description: again\n")
    assert yard.side() == NEW


def test_what_the_manifest_says_of_its_validation_is_the_update_s(yard):
    text = TEXT.replace("min_messages: 10", "min_messages: 10, thresholds: {lag_seconds: 1000}")
    request = yard.apply(text + HALT).request
    assert (request.validate_seconds, request.min_messages, request.is_halting) == (60.0, 10, True)
    assert (request.bounds.lag_seconds, request.when_inconclusive) == (1000.0, WhenInconclusive.FAIL)
    yard.advance(UpdateState.FAILED)
    keep = yard.apply(text.replace("{seconds", "{when_inconclusive: keep, seconds")).request
    assert (keep.when_inconclusive, keep.is_halting) == (WhenInconclusive.KEEP, False)


def test_a_rolling_rollout_is_an_update_with_a_shadow(yard):
    options = {"group": "default", "slots": 2}
    yard.store.launch_stream("orders", StreamKind.PIPELINE, actor="ann", release="1.2", options=options)
    made = yard.apply(
        TEXT.replace("stream: backup", "stream: orders")
        .replace("REFEED_BACKUP", "REFEED_PIPELINE")
        .replace("restart", "rolling")
        .replace("min_messages: 10", "may_differ: [price]")
    )
    assert made.request.shadow == ShadowRequest(may_differ=("price",))
    example = {"topic": "orders", "message_id": "1", "running": "3.1", "new": "3.2"}
    figures = {"shadow": {"rows_different": 1, "examples": [example]}}
    yard.advance(UpdateState.SHADOWING)
    ended = yard.advance(UpdateState.FAILED, error=UpdateFault("shadow_differs", "1 row."), figures=figures)
    record = yard.store.get_stream("orders")
    assert (record.release, record.options) == ("1.2", options)
    # Values are payloads, which not everybody may read.
    shown = show_update(ended, Principal("bob", frozenset({STREAMS_READ})))
    assert (shown.figures or {})["shadow"]["examples"] == [{**example, "running": None, "new": None}]
    assert show_update(ended, ANN) == ended


# -- taking back


@pytest.mark.parametrize(
    ("text", "through", "state"),
    [
        (TEXT, (), UpdateState.ROLLED_BACK),
        (TEXT, (UpdateState.MEASURING,), UpdateState.ROLLED_BACK),
        (TEXT + HALT, (UpdateState.STOPPING,), UpdateState.STOPPING),
        (TEXT + HALT, RESTARTED, UpdateState.STOPPING_BACK),
        (TEXT + HALT, (*RESTARTED, UpdateState.WATCHING), UpdateState.STOPPING_BACK),
        (UPDATE, (), UpdateState.ROLLED_BACK),
        (UPDATE, (UpdateState.SNAPSHOTTING, UpdateState.STARTING), UpdateState.ROLLED_BACK),
        (UPDATE, (UpdateState.HANDING_OVER,), UpdateState.HANDING_OVER),
        (UPDATE, FORTH, UpdateState.ROLLING_BACK),
    ],
)
@pytest.mark.parametrize("verb", ["cancel", "revert"])
def test_a_rollout_is_taken_back_at_any_step(yard, text, through, state, verb):
    made = yard.apply(text)
    note_update(yard.store, made, checked={"has_way_back": True})
    before = yard.advance(*through)
    take_back = getattr(yard.updates, verb)
    taken = take_back(made.id, principal=ANN)
    assert (taken.state, taken.unwanted_by) == (state, "ann")
    said = f"ann took the update back while it was {before.state}."
    assert (taken.error.code, taken.error.message) == ("update_unwanted", said)
    assert yard.updates.list_inbox(principal=ANN) == []
    if not taken.state.is_ended:
        assert take_back(made.id, principal=ANN) == taken, "it is taken back already"
    else:
        assert yard.side() == OLD
        words = "has ended" if verb == "cancel" else "does not run with its release and options"
        with pytest.raises(StreamStateError, match=words):
            take_back(made.id, principal=ANN)


def test_without_a_way_back_a_cancelled_update_ends_and_one_to_revert_goes_on(yard):
    made = yard.apply(UPDATE)
    note_update(yard.store, made, checked={"has_way_back": False, "no_way_back": ["New files."]})
    yard.advance(*FORTH)
    with pytest.raises(StreamStateError, match=r"can't be rolled back.*New files"):
        yard.updates.revert(made.id, principal=ANN)
    assert yard.state() is UpdateState.WATCHING
    assert yard.updates.cancel(made.id, principal=ANN).state is UpdateState.FAILED
    assert yard.side() == NEW


# -- reversals


def test_a_reversal_goes_back_and_validates_nothing_towards_a_stable_release(yard):
    done = yard.make_stable()
    document = yard.store.get_manifest("faster").document
    yard.pass_time(seconds=1)
    made = yard.updates.revert(done.id, principal=ANN)
    assert (sides(made), made.reverses, made.request.is_trusted) == ((NEW, OLD), done.id, True)
    assert (made.request.options, made.manifest) == ({"batch_seconds": None}, done.manifest)
    assert (made.request.bounds, made.request.strategy) == (done.request.bounds, done.request.strategy)
    assert yard.store.get_manifest("faster").document == document, "what was applied stays"
    yard.advance(*RESTARTED, UpdateState.STABLE)
    assert yard.side() == OLD
    with pytest.raises(StreamStateError, match="does not run with its release and options"):
        yard.updates.revert(done.id, principal=ANN)


def test_a_reversal_towards_a_release_that_was_never_stable_is_watched(yard):
    yard.restart(TEXT + HALT)
    halted = yard.advance(UpdateState.FAILED, error=SLOW)
    yard.pass_time(seconds=1)
    back = yard.updates.revert(halted.id, principal=ANN)
    assert back.request.is_trusted, "it was launched as 1.2"
    yard.advance(*RESTARTED, UpdateState.STABLE)
    yard.pass_time(seconds=1)
    again = yard.updates.revert(back.id, principal=ANN)
    assert (sides(again)[1], again.request.is_trusted) == (NEW, False)


def test_a_release_that_was_kept_without_a_proof_is_not_trusted_later(yard):
    yard.restart(TEXT.replace("{seconds", "{when_inconclusive: keep, seconds"))
    kept = yard.advance(UpdateState.STABLE, error=UpdateFault("update_inconclusive", "It stays."))
    assert (kept.state, str(kept.error)) == (UpdateState.STABLE, "update_inconclusive: It stays.")
    yard.pass_time(seconds=1)
    back = yard.updates.revert(kept.id, principal=ANN)
    assert back.request.is_trusted, "it was launched as 1.2"
    yard.advance(*RESTARTED, UpdateState.STABLE)
    yard.pass_time(seconds=1)
    assert not yard.updates.revert(back.id, principal=ANN).request.is_trusted, "nothing ever proved 1.3"


@pytest.mark.parametrize("ended", [False, True])
def test_a_revert_of_a_version_that_has_passed_changes_nothing(yard, ended):
    made = yard.apply()
    read = yard.store.get(made.id).version
    yard.advance(*RESTARTED, *([UpdateState.STABLE] if ended else []))
    before, jobs = yard.store.get(made.id), len(yard.store.list_updates("backup"))
    with pytest.raises(JobChangedError):
        yard.updates.revert(made.id, principal=ANN, versions={read})
    assert (yard.store.get(made.id), len(yard.store.list_updates("backup"))) == (before, jobs)
    assert yard.updates.revert(made.id, principal=ANN, versions={read, before.version}).id


@pytest.mark.parametrize("verb", ["cancel", "revert"])
def test_an_update_that_moves_on_while_it_is_taken_back_is_left_alone(yard, verb):
    made = yard.apply()
    take_back, read = yard.store.take_update_back, yard.store.get(made.id).version

    def take_back_late(*given, **named):
        yard.advance(*RESTARTED)
        return take_back(*given, **named)

    with patch.object(JobStore, "take_update_back", side_effect=take_back_late), pytest.raises(JobChangedError):
        getattr(yard.updates, verb)(made.id, principal=ANN, versions={read})
    assert (yard.state(), yard.rollout.unwanted_by) == (UpdateState.RESTARTING, None)


@pytest.mark.parametrize("verb", ["cancel", "revert"])
def test_who_may_only_operate_streams_takes_no_rollout_back(yard, verb):
    made = yard.apply()
    with pytest.raises(ForbiddenError):
        getattr(yard.updates, verb)(made.id, principal=Principal("bob", frozenset({STREAMS_OPERATE})))
    assert not yard.rollout.state.is_ended


# -- manifests


def test_the_same_content_again_says_what_became_of_it(yard):
    def note(text=TEXT):
        return yard.manifests.apply_all(text.encode(), principal=ANN, validate_only=True).plans[0].note

    assert note() is None
    made = yard.apply()
    assert note() == f"{made.id} is CHECKING."
    yard.advance(*RESTARTED)
    yard.go_back(UpdateFault("stream_died", "The new release of backup did not start: It ended."))
    said = note("# again\n" + TEXT) or ""
    assert said.startswith(f"{made.id} was ROLLED_BACK at 2026-03-02T12:00:00Z: The new release of backup did not")
    assert said.endswith("It ended. Refeed tries the file again when its content changes.")
    assert yard.apply() == yard.store.get_update(made.id)
    changed = yard.apply(TEXT + "description: again\n")
    assert changed.id != made.id
    assert (changed.state, changed.manifest.version) == (UpdateState.CHECKING, 2)


def test_a_content_that_comes_again_after_another_one_is_another_rollout(yard):
    other = TEXT + "description: other\n"
    made = []
    for text in (TEXT, other, TEXT):
        made.append(yard.apply(text))
        yard.advance(UpdateState.REFUSED)
    assert len({each.id for each in made}) == 3
    manifests = [each.manifest for each in made if each.manifest is not None]
    assert [each.version for each in manifests] == [1, 2, 3]
    assert manifests[0].digest == manifests[2].digest


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
    assert (yard.store.list_manifests(), yard.store.list_updates()) == ([], [])


def test_a_stream_that_can_t_stand_by_is_rolled_out_by_a_restart(yard):
    options = {"stream": "clicks", "region": "eu-north-1", "topic": "clicks"}
    yard.store.launch_stream("clicks", StreamKind.KINESIS, actor="ann", release="1.2", options=options)

    def check(strategy):
        to = RolloutSideWanted(release="1.3", options=options)
        return yard.rollouts.prepare(RolloutWanted(stream="clicks", to=to, strategy=strategy), "clicks", None)

    for strategy in ("update", "rolling"):
        with pytest.raises(
            RolloutRefusedError, match=r"kinesis stream can't be updated while it runs\. Use the strategy restart"
        ):
            check(strategy)
    assert check("restart").update.release == "1.3"


def test_a_key_with_topics_rolls_out_a_kinesis_stream_that_publishes_to_these_alone(yard):
    options = {"stream": "clicks", "region": "eu-north-1", "topic": "shop-eu"}
    yard.store.launch_stream("clicks", StreamKind.KINESIS, actor="ann", release="1.2", options=options)
    bot = Principal("key:bot", frozenset({ROLLOUTS_APPLY, SCHEDULES_APPLY}), ("shop-*",))

    def apply(topic, principal=bot, kind="Rollout"):
        sides = {"from": {"release": "1.2", "options": options}, "to": {"release": "1.3", "options": options}}
        sides["to"]["options"] = {**options, "topic": topic}
        wanted = {"stream": "clicks", "strategy": "restart", **sides}
        job = {"cron": "0 1 * * *", "job": {"kind": "rollout", "request": wanted}}
        document = {"kind": kind, "name": "clicks", **(wanted if kind == "Rollout" else job)}
        text = json.dumps(document).encode()
        plan = yard.manifests.apply_all(text, principal=principal, validate_only=True)
        assert not plan.refused, "a plan may be made without the right to apply it"
        return yard.manifests.apply("clicks", text, principal=principal)

    assert apply("members", ANN, "Schedule").applied_by == "ann"
    for topic in ("orders", None):
        for kind in ("Rollout", "Schedule"):
            with pytest.raises(ForbiddenError):
                apply(topic, kind=kind)
    assert yard.store.list_updates() == []
    assert apply("shop-us").applied_by == "key:bot"


def test_a_key_with_topics_reverts_no_update_to_another_topic(yard):
    yard.store.launch_stream("clicks", StreamKind.KINESIS, actor="ann", options={"topic": "orders"})
    moved = UpdateRequest(None, {"topic": "shop-eu"}, {}, strategy=UpdateStrategy.RESTART)
    made = yard.updates.create("clicks", moved, principal=ANN)
    for state in (UpdateState.STOPPING, UpdateState.RESTARTING, UpdateState.WATCHING, UpdateState.STABLE):
        advance_update(yard.store, made, state)
    bot = Principal("key:bot", frozenset({STREAMS_OPERATE}), ("shop-*",))
    with pytest.raises(ForbiddenError, match="may not publish to the topic orders"):
        yard.updates.revert(made.id, principal=bot)
    assert yard.updates.revert(made.id, principal=ANN).request.options == {"topic": "orders"}


def test_a_restart_takes_entries_of_the_mapping_away_and_an_update_only_adds_them(yard):
    options = {"group": "default", "mapping": {"a": "b", "c": "d"}}
    yard.store.launch_stream("orders", StreamKind.PIPELINE, actor="ann", release="1.2", options=options)
    text = (
        "kind: Rollout\nname: faster\nstream: orders\n"
        'from: {release: "1.2", options: {group: default, mapping: {a: b, c: d}}}\n'
        'to: {release: "1.3", options: {group: default, mapping: {a: b}}}\nstrategy: '
    )
    with pytest.raises(RolloutRefusedError, match="can't remove any"):
        yard.apply(text + "update\n")
    made = yard.apply(text + "restart\n")
    assert made.to_options == {"group": "default", "mapping": {"a": "b"}}


def test_faults_of_options_have_their_side_in_their_pointers(yard):
    text = TEXT.replace("options: {slots: 2}", "options: {slots: 0}")
    with pytest.raises(RequestInvalidError) as caught:
        yard.apply(text)
    pointers = [error["pointer"] for error in caught.value.details["errors"]]
    assert pointers == ["/from/options/slots", "/to/options/slots"]


@pytest.mark.parametrize("end", [UpdateState.FAILED, UpdateState.ROLLED_BACK, UpdateState.REFUSED])
def test_what_did_not_come_through_waits_for_a_person_until_the_next_one(yard, end):
    yard.restart(TEXT + HALT)
    assert yard.updates.list_inbox(principal=ANN) == []
    yard.advance(end, error=SLOW)
    (item,) = yard.updates.list_inbox(principal=ANN)
    assert (item.kind, item.resource, item.id, item.state) == ("failure", "update", yard.rollout.id, end)
    assert item.message.startswith(f"The update {yard.rollout.id} of backup is {end}. update_failed: The oldest")
    before, yard.now = yard.now, yard.now + timedelta(days=8)
    assert yard.updates.list_inbox(principal=ANN) == []
    yard.now = before
    yard.updates.revert(yard.rollout.id, principal=ANN)
    assert yard.updates.list_inbox(principal=ANN) == []
