"""Makes and deletes the snapshots of the streams that an agent holds."""

import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import structlog

from connectors.pubsub.client import PubSub, SnapshotInfo
from jobs.files import Files
from jobs.steps import StepRun
from jobs.store import JobStore
from model import failpoint
from model.errors import RefeedError, SnapshotRefusedError, StoreUnavailableError
from model.message import backup_subscription_id, source_snapshot_id
from model.stream_options import StreamKind
from model.stream_record import StreamRecord
from model.stream_snapshot import (
    SnapshotPlace,
    SnapshotReason,
    SnapshotRecord,
    SnapshotState,
    SourceSnapshot,
)
from pipeline.plan import PlanFacts
from streams.snapshot import PLAN_FILE, CapturedState, StateManifest, capture_state, store_state

_log = structlog.get_logger(__name__)

# Requests at the same time. Each takes some tens of milliseconds, and the stream is paused until the last answer.
_REQUESTS: Final = 8
# Time until the next try of a scheduled snapshot that failed.
_RETRY_FAILED: Final = timedelta(minutes=10)
# A snapshot that is further in the future was made by a clock that was ahead: machines' clocks differ by less.
_AHEAD: Final = timedelta(hours=1)

# Keeps commits from beginning while the block runs. Raises SnapshotRefusedError if the stream does not pause in
# time.
Pause = Callable[[], AbstractContextManager[object]]


class SnapshotTaker:
    """Writes and deletes the files and the Pub/Sub snapshots of a snapshot.

    Each run has its own folder and Pub/Sub snapshots, and the job's notes name the run that counts. So two agents
    that take the same snapshot, or a thread that hung, delete nothing of a complete snapshot. Leftovers of a crash
    are found by their names, and are deleted by the next run, or after the record is FAILED.
    """

    def __init__(
        self,
        store: JobStore,
        *,
        open_pubsub: Callable[[], PubSub],
        files: Files,
        host: str,
    ) -> None:
        self._store = store
        self._open_pubsub = open_pubsub
        self._files = files
        self._host = host

    def take(self, run: StepRun[Any], state: Path, pause: Pause) -> None:
        """Make the snapshot of the stream with the state folder ``state``, and note its content.

        Raises:
            JobChangedError, JobNotFoundError: another run makes the snapshot, or it is to be deleted; nothing of
                this run is left.
            RefeedError, OSError: the snapshot can't be made; the place of any leftovers is noted.
        """
        snapshot = self._store.get_snapshot(run.job.request["snapshot_id"])
        files = self._files.folder(snapshot.stream).folder(f"{snapshot.id}.{secrets.token_hex(4)}")
        before = run.job.memory.get("place")
        left = [] if before is None or self.is_here(SnapshotPlace(**before)) else [before]
        left += run.job.memory.get("left", [])
        run.note({"place": SnapshotPlace(self._host, str(files)), "left": left})
        if before is not None:
            self._remove(snapshot, snapshot.id)
        try:
            run.note({"made": self._make(snapshot, files, state, pause)})
        except StoreUnavailableError:
            # The note may have been written: then the snapshot is complete.
            raise
        except (RefeedError, OSError):
            # This run never counted, so its files can be deleted before the record is FAILED.
            with suppress(RefeedError, OSError):
                self._remove(snapshot, files.name)
                run.note({"place": None})
            raise

    def remove(self, snapshot: SnapshotRecord) -> None:
        """Delete the files and the Pub/Sub snapshots of every run of a snapshot that nobody restores any more.

        Raises:
            RefeedError: Pub/Sub or the storage does not answer; the next call deletes the rest.
        """
        if snapshot.place is not None:
            self._remove(snapshot, snapshot.id)

    def remove_files(self, stream: str, name: str) -> None:
        """Delete the files of the run with the folder ``name``; a snapshot's id means all of its runs.

        Raises:
            RefeedError: the storage does not answer.
        """
        files = self._files.folder(stream)
        for folder in files.list():
            if folder == name or folder.startswith(f"{name}."):
                files.take_away(folder, lambda: False)
        files.sweep()

    def is_here(self, place: SnapshotPlace | None) -> bool:
        """Whether this machine can reach the snapshot's files, or there are none."""
        return place is None or place.is_shared or place.host == self._host

    def _make(self, snapshot: SnapshotRecord, files: Files, state: Path, pause: Pause) -> dict[str, Any]:
        """Make a snapshot in the folder ``files``, and return the fields of its record."""
        captured: CapturedState | None = None
        try:
            with pause():
                began = time.monotonic()
                captured = capture_state(state)
                record = self._store.get_stream(snapshot.stream)
                failpoint.hit("snapshot.captured")
                sources = self._snapshot_sources(snapshot, files, state) if snapshot.with_source else []
                failpoint.hit("snapshot.sources")
                seconds_paused = time.monotonic() - began
            manifest = self._copy(snapshot, record, captured, files, sources)
            failpoint.hit("snapshot.copied")
        finally:
            if captured is not None:
                captured.discard()
        return {
            # The stream may have another release now than at the request of the snapshot.
            "release": record.release,
            "sources": sources,
            "format_version": manifest.format_version,
            "taken_at": manifest.taken_at,
            "size_bytes": manifest.size_bytes,
            "seconds_paused": round(seconds_paused, 3),
            "known_messages": manifest.known_messages,
        }

    def _snapshot_sources(self, snapshot: SnapshotRecord, files: Files, state: Path) -> list[SourceSnapshot]:
        """Make a Pub/Sub snapshot of every subscription of the stream, several at the same time."""
        with self._open_pubsub() as pubsub:
            subscriptions = find_subscriptions(pubsub, snapshot.kind, state)

            def make(subscription: str) -> tuple[str, SnapshotInfo]:
                return subscription, pubsub.create_snapshot(
                    source_snapshot_id(files.name, subscription), subscription
                )

            with ThreadPoolExecutor(_REQUESTS) as pool:
                made = list(pool.map(make, subscriptions))
        if not made:
            raise SnapshotRefusedError(
                f"{snapshot.stream} has no subscription yet. Make the snapshot without with_source."
            )
        return [SourceSnapshot(name, info.id, info.topic, info.expires_at) for name, info in made]

    def _copy(
        self,
        snapshot: SnapshotRecord,
        record: StreamRecord,
        captured: CapturedState,
        files: Files,
        sources: Sequence[SourceSnapshot],
    ) -> StateManifest:
        plan = PlanFacts.read(captured.folder / PLAN_FILE)
        facts: dict[str, Any] = {
            "snapshot": snapshot.id,
            "kind": snapshot.kind,
            "release": record.release,
            "group": record.options.get("group"),
            "columns": dict(plan.columns),
            "versions": dict(plan.versions),
            "sources": {source.subscription: source.snapshot for source in sources},
        }
        return store_state(captured, files, facts)

    def _remove(self, snapshot: SnapshotRecord, name: str) -> None:
        """Delete all that the run with the folder ``name`` made; the snapshot's id means all of its runs."""
        if snapshot.with_source:
            with self._open_pubsub() as pubsub:
                for found in pubsub.list_snapshots():
                    if found.id.startswith(source_snapshot_id(name, "")):
                        pubsub.delete_snapshot(found.id)
        self.remove_files(snapshot.stream, name)


