"""Lets callers request, list, delete and restore snapshots of streams."""

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
    """Writes requests for snapshots and rollbacks into the job store; an agent carries them out.

    Every call returns within milliseconds. A snapshot is PENDING until an agent has made it, and DELETING until
    all of it is deleted.

    Raises:
        ForbiddenError: any call whose ``principal`` lacks the scope.
    """

    def __init__(self, store: JobStore) -> None:
        self._store = store

    def create(
        self, stream: str, *, with_source: bool, principal: Principal, idempotency_key: str | None = None
    ) -> SnapshotRecord:
        """Request a snapshot of the stream's state, and ``with_source`` also of each of its subscriptions.

        Raises:
            StreamNotFoundError: no stream was ever launched under this name.
            StreamStateError: the stream has ended.
            SnapshotRefusedError: this kind of stream has no snapshots.
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
        """Return at most ``limit`` snapshots that are older than ``before``, newest first."""
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
        """Request the deletion of the snapshot's files, Pub/Sub snapshots and record.

        Raises:
            StreamSnapshotNotFoundError: there is no such snapshot.
            StreamStateError: a stream is being restored to the snapshot.
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
        """Request a rollback: a living stream is drained, restored to the snapshot, and started again.

        With ``discard_staged`` the rows that a pipeline staged since the snapshot are deleted, and staged again
        when their messages are redelivered.

        Raises:
            StreamNotFoundError, StreamSnapshotNotFoundError: there is no such stream or snapshot.
            StreamStateError: the stream has ended or is to end, or is being restored already.
            SnapshotRefusedError: the snapshot is not COMPLETED, or of another kind of stream; or the messages of
                discarded rows would not be redelivered.
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

        A failed rollback or snapshot is left out after a later one of the stream has succeeded, and a failed
        deletion after the snapshot is deleted.
        """
        principal.require(READ)
        now = self._store.now()
        ended = [
            list_ended(self._store, kind, (JobState.FAILED,), now=now) for kind in (RESTORE, SNAPSHOT, DELETION)
        ]
        items = (_inbox_item(job) for jobs in ended for job in jobs if self._is_due(job))
        return list({item.message: item for item in items}.values())

    def _is_due(self, job: Job) -> bool:
        """Whether no later success has replaced the failed job."""
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
        # The record of a failed snapshot stays after the deletion.
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
    """Check that the messages of rows that were staged since the snapshot would be redelivered.

    Raises:
        SnapshotRefusedError: they would not.
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
