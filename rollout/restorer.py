"""Puts a stream back to a snapshot, step by step, while no process of it runs."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import structlog

from connectors.pubsub.client import PubSub
from jobs.files import Files, open_files
from jobs.store import JobStore
from model.errors import (
    PubSubUnavailableError,
    RefeedError,
    SnapshotExpiredError,
    SnapshotRefusedError,
    StoreUnavailableError,
    WarehouseUnavailableError,
)
from model.failure import safe_message
from model.stream_snapshot import RestoreRecord, RestoreStep, SnapshotFault, SnapshotRecord
from pipeline.plan import PlanFacts
from streams.lease import lock_home
from streams.snapshot import PLAN_FILE, read_manifest, restore_state

_log = structlog.get_logger(__name__)

# What passes by itself: the next try goes on where this one ended.
_PASSING: Final = (PubSubUnavailableError, StoreUnavailableError, WarehouseUnavailableError)


class StreamRestorer:
    """Carries out restores: the state of the snapshot, then the seek; the next start learns.

    The order is the promise. The journal that is put in place asks its stream to learn every id that the seek can
    bring again from the stream's own tables, before the seek is made and before anything is pulled. So nothing is
    archived or staged twice, however old the snapshot is, and also in the minute in which Pub/Sub may deliver what
    the seek holds for acknowledged.
    """

    def __init__(
        self,
        store: JobStore,
        *,
        open_pubsub: Callable[[], PubSub],
        host: str,
        min_free_bytes: int,
    ) -> None:
        self._store = store
        self._open_pubsub = open_pubsub
        self._host = host
        self._min_free_bytes = min_free_bytes

    def restore(self, restore: RestoreRecord, state: Path) -> RestoreRecord:
        """Put the stream whose folder is ``state`` back, and return the record as it ended.

        No process of the stream may run. A snapshot that is damaged, newer or expired changes nothing.

        Raises:
            RefeedError: something that passes by itself kept it from going on; the next call does.
        """
        try:
            return self._restore(restore, state)
        except _PASSING:
            raise
        except (RefeedError, OSError) as exc:
            code = exc.code if isinstance(exc, RefeedError) else "storage_full"
            message = exc.message if isinstance(exc, RefeedError) else f"The state can't be written: {exc}"
            ended = self._store.end_restore(restore.id, error=SnapshotFault(code, safe_message(code, message)))
            _log.error(
                "restore_failed", stream=restore.stream, snapshot=restore.snapshot_id, code=code, error=message
            )
            self._note(restore, f"not put back to {restore.snapshot_id}", why=f"{code}: {message}")
            return ended

    def _restore(self, restore: RestoreRecord, state: Path) -> RestoreRecord:
        snapshot = self._store.get_snapshot(restore.snapshot_id)
        if restore.step is RestoreStep.WAITING:
            files = self._check(snapshot)
            # Noted first: after a crash the plan is the snapshot's, and nothing differs from it.
            kept = list_kept(read_manifest(files).facts, snapshot, PlanFacts.read(state / PLAN_FILE))
            self._store.advance_restore(restore.id, RestoreStep.WAITING, not_reverted=kept)
            with lock_home(state):
                restore_state(
                    files, state, min_free_bytes=self._min_free_bytes, learn_since=snapshot.oldest_publish_time
                )
            restore = self._store.advance_restore(restore.id, RestoreStep.RESTORED)
        if restore.step is RestoreStep.RESTORED:
            self._seek(snapshot)
            restore = self._store.advance_restore(restore.id, RestoreStep.SOUGHT)
        ended = self._store.end_restore(restore.id)
        _log.info("stream_restored", stream=restore.stream, snapshot=snapshot.id)
        self._note(restore, f"put back to {snapshot.id}", why="; ".join(ended.not_reverted) or None)
        return ended

    def _check(self, snapshot: SnapshotRecord) -> Files:
        """Return the snapshot's folder, once all of it is known to be there."""
        place = snapshot.place
        if place is None or not (place.is_shared or place.host == self._host):
            raise SnapshotRefusedError(
                f"The files of {snapshot.id} are on another machine's disk: {place}. Set REFEED_JOBS_FOLDER to "
                "a bucket for snapshots that every machine can restore.",
                id=snapshot.id,
            )
        if snapshot.with_source:
            now = datetime.now(UTC)
            with self._open_pubsub() as pubsub:
                there = {found.id for found in pubsub.list_snapshots()}
            gone = [source.snapshot for source in snapshot.sources if source.snapshot not in there]
            if gone or not snapshot.has_source(now):
                raise SnapshotExpiredError(
                    f"Pub/Sub has dropped its part of {snapshot.id}, which expired {snapshot.expire_time}: "
                    f"{len(gone)} of {len(snapshot.sources)} subscriptions can't go back.",
                    id=snapshot.id,
                    gone=gone,
                )
        return open_files(place.location)

    def _seek(self, snapshot: SnapshotRecord) -> None:
        if not snapshot.sources:
            return
        with self._open_pubsub() as pubsub:
            for source in snapshot.sources:
                pubsub.seek_to_snapshot(source.subscription, source.snapshot)

    def _note(self, restore: RestoreRecord, what: str, why: str | None) -> None:
        self._store.note_stream(restore.stream, actor="agent", what=what, why=why, snapshot=restore.snapshot_id)


def list_kept(facts: Mapping[str, Any], snapshot: SnapshotRecord, plan: PlanFacts) -> list[str]:
    """Return, in sentences, what does not go back with ``snapshot``, whose ``facts`` are those of its time."""
    kept = []
    for table, columns in plan.columns.items():
        known = facts.get("columns", {}).get(table)
        if known is not None and (new := [name for name in columns if name not in known]):
            kept.append(f"{table} stays as wide as it is: {', '.join(new)} came after the snapshot.")
    for table, version in plan.versions.items():
        known = facts.get("versions", {}).get(table)
        if known is not None and known < version:
            kept.append(f"{table} stays at version {version} of its schema; the snapshot has {known}.")
    if not snapshot.with_source:
        kept.append("The subscriptions stay where they are: the snapshot was made without its source.")
    return kept
