"""The part of an agent that makes, deletes and schedules snapshots, and puts streams back to them."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

from jobs.steps import Done, Step, StepKind, StepRunner
from jobs.store import DELETION, RESTORE, Job, JobStore
from jobs.stream_threads import StreamThreads
from model.errors import SnapshotRefusedError, StreamSnapshotNotFoundError, StreamStateError
from model.stream_options import StreamKind
from model.stream_record import StreamRecord
from model.stream_snapshot import SnapshotPlace, SnapshotReason, SnapshotRecord, SnapshotState
from rollout.process import StreamProcess
from rollout.restorer import StreamRestorer, StreamSite
from rollout.snapshot_taker import SnapshotTaker, find_surplus, is_overdue
from streams.control import LONGEST_PAUSE_SECONDS
from streams.lease import lock_home

_JOIN_SECONDS: Final = 10.0
_SCHEDULE_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.05
_DELETION_SECONDS: Final = 86400.0
KEPT_DELETIONS: Final = 1000
_NOWHERE: Final = StreamSite(None, None)
# The actor of what a schedule makes and deletes.
_ACTOR: Final = "agent"


class SnapshotWork:
    """Makes and deletes snapshots of the streams that an agent holds, and puts streams back to them.

    The agent calls :meth:`look` a few times a second and :meth:`is_going_back` before it starts a stream. What
    takes long is done in threads, one at a time for each stream. With ``every_seconds`` it asks for a snapshot of
    each stream, with its source, when the newest is as old, and keeps the ``keep`` newest of those; 0 schedules
    nothing.
    """

    def __init__(
        self,
        store: JobStore,
        *,
        taker: SnapshotTaker,
        restorer: StreamRestorer,
        every_seconds: float = 0.0,
        keep: int = 7,
    ) -> None:
        self._store = store
        self._taker = taker
        self._every = timedelta(seconds=every_seconds)
        self._keep = keep
        self._threads = StreamThreads("snapshot")
        kinds = (restorer.kind(), deletion_kind(store, taker))
        self._runner = StepRunner(store, kinds, self._threads)
        self._going_back: set[str] = set()
        self._scheduled_at: float | None = None

    def look(self, held: Iterable[tuple[StreamRecord, StreamProcess | None, Path]]) -> None:
        """Begin what can be begun for each stream that is ``held``, with its process and the folder of its state.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        streams = {record.name: (record, process, state) for record, process, state in held}

        def find_place(job: Job) -> StreamSite | None:
            """A snapshot is deleted where its files are, and a stream is put back where it is held."""
            if job.kind == DELETION:
                place = job.request["place"]
                is_here = self._taker.is_here(None if place is None else SnapshotPlace(**place))
                return _NOWHERE if is_here else None
            found = streams.get(job.request["stream"])
            return None if found is None else StreamSite(found[2], found[1], found[0].agent)

        jobs = self._runner.look(find_place)
        self._going_back = {job.request["stream"] for job in jobs if job.kind == RESTORE}
        if self._every and self._is_time_to_schedule():
            for record, _, _ in streams.values():
                self._schedule(record)
        snapshots = self._store.list_unfinished_snapshots()
        for snapshot in reversed(snapshots):
            work = self._find_work(snapshot, streams.get(snapshot.stream))
            if work is not None:
                self._threads.begin(snapshot.stream, snapshot.id, work)
        keys = {each.id for each in snapshots} | {each.id for each in jobs}
        self._threads.keep(set(streams), keys)

    def is_going_back(self, stream: str) -> bool:
        """Whether the stream is being put back: it is to be drained, and not started before that has ended."""
        return stream in self._going_back

    def stop(self) -> None:
        """Wait for what is under way, for a bounded time; what is left is begun again by the next agent."""
        self._threads.join(_JOIN_SECONDS)

    def _find_work(
        self, snapshot: SnapshotRecord, held: tuple[StreamRecord, StreamProcess | None, Path] | None
    ) -> Callable[[], object] | None:
        """Return what is to be done about an open snapshot; None where it is another machine's, or waits."""
        if snapshot.state is not SnapshotState.PENDING:
            return partial(self._taker.clear, snapshot) if self._taker.is_here(snapshot.place) else None
        if held is not None:
            _, process, state = held
            running = process if process is not None and process.is_running else None
            # The state of a stream that does not run may be old: it ran elsewhere since. Rows from before the
            # snapshot would then pass for later ones, and a rollback would discard them.
            if snapshot.stream in self._going_back or (snapshot.with_source and running is None):
                return None
            pause = partial(lock_home, state) if running is None else partial(pause_stream, running)
            return partial(self._taker.take, snapshot, state, pause)
        is_over = self._taker.is_here(snapshot.place) and not self._store.get_stream(snapshot.stream).is_living
        return partial(self._taker.abandon, snapshot) if is_over else None

    def _is_time_to_schedule(self) -> bool:
        now = time.monotonic()
        if self._scheduled_at is not None and now - self._scheduled_at < _SCHEDULE_SECONDS:
            return False
        self._scheduled_at = now
        return True

    def _schedule(self, record: StreamRecord) -> None:
        if record.kind is StreamKind.KINESIS:
            return
        stream = record.name
        now = datetime.now(UTC)
        whole = self._store.list_snapshots(
            stream=stream, states=[SnapshotState.COMPLETED], reason=SnapshotReason.SCHEDULED
        )
        if is_overdue(self._store, stream, every=self._every, now=now):
            # A stream that is to end has none.
            with suppress(StreamStateError):
                self._store.create_snapshot(
                    stream, with_source=True, actor=_ACTOR, reason=SnapshotReason.SCHEDULED
                )
        for each in find_surplus(whole, keep=self._keep, now=now):
            # One that a stream is put back to stays, and another may be gone by now.
            with suppress(StreamStateError, StreamSnapshotNotFoundError):
                self._store.delete_snapshot(each.id)


