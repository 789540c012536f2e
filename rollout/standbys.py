"""The processes of updates: standbys, processes that hand a stream over, and leftovers of killed agents."""

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from jobs.lease_owner import LeaseOwner
from jobs.store import JobStore
from model.errors import StreamNotFoundError
from model.stream_record import StreamRecord
from model.stream_update import StreamUpdate, UpdateState
from rollout.child import stop_all
from rollout.process import HeldStream, StreamProcess
from rollout.starter import PreparedStart, StreamStarter
from streams.control import ControlFile
from streams.folder import list_instances
from streams.status import StatusFile

_log = structlog.get_logger(__name__)

_STOP_SECONDS: Final = 30.0
# An orphan costs only memory, so that a rare look is enough.
_ORPHAN_SECONDS: Final = 10.0
# In these states the agent starts no process of the stream by itself.
MOVING: Final = frozenset({UpdateState.ROLLING_BACK, UpdateState.HANDING_OVER, UpdateState.HANDING_BACK})
_HAS_STANDBY: Final = frozenset({UpdateState.STARTING, *MOVING})


@dataclass(frozen=True, slots=True)
class UpdatedStream:
    """A stream that is being updated."""

    record: StreamRecord
    held: HeldStream
    starter: StreamStarter
    state: Path

    @property
    def agent(self) -> str | None:
        """The agent that holds the stream."""
        return self.record.agent

    def status_of(self, instance_id: str | None) -> dict[str, Any]:
        """Return the last status of an instance, also after its end."""
        if instance_id is None:
            return {}
        return StatusFile.read(self.starter.folder(self.record.name, instance_id).status) or {}


class Standbys:
    """Starts, finds and ends the processes of updates, also processes that an earlier agent started.

    A standby belongs to the one update that names its instance. Every agent ends the standbys of its home whose
    update has ended or has another standby by now, also if an agent of another machine holds the stream, because
    that agent can't reach them.
    """

    def __init__(self, store: JobStore, *, now: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._now = now
        self._running: dict[str, StreamProcess] = {}
        # These threads end the processes that have handed over.
        self._leaving: list[threading.Thread] = []
        # Streams for which the search for leftovers of another agent is done.
        self._searched: set[str] = set()
        self._swept_at: float | None = None

    def begin(self, stream: str, prepared: PreparedStart) -> None:
        """Start the stream's standby."""
        self._running[stream] = prepared.start("stand_by")

    def find(self, update: StreamUpdate, place: UpdatedStream) -> StreamProcess | None:
        """Return the process that takes over, whichever agent started it."""
        standby = self._running.get(update.stream)
        if standby is not None and standby.instance_id == update.instance_id:
            return standby
        if update.instance_id is None or (not update.state.is_handing and update.attempts == 0):
            return None
        if place.held.process is not None and place.held.process.instance_id == update.instance_id:
            # Since the hand-over the record names this instance, so the agent holds it as the stream's own
            # process.
            found: StreamProcess | None = place.held.process
        else:
            found = StreamProcess.find(place.starter.folder(update.stream, update.instance_id))
        if found is not None:
            self._running[update.stream] = found
        return found

    @staticmethod
    def find_outgoing(update: StreamUpdate, place: UpdatedStream) -> StreamProcess | None:
        """Return the process that hands the stream over, None after its end."""
        if update.outgoing_id is None:
            return None
        process = place.held.process
        if process is not None and process.instance_id == update.outgoing_id:
            return process
        return StreamProcess.find(place.starter.folder(update.stream, update.outgoing_id))

    def forget(self, stream: str) -> None:
        """Stop tracking the standby: it is the stream's own process now, or has ended."""
        self._running.pop(stream, None)

    def drop(self, stream: str) -> None:
        """End the stream's standby, if it has one."""
        standby = self._running.pop(stream, None)
        if standby is not None:
            standby.kill()

    def leave(self, outgoing: StreamProcess) -> None:
        """Wait for the end of a process that has handed over, and kill it after a timeout."""
        stop = partial(outgoing.stop, seconds=_STOP_SECONDS)
        thread = threading.Thread(target=stop, name=f"outgoing-{outgoing.name}", daemon=True)
        self._leaving = [*(each for each in self._leaving if each.is_alive()), thread]
        thread.start()

    def end_leftovers(self, place: UpdatedStream, update: StreamUpdate | None) -> None:
        """End the processes that no step needs any more, also leftovers of killed agents."""
        name = place.record.name
        if update is None or update.state not in _HAS_STANDBY:
            self.drop(name)
        if name in self._searched:
            return
        self._searched.add(name)
        last = update or next(iter(self._store.list_updates(name)), None)
        if last is None or last.state in _HAS_STANDBY:
            return
        for instance_id in {last.instance_id, last.outgoing_id} - {place.record.instance_id, None}:
            found = StreamProcess.find(place.starter.folder(name, instance_id))
            if found is not None:
                _end_orphan(found)

    def end_orphans(self, home: Path) -> None:
        """End the standbys in ``home`` that no update names any more; looks every ten seconds at most."""
        if self._swept_at is not None and self._now() - self._swept_at < _ORPHAN_SECONDS:
            return
        self._swept_at = self._now()
        found = [
            process
            for folder in list_instances(home)
            if folder.control is not None and ControlFile(folder.control).read().order == "stand_by"
            if (process := StreamProcess.find(folder)) is not None
        ]
        if not found:
            return
        # Read after the processes: an instance is in the store before its process starts.
        living = self._store.list_updates(living=True)
        wanted = {each.instance_id for each in living if each.state in _HAS_STANDBY}
        for process in found:
            if process.instance_id not in wanted:
                _end_orphan(process)

    def let_go(self, held: Iterable[str]) -> None:
        """End the standbys of streams that this agent lost, unless another agent of this machine holds them."""
        names = set(held)
        self._searched &= names
        for name in [each for each in self._running if each not in names]:
            standby = self._running.pop(name)
            owner = None
            with suppress(StreamNotFoundError):
                agent = self._store.get_stream(name).agent
                owner = None if agent is None else LeaseOwner.parse(agent)
            if owner is None or not owner.process.is_here:
                standby.kill()

    def stop(self) -> None:
        """End the standbys; the next agent starts new ones."""
        ends_at = time.monotonic() + _STOP_SECONDS
        stop_all(self._running.values(), seconds=_STOP_SECONDS)
        for thread in self._leaving:
            thread.join(max(0.0, ends_at - time.monotonic()))


def _end_orphan(process: StreamProcess) -> None:
    _log.warning("orphan_ended", stream=process.name, instance=process.instance_id, pid=process.pid)
    process.kill()
