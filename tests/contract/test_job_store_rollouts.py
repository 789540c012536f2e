"""Rollouts in every job store: updates that are begun with their manifests, once."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from jobs.store import Idempotency, JobStore, open_store
from model.errors import RolloutRefusedError, StreamStateError, UpdateInProgressError
from model.principal import ROLLOUTS_APPLY, Principal
from model.rollout_record import NewRollout, RolloutSide
from model.stream_options import StreamKind
from model.stream_record import StreamState, Wanted
from model.stream_update import StreamUpdate, UpdateManifest, UpdateRequest, UpdateState, UpdateStrategy
from model.watch_bounds import WatchBounds
from tests.contract.test_job_store_snapshots import complete
from tests.worlds.update_jobs import advance_update

AGENT = "agent-1"
ANN = Principal("ann", frozenset({ROLLOUTS_APPLY}))
OLD, NEW = RolloutSide("1.2", {"slots": 2}), RolloutSide("1.3", {"slots": 4})
REQUEST = UpdateRequest("1.3", {"slots": 4}, {}, is_halting=True, bounds=WatchBounds(lag_factor=5.0))


@pytest.fixture(autouse=True)
def launched(store: JobStore) -> None:
    store.launch_stream("backup", StreamKind.BACKUP, actor="ann", release="1.2", options={"slots": 2})
    store.take_streams(AGENT, limit=1, lease_seconds=60)
    store.report_stream("backup", AGENT, StreamState.RUNNING, instance_id="in_1")


UPDATE = UpdateRequest(NEW.release, dict(NEW.options), {}, strategy=UpdateStrategy.RESTART)


def apply(store: JobStore, digest: str = "1", *, before: RolloutSide = OLD) -> StreamUpdate:
    """Apply a manifest of this content; return the newest rollout of its name."""
    made = NewRollout("backup", before, UPDATE)
    store.put_manifest("faster", "Rollout", {"digest": digest}, digest, source="api", principal=ANN, rollout=made)
    return store.list_updates(manifest="faster")[0]


def begin(store: JobStore, manifest: str = "faster", **given: Any) -> StreamUpdate:
    """Begin a rollout as a schedule's slot does, or its reversal."""
    asked = UpdateManifest(manifest, "slot 1")
    return store.create_update("backup", UPDATE, **{"actor": "bob", "manifest": asked} | given)


def end(store: JobStore, rollout: StreamUpdate, state: UpdateState = UpdateState.REFUSED) -> None:
    advance_update(store, rollout, state)


@pytest.mark.parametrize(
    "change",
    [
        lambda store: store.change_stream("backup", actor="bob", options={"batch_seconds": 2.0}),
        lambda store: store.create_update("backup", REQUEST, actor="bob"),
        lambda store: store.create_restore("backup", complete(store).id, actor="bob"),
        lambda store: begin(store, from_side=OLD),
        lambda store: apply(store, "2"),
        lambda store: store.remove_manifest("faster", source="api"),
    ],
)
def test_every_other_change_waits_for_the_end_of_a_rollout(store, change):
    made = apply(store)
    with pytest.raises(UpdateInProgressError, match=made.id):
        change(store)
    assert store.get_update(made.id) == made
    end(store, made)
    change(store)


def test_a_rollout_waits_for_the_end_of_an_update(store: JobStore) -> None:
    update = store.create_update("backup", REQUEST, actor="bob")
    with pytest.raises(UpdateInProgressError, match=update.id):
        apply(store)
    assert (store.list_manifests(), store.list_updates(manifest="faster")) == ([], [])


def test_what_runs_is_compared_with_from_and_every_difference_is_told(store: JobStore) -> None:
    said = RolloutSide("1.1", {"slots": 3, "batch_seconds": 1.0})
    with pytest.raises(RolloutRefusedError, match=r"release is 1\.2, but in 'from' it is 1\.1") as caught:
        apply(store, before=said)
    pointers = [each["pointer"] for each in caught.value.details["errors"]]
    assert pointers == ["/from/release", "/from/options/slots", "/from/options/batch_seconds"]
    assert (store.list_manifests(), store.list_updates()) == ([], [])
    store.end_stream("backup", Wanted.CANCELLED, actor="bob")
    with pytest.raises(StreamStateError, match="wanted state CANCELLED"):
        apply(store)


def test_rollouts_and_updates_of_a_stream_are_listed_newest_first(store: JobStore) -> None:
    first = apply(store)
    end(store, first)
    update = store.create_update("backup", REQUEST, actor="bob")
    advance_update(store, update, UpdateState.REFUSED)
    second = apply(store, "2")
    assert [each.id for each in store.list_updates("backup")] == [second.id, update.id, first.id]
    assert [each.id for each in store.list_updates(manifest="faster")] == [second.id, first.id]
    asked = [each.manifest and each.manifest.name for each in store.list_updates("backup")]
    assert asked == ["faster", None, "faster"]


def test_a_reversal_does_not_count_as_the_content_that_was_tried(store: JobStore) -> None:
    first = apply(store)
    end(store, first)
    reversal = begin(store, reverses=first.id)
    assert (reversal.reverses, reversal.created_by) == (first.id, "bob")
    end(store, reversal)
    store.remove_manifest("faster", source="api")
    assert apply(store).id == reversal.id, "the content was tried, and its reversal is the newest"
    assert [each.id for each in store.list_updates("backup", manifest="faster")] == [reversal.id, first.id]
    assert store.list_updates("other", manifest="faster") == []


def test_a_content_begins_again_after_another_one(store: JobStore) -> None:
    made = []
    for digest in ("a", "b", "a"):
        made.append(apply(store, digest))
        end(store, made[-1])
    assert [each.manifest and each.manifest.version for each in made] == [1, 2, 3]
    assert len({each.id for each in made}) == 3


def test_a_slot_s_rollout_is_made_once_by_replicas_at_once_and_holds_its_schedule_in_nothing(store, url):
    def put(cron: str) -> None:
        store.put_manifest("weekly", "Schedule", {"cron": cron}, cron, source="api", principal=ANN)

    put("0 4 * * 6")
    given = {"actor": "schedule:weekly", "idempotency": Idempotency("weekly-slot-1", "1"), "from_side": OLD}
    other = open_store(url)
    with ThreadPoolExecutor(4) as pool:
        replicas = [store, other] * 2
        made = set(pool.map(lambda each: begin(each, "weekly", **given).id, replicas))
    other.close()
    assert [each.id for each in store.list_updates()] == [*made]
    put("0 5 * * 6")
    assert store.remove_manifest("weekly", source="api").name == "weekly"
    with pytest.raises(UpdateInProgressError):
        store.put_manifest("weekly", "Rollout", {}, "1", source="api", principal=ANN)
    end(store, store.list_updates()[0], UpdateState.STABLE)
    assert begin(store, "weekly", **given).id in made, "also after its end"
    assert store.list_updates()[0].state is UpdateState.STABLE