def deletion_kind(store: JobStore, taker: SnapshotTaker) -> StepKind[StreamSite]:
    """Return the kind of job that deletes a snapshot: its files and Pub/Sub snapshots first, its record last."""

    def delete(job: Job, _: StreamSite) -> Done:
        with suppress(StreamSnapshotNotFoundError):
            taker.remove(store.get_snapshot(job.request["snapshot_id"]))
        return Done()

    def end(job: Job) -> None:
        store.end_deletion(job.request["snapshot_id"], error=job.error)

    # Whatever keeps it from its files, such as a bucket's rights, is mended by people within days.
    step = Step("delete", delete, _DELETION_SECONDS, attempts=3, is_slow=True, passing=(Exception,))
    return StepKind(DELETION, (step,), ended=end, keep=KEPT_DELETIONS)


@contextmanager
def pause_stream(process: StreamProcess, *, timeout_seconds: float = LONGEST_PAUSE_SECONDS) -> Iterator[None]:
    """Keep the stream from every commit while the block runs.

    Raises:
        SnapshotRefusedError: it did not pause in time, or the block took longer than the pause: then it may have
            committed meanwhile.
    """
    number = process.pause(timeout_seconds)
    began = time.monotonic()
    try:
        while not _is_paused(process, number):
            if time.monotonic() - began >= timeout_seconds:
                raise SnapshotRefusedError(
                    f"The stream did not pause within {timeout_seconds:g} s. Either a commit took all the "
                    "time, or the stream is starting."
                )
            time.sleep(_POLL_SECONDS)
        yield
        if time.monotonic() - began >= timeout_seconds or not _is_paused(process, number):
            raise SnapshotRefusedError(
                f"The snapshot was not complete when the stream's pause of {timeout_seconds:g} s ended."
            )
    finally:
        process.resume()


def _is_paused(process: StreamProcess, number: int) -> bool:
    found = process.status()
    return found.get("state") == "paused" and found.get("control_number") == number
