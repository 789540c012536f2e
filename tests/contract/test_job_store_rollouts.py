"""Rollouts as records in every job store: each step with what it does to the stream, once."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from jobs.store import JobStore, open_store
from model.errors import (
    RefeedError,
    RolloutInProgressError,
    RolloutNotFoundError,
    RolloutStateError,
    StreamStateError,
    UpdateInProgressError,
)
from model.principal import ROLLOUTS_APPLY, Principal
from model.rollout_record import NewRollout, Rollout, RolloutSide, RolloutState
from model.stream_options import StreamKind
from model.stream_record import StreamState, Wanted
from model.stream_update import UpdateRequest
from model.watch_bounds import WatchBounds
from tests.contract.test_job_store_snapshots import complete

AGENT = "agent-1"
ANN = Principal("ann", frozenset({ROLLOUTS_APPLY}))
OLD, NEW = RolloutSide("1.2", {"slots": 2}), RolloutSide("1.3", {"slots": 4})
REQUEST = UpdateRequest("1.3", {"slots": 4}, {}, is_halting=True, bounds=WatchBounds(lag_factor=5.0))


@pytest.fixture(autouse=True)
def launched(store: JobStore) -> None:
    store.launch_stream("backup", StreamKind.BACKUP, actor="ann", release="1.2", options={"slots": 2})
    store.take_streams(AGENT, limit=1, lease_seconds=60)
    store.report_stream("backup", AGENT, StreamState.RUNNING, instance_id="in_1")


def new(digest: str = "1", before: RolloutSide = OLD, after: RolloutSide = NEW, **given: Any) -> NewRollout:
    return NewRollout(
        **{"manifest": "faster", "digest": digest, "document": {"name": "faster"}, "stream": "backup"}
        | {"strategy": "restart", "from_side": before, "to_side": after}
        | given
    )


def apply(store: JobStore, digest: str = "1", **given: Any) -> Rollout | None:
    """Apply a manifest of this content; return the newest rollout of its name."""
    made = new(digest, **given)
    store.put_manifest("faster", "Rollout", {"digest": digest}, digest, source="api", principal=ANN, rollout=made)
    return next(iter(store.list_rollouts(manifest="faster", limit=1)), None)


def begin(store: JobStore, **given: Any) -> Rollout:
    made = apply(store, **given)
    assert made is not None
    return made


def drained(store: JobStore) -> None:
    """What the agent does when its stream is to be drained."""
    store.report_stream("backup", AGENT, StreamState.DRAINED)


@pytest.mark.parametrize(
    "change",
    [
        lambda store: store.change_stream("backup", actor="bob", options={"batch_seconds": 2.0}),
        lambda store: store.create_update("backup", REQUEST, actor="bob"),
        lambda store: store.create_restore("backup", complete(store).id, actor="bob"),
        lambda store: store.create_rollout(new("2"), actor="bob"),
        lambda store: apply(store, "2"),
        lambda store: store.remove_manifest("faster", source="api"),
    ],
)
def test_every_other_change_waits_for_the_end_of_a_rollout(store, change):
    made = begin(store)
    with pytest.raises(RolloutInProgressError, match=made.id):
        change(store)
    assert store.get_rollout(made.id) == made
    store.advance_rollout(made, RolloutState.CANCELLED)
    if store.list_manifests():
        change(store)


def test_a_rollout_waits_for_the_end_of_an_update(store: JobStore) -> None:
    update = store.create_update("backup", REQUEST, actor="bob")
    with pytest.raises(UpdateInProgressError, match=update.id):
        apply(store)
    assert store.list_manifests() == []


def test_what_changed_between_two_steps_is_not_overwritten(store: JobStore) -> None:
    made = begin(store)
    store.end_stream("backup", Wanted.CANCELLED, actor="bob")
    with pytest.raises(StreamStateError, match="to be CANCELLED"):
        store.drain_for_rollout(made, RolloutState.DRAINING)
    store.report_stream("backup", AGENT, StreamState.CANCELLED)
    store.launch_stream("backup", StreamKind.BACKUP, actor="bob", release="1.2", options={"slots": 2})
    with pytest.raises(StreamStateError, match="launched again"):
        store.drain_for_rollout(made, RolloutState.DRAINING)
    assert store.get_rollout(made.id) == made


def test_a_step_from_a_version_that_has_passed_is_refused_and_changes_no_stream(store: JobStore) -> None:
    seen = begin(store)
    store.note_rollout(seen, unwanted_by="bob")
    for step in (
        lambda: store.drain_for_rollout(seen, RolloutState.DRAINING),
        lambda: store.update_for_rollout(seen, RolloutState.UPDATING, REQUEST),
        lambda: store.launch_for_rollout(seen, RolloutState.STARTING, NEW),
        lambda: store.advance_rollout(seen, RolloutState.STABLE),
        lambda: store.note_rollout(seen, compared={}),
    ):
        with pytest.raises(RolloutStateError, match="no longer PENDING at 1"):
            step()
    assert store.get_stream("backup").wanted is Wanted.RUNNING
    assert (store.get_rollout(seen.id).unwanted_by, store.list_updates("backup")) == ("bob", [])
    with pytest.raises(RolloutNotFoundError):
        store.get_rollout("ro_1")


def test_of_replicas_that_take_a_step_at_once_one_takes_it(store: JobStore, url: str) -> None:
    made = begin(store)
    other = open_store(url)

    def take(number: int) -> bool:
        try:
            (store, other)[number % 2].drain_for_rollout(made, RolloutState.DRAINING)
        except RefeedError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(take, range(8)))
    other.close()
    assert taken.count(True) == 1
    assert [each.what for each in store.list_stream_events("backup")].count("wanted DRAINED") == 1


def test_a_reversal_does_not_count_as_the_content_that_was_tried(store: JobStore) -> None:
    first = begin(store)
    store.advance_rollout(first, RolloutState.STABLE)
    reversal = store.create_rollout(new("1", reverses=first.id, is_trusted=True), actor="bob")
    assert (reversal.reverses, reversal.is_trusted, reversal.created_by) == (first.id, True, "bob")
    store.advance_rollout(reversal, RolloutState.STABLE)
    store.remove_manifest("faster", source="api")
    assert begin(store).id == reversal.id
    assert [each.id for each in store.list_rollouts(stream="backup")] == [reversal.id, first.id]
    assert store.list_rollouts(stream="other") == []


def test_a_slot_s_rollout_is_made_once_by_replicas_at_once_and_holds_its_schedule_in_nothing(store, url):
    def put(cron: str) -> None:
        store.put_manifest("weekly", "Schedule", {"cron": cron}, cron, source="api", principal=ANN)

    put("0 4 * * 6")
    slot = new("slot 1", manifest="weekly")
    other = open_store(url)
    with ThreadPoolExecutor(4) as pool:
        replicas = [store, other] * 2
        made = set(pool.map(lambda each: each.create_rollout(slot, actor="schedule:weekly").id, replicas))
    other.close()
    assert [each.id for each in store.list_rollouts()] == [*made]
    put("0 5 * * 6")
    assert store.remove_manifest("weekly", source="api").name == "weekly"
    with pytest.raises(RolloutInProgressError):
        store.put_manifest("weekly", "Rollout", {}, "1", source="api", principal=ANN)
    store.advance_rollout(store.list_rollouts()[0], RolloutState.STABLE)
    assert store.create_rollout(slot, actor="schedule:weekly").id in made, "also after its end"
