"""Snapshots of streams as callers request them: made, listed, deleted, and restored."""

from typing import Final

import structlog

from jobs.inbox_items import InboxItem, error_message, list_ended
from jobs.store import DELETION, RESTORE, SNAPSHOT, Idempotency, Job, JobStore
from jobs.versions import Versions
from model.errors import SnapshotRefusedError, StreamSnapshotNotFoundError
from model.job import JobState
from model.principal import READ, STREAMS_OPERATE, STREAMS_READ, Principal
from model.stream_options import StreamKind
from model.stream_snapshot import RestoreRecord, SnapshotReason, SnapshotRecord, SnapshotState

_LOG: Final = structlog.get_logger()


class SnapshotService:
    """Writes down which snapshots people want, and to which a stream goes back; an agent carries it out.

    Every call answers from the store within milliseconds. A snapshot is PENDING until an agent has made it, and
    DELETING until nothing of it is left.

    Raises:
        ForbiddenError: any call whose ``principal`` lacks the scope.
    """

    def __init__(self, store: JobStore) -> None:
        self._store = store

    def create(
        self, stream: str, *, with_source: bool, principal: Principal, idempotency_key: str | None = None
    ) -> SnapshotRecord:
        """Ask for a snapshot of the stream's state, and with its source one of each of its subscriptions.

        Raises:
            StreamNotFoundError: there never was such a stream.
            StreamStateError: it has ended.
            SnapshotRefusedError: its kind has none.
            IdempotencyKeyReusedError: the key came before with another request.
        """
        principal.require(STREAMS_OPERATE)
        if self._store.get_stream(stream).kind is StreamKind.KINESIS:
            raise SnapshotRefusedError(
                f"{stream} reads from Kinesis, and Kinesis has no snapshots. To read records again, "
                "launch a stream under another name, with the time of the first record as its start."
            )
        made = self._store.create_snapshot(
            stream,
            with_source=with_source,
            actor=principal.name,
            reason=SnapshotReason.MANUAL,
            idempotency=Idempotency.of(idempotency_key, [stream, with_source]),
        )
        _LOG.info("snapshot_asked", stream=stream, snapshot=made.id, with_source=with_source, by=principal.name)
        return made

    def list_page(
        self, *, principal: Principal, stream: str | None = None, before: str | None = None, limit: int
    ) -> list[SnapshotRecord]:
        """Return at most ``limit`` snapshots, newest first, of those older than ``before``."""
        principal.require(STREAMS_READ)
        return self._store.list_snapshots(stream=stream, before=before, limit=limit)

    def get(self, snapshot_id: str, *, principal: Principal) -> SnapshotRecord:
        """Return the snapshot.

        Raises:
            StreamSnapshotNotFoundError: there is none.
        """
        principal.require(STREAMS_READ)
        return self._store.get_snapshot(snapshot_id)

    def delete(self, snapshot_id: str, *, principal: Principal) -> SnapshotRecord:
        """Ask for the snapshot's files, its Pub/Sub snapshots and its record to be deleted.

        Raises:
            StreamSnapshotNotFoundError: there is none.
            StreamStateError: a stream is being put back to it.
        """
        principal.require(STREAMS_OPERATE)
        found = self._store.delete_snapshot(snapshot_id, actor=principal.name)
        _LOG.info("snapshot_unwanted", stream=found.stream, snapshot=found.id, by=principal.name)
        return found

    def rollback(
        self,
        stream: str,
        snapshot_id: str,
        *,
        principal: Principal,
        discard_staged: bool = False,
        versions: Versions = None,
        why: str | None = None,
        idempotency_key: str | None = None,
    ) -> RestoreRecord:
        """Ask for a living stream to be drained, put back to the snapshot, and started again.

        With ``discard_staged`` what a pipeline staged since then is deleted, and staged again when it comes again.

        Raises:
            StreamNotFoundError, StreamSnapshotNotFoundError: there is none.
            StreamStateError: the stream has ended or is to end, or is being put back already.
            SnapshotRefusedError: the snapshot is not COMPLETED, or of another kind of stream; or nothing would
                bring again what is to be discarded.
            StreamChangedError: the stream is at none of ``versions``.
            IdempotencyKeyReusedError: the key came before with another request.
        """
        principal.require(STREAMS_OPERATE)
        if discard_staged:
            _check_discard(self._store.get_snapshot(snapshot_id))
        asked = self._store.create_restore(
            stream,
            snapshot_id,
            actor=principal.name,
            discard_staged=discard_staged,
            why=why,
            versions=versions,
            idempotency=Idempotency.of(idempotency_key, [stream, snapshot_id, discard_staged]),
        )
        _LOG.info("rollback_asked", stream=stream, snapshot=snapshot_id, by=principal.name)
        return asked

    def list_inbox(self, *, principal: Principal) -> list[InboxItem]:
        """Return the rollbacks, snapshots and deletions of snapshots that failed in the last seven days.

        A later rollback or snapshot of the stream makes up for one that failed. A deletion is left out once it is
        done after all.
        """
        principal.require(READ)
        now = self._store.now()
        ended = [
            list_ended(self._store, kind, (JobState.FAILED,), now=now) for kind in (RESTORE, SNAPSHOT, DELETION)
        ]
        items = (_inbox_item(job) for jobs in ended for job in jobs if self._is_due(job))
        return list({item.message: item for item in items}.values())

    def _is_due(self, job: Job) -> bool:
        """Whether nothing has made up for a job that failed."""
        stream, snapshot_id = job.request["stream"], job.request["snapshot_id"]
        if job.kind == RESTORE:
            return self._store.list_restores(stream)[0].id == job.id
        if job.kind == SNAPSHOT:
            states = (SnapshotState.COMPLETED, SnapshotState.FAILED)
            made = self._store.list_snapshots(stream=stream, states=states, limit=1)
            is_last = [each.id for each in made] == [snapshot_id]
            return is_last and self._store.get_stream(stream).is_living
        try:
            found = self._store.get_snapshot(snapshot_id)
        except StreamSnapshotNotFoundError:
            return False
        # Of a snapshot that failed the record stays.
        return found.state is SnapshotState.DELETING or found.place is not None


def _inbox_item(job: Job) -> InboxItem:
    stream, snapshot = job.request["stream"], job.request["snapshot_id"]
    resource, name, what = {
        RESTORE: ("stream", stream, f"The rollback of {stream} to {snapshot} failed."),
        SNAPSHOT: ("snapshot", snapshot, f"The snapshot {snapshot} of {stream} failed."),
        DELETION: ("snapshot", snapshot, f"The files of the snapshot {snapshot} of {stream} can't be deleted."),
    }[job.kind]
    message = f"{what} {error_message(job)}"
    return InboxItem("failure", resource, name, job.state, None, job.created_by, job.finished_at, message)


def _check_discard(snapshot: SnapshotRecord) -> None:
    """Check that what a pipeline staged since the snapshot comes again when it is deleted.

    Raises:
        SnapshotRefusedError: it would not.
    """
    if snapshot.kind != StreamKind.PIPELINE:
        raise SnapshotRefusedError(
            f"{snapshot.id} is a snapshot of a {snapshot.kind} stream. Only a pipeline stages "
            "rows, so only a pipeline can discard staged rows.",
            id=snapshot.id,
        )
    if not snapshot.with_source:
        raise SnapshotRefusedError(
            f"{snapshot.id} has no Pub/Sub snapshots. Pub/Sub would not deliver the messages "
            "of the deleted rows again.",
            id=snapshot.id,
        )