def find_subscriptions(pubsub: PubSub, kind: str, state: Path) -> list[str]:
    """Return the ids of the subscriptions of a stream of ``kind`` with the state folder ``state``."""
    if kind == StreamKind.PIPELINE:
        return list(PlanFacts.read(state / PLAN_FILE).subscriptions)
    return [
        found.id
        for found in pubsub.list_subscriptions()
        if found.id == backup_subscription_id(found.topic) and not found.detached
    ]


def find_overdue(store: JobStore, *, every: timedelta, now: datetime) -> set[str]:
    """Return the streams whose newest snapshot with a source is older than ``every``; a failed one counts minutes.

    Snapshots without a source, such as those of updates, do not count, because they bring no message back.
    Snapshots from the future, by a clock that was ahead, do not count either.
    """
    retry_after = now - min(every, _RETRY_FAILED)
    return store.find_overdue_streams(after=now - every, failed_after=retry_after, until=now + _AHEAD)


def find_surplus(
    snapshots: Sequence[SnapshotRecord], *, keep: int, now: datetime | None = None
) -> list[SnapshotRecord]:
    """Return the ``snapshots`` of a stream that retention deletes: scheduled ones except the ``keep`` newest.

    Snapshots from the future, made by a clock that was ahead, count as the oldest ones ``now``. Snapshots that
    people requested, and the newest COMPLETED one, are never deleted.

    Example:
        >>> find_surplus([], keep=7)
        []
    """
    is_whole = (SnapshotReason.SCHEDULED, SnapshotState.COMPLETED)
    scheduled = sorted(
        (each for each in snapshots if (each.reason, each.state) == is_whole),
        key=lambda each: (now is None or each.created_at - now <= _AHEAD, each.id),
        reverse=True,
    )
    return scheduled[max(keep, 1) :]
