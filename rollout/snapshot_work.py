"""The part of an agent that makes, deletes, schedules and restores snapshots."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from jobs.steps import Done, Step, StepKind, StepRun, StepRunner
from jobs.store import DELETION, RESTORE, SNAPSHOT, Job, JobStore
from jobs.stream_threads import StreamThreads
from model.errors import SnapshotRefusedError, StreamSnapshotNotFoundError, StreamStateError
from model.stream_options import StreamKind
from model.stream_record import StreamRecord
from model.stream_snapshot import SnapshotPlace, SnapshotReason, SnapshotState
from rollout.process import StreamProcess
from rollout.restorer import StreamRestorer, StreamSite
from rollout.snapshot_taker import SnapshotTaker, find_overdue, find_surplus
from streams.control import LONGEST_PAUSE_SECONDS
from streams.lease import lock_home

_log = structlog.get_logger(__name__)

_JOIN_SECONDS: Final = 10.0
_SCHEDULE_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.05
# Longer than the upload of a stream's state to a bucket takes.
_SNAPSHOT_SECONDS: Final = 3600.0
_DELETION_SECONDS: Final = 86400.0
KEPT_JOBS: Final = 1000
_NOWHERE: Final = StreamSite(None, None)
# The actor of scheduled snapshots and of their deletion.
_ACTOR: Final = "agent"


class SnapshotWork:
    """Makes, deletes and restores snapshots of the streams that an agent holds.

    The agent calls :meth:`look` a few times a second, and :meth:`is_going_back` before it starts a stream. Slow
    work runs in threads, one at a time for each stream. Every ``every_seconds`` it requests a snapshot with source
    of each stream, and keeps the ``keep`` newest of these; 0 schedules nothing.
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
        kinds = (restorer.kind(), snapshot_kind(store, taker), deletion_kind(store, taker))
        self._runner = StepRunner(store, kinds, self._threads)
        self._going_back: set[str] = set()
        self._scheduled_at: float | None = None

    def look(
        self,
        held: Iterable[tuple[StreamRecord, StreamProcess | None, Path]],
        ended: Collection[str] = (),
    ) -> None:
        """Begin the work that can begin now; ``held`` has each held stream with its process and state folder.

        ``ended`` are the names of streams that have ended: no agent holds them, and no snapshot of them is made.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        streams = {record.name: (record, process, state) for record, process, state in held}
        if self._every and self._is_time_to_schedule():
            kinds = {name: record.kind for name, (record, _, _) in streams.items()}
            self._schedule([name for name, kind in kinds.items() if kind is not StreamKind.KINESIS])
        jobs = self._runner.list_jobs()
        self._going_back = {_stream_of(job) for job in jobs if job.kind == RESTORE}

        def find_place(job: Job) -> StreamSite | None:
            """Return the place of the files for a deletion, and the place of the held stream otherwise."""
            if job.kind == DELETION:
                return _NOWHERE if self._is_here(job.request["place"]) else None
            found = streams.get(_stream_of(job))
            if found is not None:
                record, process, state = found
                site = StreamSite(state, process, record.agent)
                return site if job.kind == RESTORE or self._can_be_taken(job, site) else None
            is_over = job.kind == SNAPSHOT and _stream_of(job) in ended
            return _NOWHERE if is_over and self._is_here(job.memory.get("place")) else None

        self._runner.look(jobs, find_place)
        self._threads.keep(set(streams), {each.id for each in jobs})

    def is_going_back(self, stream: str) -> bool:
        """Whether the stream is being restored: the agent drains it, and starts it after the restore."""
        return stream in self._going_back

    def stop(self) -> None:
        """Wait for running work, for a bounded time; the next agent begins the rest again."""
        self._threads.join(_JOIN_SECONDS)

    def _can_be_taken(self, job: Job, site: StreamSite) -> bool:
        # The state of a stopped stream may be old, if the stream has run elsewhere since. Rows from before the
        # snapshot would then count as later rows, and a rollback would discard them.
        has_to_run = job.request["with_source"] and not site.is_running
        return _stream_of(job) not in self._going_back and not has_to_run

    def _is_here(self, place: dict[str, str] | None) -> bool:
        return self._taker.is_here(None if place is None else SnapshotPlace(**place))

    def _is_time_to_schedule(self) -> bool:
        now = time.monotonic()
        if self._scheduled_at is not None and now - self._scheduled_at < _SCHEDULE_SECONDS:
            return False
        self._scheduled_at = now
        return True

    def _schedule(self, streams: Collection[str]) -> None:
        now = datetime.now(UTC)
        surplus = self._store.find_surplus_streams(keep=self._keep)
        for stream in find_overdue(self._store, every=self._every, now=now).intersection(streams):
            # No snapshot is made of a stream that is to end.
            with suppress(StreamStateError):
                self._store.create_snapshot(
                    stream, with_source=True, actor=_ACTOR, reason=SnapshotReason.SCHEDULED
                )
        for stream in surplus.intersection(streams):
            whole = self._store.list_snapshots(
                stream=stream, states=[SnapshotState.COMPLETED], reason=SnapshotReason.SCHEDULED
            )
            for each in find_surplus(whole, keep=self._keep, now=now):
                # A snapshot that is being restored stays; another one may be gone by now.
                with suppress(StreamStateError, StreamSnapshotNotFoundError):
                    self._store.delete_snapshot(each.id)


def pause_site(site: StreamSite) -> AbstractContextManager[object]:
    """Return a context that keeps a stream from committing: a pause, or a lock of its home if it does not run."""
    if site.process is not None and site.is_running:
        return pause_stream(site.process)
    assert site.state is not None, "an agent holds it"
    return lock_home(site.state)


def snapshot_kind(
    store: JobStore,
    taker: SnapshotTaker,
    pause: Callable[[StreamSite], AbstractContextManager[object]] = pause_site,
) -> StepKind[StreamSite]:
    """Return the kind of job that makes a snapshot; the snapshot is COMPLETED or FAILED when the job ends."""

    def make(run: StepRun[StreamSite]) -> Done:
        # The memory has "made" if a run completed the snapshot and was killed before the job ended.
        if "made" not in run.job.memory:
            state = run.place.state
            if state is None:
                raise SnapshotRefusedError(f"{_stream_of(run.job)} ended before the snapshot was made.")
            taker.take(run, state, partial(pause, run.place))
        return Done()

    def end(job: Job) -> None:
        ended = store.end_snapshot(job)
        facts = {"stream": ended.stream, "snapshot": ended.id}
        if job.error is None:
            sizes = {"bytes": ended.size_bytes, "seconds_paused": ended.seconds_paused}
            _log.info("snapshot_made", **facts, subscriptions=len(ended.sources), **sizes)
        else:
            _log.error("snapshot_failed", **facts, code=job.error.code, error=job.error.message)
        what = f"snapshot {ended.id} {'made' if job.error is None else 'failed'}"
        why = None if job.error is None else str(job.error)
        store.note_stream(ended.stream, actor=_ACTOR, what=what, why=why, snapshot=ended.id)

    step = Step("make", make, _SNAPSHOT_SECONDS, attempts=3, is_slow=True)
    return StepKind(SNAPSHOT, (step,), ended=end, keep=KEPT_JOBS)


def deletion_kind(store: JobStore, taker: SnapshotTaker) -> StepKind[StreamSite]:
    """Return the kind of job that deletes a snapshot: its files and Pub/Sub snapshots first, its record last.

    For a FAILED snapshot it deletes the leftovers, and the record stays. Leftovers on another machine have their
    own job, which deletes nothing else.
    """

    def delete(run: StepRun[StreamSite]) -> Done:
        request = run.job.request
        if "run" in request:
            taker.remove_files(request["stream"], request["run"])
        else:
            with suppress(StreamSnapshotNotFoundError):
                taker.remove(store.get_snapshot(request["snapshot_id"]))
        return Done()

    # Any error can be transient: people repair, for example, the permissions of a bucket within days.
    step = Step("delete", delete, _DELETION_SECONDS, attempts=3, is_slow=True, passing=(Exception,))
    return StepKind(DELETION, (step,), ended=store.end_deletion, keep=KEPT_JOBS)


@contextmanager
def pause_stream(process: StreamProcess, *, timeout_seconds: float = LONGEST_PAUSE_SECONDS) -> Iterator[None]:
    """Keep the stream from committing while the block runs.

    Raises:
        SnapshotRefusedError: the stream did not pause in time; or the block took longer than the pause, and the
            stream may have committed meanwhile.
    """
    number = process.pause(timeout_seconds)
    began = time.monotonic()
    try:
        while not _is_paused(process, number):
            if time.monotonic() - began >= timeout_seconds:
                raise SnapshotRefusedError(
                    f"The stream did not pause within {timeout_seconds:g} s. A commit took too long, or the "
                    f"stream is still starting."
                )
            time.sleep(_POLL_SECONDS)
        yield
        if time.monotonic() - began >= timeout_seconds or not _is_paused(process, number):
            raise SnapshotRefusedError(
                f"The snapshot took longer than the stream's pause of {timeout_seconds:g} s."
            )
    finally:
        process.resume(number)


def _is_paused(process: StreamProcess, number: int) -> bool:
    found = process.status()
    return found.get("state") == "paused" and found.get("control_number") == number


def _stream_of(job: Job) -> str:
    return str(job.request["stream"])
