"""The part of an agent that makes, deletes and schedules snapshots, and puts streams back to them."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from jobs.store import JobStore
from model.errors import RefeedError, SnapshotRefusedError, StreamSnapshotNotFoundError, StreamStateError
from model.stream_options import StreamKind
from model.stream_record import StreamRecord
from model.stream_snapshot import RestoreRecord, SnapshotReason, SnapshotRecord, SnapshotState
from rollout.process import StreamProcess
from rollout.restorer import StreamRestorer
from rollout.snapshot_taker import SnapshotTaker, find_overdue, find_surplus
from streams.control import LONGEST_PAUSE_SECONDS
from streams.lease import lock_home

_log = structlog.get_logger(__name__)

_OPEN: Final = (SnapshotState.PENDING, SnapshotState.DELETING)
_JOIN_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 5.0
_SCHEDULE_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.05
# The actor of what a schedule makes and deletes.
_ACTOR: Final = "agent"


class SnapshotWork:
    """Makes snapshots and restores of the streams that an agent holds, in threads, one at a time for each stream.

    The agent calls :meth:`look` a few times a second and :meth:`is_going_back` before it starts a stream. With
    ``every_seconds`` it asks for a snapshot of each stream, with its source, when the newest is as old, and keeps
    the ``keep`` newest of those; 0 schedules nothing.
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
        self._restorer = restorer
        self._every = timedelta(seconds=every_seconds)
        self._keep = keep
        self._threads: dict[str, threading.Thread] = {}
        self._retry_at: dict[str, float] = {}
        self._restores: dict[str, RestoreRecord] = {}
        self._scheduled_at: float | None = None

    def look(self, held: Iterable[tuple[StreamRecord, StreamProcess | None, Path]]) -> None:
        """Begin what can be begun for each stream that is ``held``, with its process and the folder of its state.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        streams = {record.name: (record, process, state) for record, process, state in held}
        self._restores = {each.stream: each for each in self._store.list_running_restores()}
        if self._every and self._is_time_to_schedule():
            for record, _, _ in streams.values():
                self._schedule(record)
        for snapshot in reversed(self._store.list_snapshots(states=_OPEN)):
            found = streams.get(snapshot.stream)
            if snapshot.state is SnapshotState.DELETING:
                self._begin(snapshot.stream, partial(self._taker.delete, snapshot))
            elif found is not None and snapshot.stream not in self._restores:
                _, process, state = found
                self._begin(snapshot.stream, partial(self._take, snapshot, process, state))
            elif found is None and not self._store.get_stream(snapshot.stream).is_living:
                self._begin(snapshot.stream, partial(self._taker.abandon, snapshot))
        for name, restore in self._restores.items():
            if name in streams:
                _, process, state = streams[name]
                if process is None or not process.is_running:
                    self._begin(name, partial(self._restorer.restore, restore, state))

    def is_going_back(self, stream: str) -> bool:
        """Whether the stream is being put back: it is to be drained, and not started before that has ended."""
        return stream in self._restores

    def stop(self) -> None:
        """Wait for what is under way, for a bounded time; what is left is begun again by the next agent."""
        deadline = time.monotonic() + _JOIN_SECONDS
        for thread in self._threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))

    def _take(self, snapshot: SnapshotRecord, process: StreamProcess | None, state: Path) -> None:
        if process is not None and process.is_running:
            self._taker.take(snapshot, state, partial(pause_stream, process))
        else:
            self._taker.take(snapshot, state, partial(lock_home, state))

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
        made = self._store.list_snapshots(stream=stream)
        if find_overdue(made, every=self._every, now=datetime.now(UTC)):
            # A stream that is to end has none.
            with suppress(StreamStateError):
                self._store.create_snapshot(
                    stream, with_source=True, actor=_ACTOR, reason=SnapshotReason.SCHEDULED
                )
        for each in find_surplus(made, keep=self._keep):
            # One that a stream is put back to stays, and another may be gone by now.
            with suppress(StreamStateError, StreamSnapshotNotFoundError):
                self._store.delete_snapshot(each.id)

    def _is_busy(self, stream: str) -> bool:
        thread = self._threads.get(stream)
        return thread is not None and thread.is_alive()

    def _begin(self, stream: str, work: Callable[[], object]) -> None:
        if self._is_busy(stream) or time.monotonic() < self._retry_at.get(stream, 0.0):
            return
        thread = threading.Thread(target=self._run, args=(stream, work), name=f"snapshot-{stream}", daemon=True)
        self._threads[stream] = thread
        thread.start()

    def _run(self, stream: str, work: Callable[[], object]) -> None:
        try:
            work()
        except (RefeedError, OSError) as exc:
            self._retry_at[stream] = time.monotonic() + _RETRY_SECONDS
            _log.warning("snapshot_work_waits", stream=stream, error=str(exc), retry_seconds=_RETRY_SECONDS)


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
                    f"The stream did not pause within {timeout_seconds:g} s: a commit was under way all the "
                    "time, or it is starting."
                )
            time.sleep(_POLL_SECONDS)
        yield
        if time.monotonic() - began >= timeout_seconds or not _is_paused(process, number):
            raise SnapshotRefusedError(
                f"The snapshot took longer than the stream's pause of {timeout_seconds:g} s."
            )
    finally:
        process.resume()


def _is_paused(process: StreamProcess, number: int) -> bool:
    found = process.status()
    return found.get("state") == "paused" and found.get("control_number") == number
