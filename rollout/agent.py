"""The agent: runs one process for each stream, and keeps it in the state that the job store asks for."""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from socket import gethostname
from typing import Any, Final

import structlog

from jobs.lease_owner import LeaseOwner
from jobs.store import JobStore
from model.errors import LeaseLostError, ProcessEndedError, RefeedError
from model.fault import FaultRecord
from model.stream import AgentReport
from model.stream_record import (
    StreamHome,
    StreamRecord,
    StreamState,
    Wanted,
    new_instance_id,
)
from rollout.child import STOP_SECONDS, stop_all
from rollout.process import HeldStream, StreamProcess
from rollout.releases import Releases
from rollout.snapshot_work import SnapshotWork
from rollout.starter import StreamStarter
from rollout.stream_reports import StreamReports
from rollout.update_work import UpdateWork
from streams.control import BatchPace
from streams.folder import StreamFolder

_log = structlog.get_logger(__name__)

LEASE_SECONDS: Final = 20.0
# Renewals within the duration of one lease: a failed or late renewal loses nothing.
_RENEWALS: Final = 4
# Seconds before a dead stream is started again: the first time, the second time, and so on.
WAITS_SECONDS: Final = (1.0, 5.0, 25.0, 60.0)
# A stream that has run for this long is healthy: its next restart waits for the shortest time again.
_HEALTHY_SECONDS: Final = 120.0
# Time that a drained stream has after its drain timeout, which includes a start of Spark; and a cancelled one.
_DRAIN_GRACE_SECONDS: Final = 60.0
_CANCEL_GRACE_SECONDS: Final = 15.0
# Folders of earlier starts that are kept: the status in each shows how that process ended.
_KEPT_INSTANCES: Final = 3

_STATES: Final[Mapping[str, StreamState]] = {
    "starting": StreamState.STARTING,
    "running": StreamState.RUNNING,
    "paused": StreamState.RUNNING,
    "waiting": StreamState.WAITING,
    "draining": StreamState.DRAINING,
}


class Agent:
    """Starts, steers and ends the processes of the streams that it holds, one step for each stream in each look.

    The agent takes living streams that no agent holds, ``places`` at most, under a lease that expires by the clock
    of the store. A second agent is a standby: it takes the streams when the lease expires. The lease is no fencing
    token: an agent that was frozen and has lost a stream ends the process when it wakes up. Until then the
    stream's own lease and epoch, which are kept beside its tables, keep the two processes apart. After an agent is
    killed, its processes go on under the next agent of this machine. A stream runs with the release in its record.
    While this home does not have that release, the stream is FAILED, and the agent tries again.

    ``environment`` is the environment of the processes. ``say`` receives each event as a sentence for people.
    """

    def __init__(
        self,
        store: JobStore,
        *,
        environment: Mapping[str, str],
        places: int,
        lease_seconds: float = LEASE_SECONDS,
        say: Callable[[str], None] = lambda _: None,
        now: Callable[[], float] = time.monotonic,
        command: Callable[[StreamRecord, str], Sequence[str]] | None = None,
        snapshots: SnapshotWork | None = None,
        updates: UpdateWork | None = None,
        reports: StreamReports | None = None,
    ) -> None:
        self.owner = str(LeaseOwner.current())
        self._store = store
        self._starter = StreamStarter(environment, command=command)
        self._settings = self._starter.settings
        self._places = places
        self._lease_seconds = lease_seconds
        self._say = say
        self._now = now
        self._releases = Releases(self._settings.home)
        self._snapshots = snapshots
        self._updates = updates
        self._reports = reports
        self._kept: dict[str, HeldStream] = {}
        # Children of this agent that another agent of this machine has taken over, until they have ended.
        self._left: list[StreamProcess] = []
        # The installed version can change while this process runs.
        self._version = version("refeed")
        self._renewed_at: float | None = None
        self._reported: AgentReport | None = None

    def __iter__(self) -> Iterator[StreamProcess]:
        """Yield the processes that run."""
        found = [kept.process for kept in self._kept.values() if kept.process is not None]
        return iter([process for process in found if process.is_running])

    def look(self) -> list[ProcessEndedError]:
        """Move each held stream one step towards its desired state; return the processes that died since.

        A fault of one stream does not stop the steps of the others.

        Raises:
            StoreUnavailableError: the store does not answer; the processes continue.
        """
        self._left = [process for process in self._left if process.is_running]
        self._renew_when_due()
        self._store.take_streams(self.owner, limit=self._places, lease_seconds=self._lease_seconds)
        records = {record.name: record for record in self._store.list_streams()}
        if self._reports is not None:
            self._reports.follow(name for name, record in records.items() if record.agent == self.owner)
        for name in list(self._kept):
            if records[name].agent != self.owner:
                self._let_go(records[name])
        # A stream that was just taken may still have a process of an earlier agent.
        held = [record for record in records.values() if record.agent == self.owner and record.name in self._kept]
        if self._updates is not None:
            self._updates.look([(record, self._kept[record.name]) for record in held], self._starter)
            # A hand-over has changed the records of its streams.
            records |= {
                record.name: self._store.get_stream(record.name)
                for record in held
                if self._updates.has_changed(record.name)
            }
        if self._snapshots is not None:
            self._snapshots.look(
                [(record, self._kept[record.name].process, self._state_of(record)) for record in held],
                {record.name for record in records.values() if not record.is_living},
            )
        died = []
        for record in records.values():
            if record.agent == self.owner:
                try:
                    died += self._keep(record)
                except LeaseLostError:
                    self._let_go(self._store.get_stream(record.name))
                except (RefeedError, OSError) as exc:
                    _log.warning("stream_not_kept", stream=record.name, error=str(exc))
        return died

    def stop(self, *, seconds: float = STOP_SECONDS) -> None:
        """Drain all processes at once, kill those that need more than ``seconds``, and release the streams.

        The desired state of the streams does not change.
        """
        with ExitStack() as stack:
            stack.callback(self._store.remove_agent_report, self.owner)
            stack.callback(self._store.release_streams, self.owner)
            if self._reports is not None:
                stack.callback(self._reports.stop)
            if self._snapshots is not None:
                stack.callback(self._snapshots.stop)
            if self._updates is not None:
                stack.callback(self._updates.stop)
            processes = list(self)
            for process in processes:
                stack.callback(self._report_stopped, process.name)
            stack.callback(stop_all, processes, seconds=seconds)

    def _renew_when_due(self) -> None:
        now = self._now()
        report = self._describe()
        is_due = self._renewed_at is None or now - self._renewed_at >= self._lease_seconds / _RENEWALS
        if is_due or report != self._reported:
            # At once after a release was added: a launch that names the release may follow.
            self._store.put_agent_report(report)
            self._reported = report
        if not is_due:
            return
        self._store.renew_streams(self.owner, self._lease_seconds)
        for agent in self._store.list_agents():
            owner = LeaseOwner.parse(agent)
            if owner is not None and owner.is_dead:
                # That agent is dead: its streams need not wait until its lease expires.
                self._store.release_streams(agent)
        self._renewed_at = now

    def _describe(self) -> AgentReport:
        releases = [release.to_json() for release in self._releases.list_readable()]
        return AgentReport(self.owner, gethostname(), str(self._settings.home), self._version, releases)

    def _let_go(self, record: StreamRecord) -> None:
        """End the process of a stream that this agent no longer holds, unless another one here goes on with it."""
        kept = self._kept.pop(record.name, None)
        if kept is None or kept.process is None:
            return
        owner = None if record.agent is None else LeaseOwner.parse(record.agent)
        is_adopted = owner is not None and owner.process.is_here
        if is_adopted and record.instance_id == kept.process.instance_id:
            self._left.append(kept.process)
            return
        if kept.process.is_running:
            _log.warning("stream_lost", stream=record.name, agent=record.agent)
        kept.process.kill()

    def _keep(self, record: StreamRecord) -> list[ProcessEndedError]:
        kept = self._kept.get(record.name)
        if kept is None:
            kept = self._kept[record.name] = HeldStream(process=self._find(record), started_at=self._now())
        process = kept.process
        if self._updates is not None and self._updates.is_handing(record.name):
            self._report(record, StreamState.UPDATING, record.error)
            return []
        is_stopped = (self._snapshots is not None and self._snapshots.is_going_back(record.name)) or (
            self._updates is not None and self._updates.is_stopping(record.name)
        )
        if process is not None and process.is_running:
            is_drained = is_stopped and record.wanted is Wanted.RUNNING
            self._steer(kept, process, record, Wanted.DRAINED if is_drained else record.wanted)
            return []
        if record.wanted is not Wanted.RUNNING:
            self._end(process, record)
            return []
        if is_stopped or (self._updates is not None and self._updates.is_moving(record.name)):
            # The stream starts after its state is restored, or in a later step of the update.
            if process is not None:
                process.kill()
                kept.process, kept.start_at = None, 0.0
            return []
        if process is not None:
            return [self._note_death(kept, process, record)]
        if self._now() >= kept.start_at:
            self._start(kept, record)
        return []

    def _find(self, record: StreamRecord) -> StreamProcess | None:
        """Return the process of the stream that an earlier agent of this home started, if it still runs."""
        if record.instance_id is None:
            return None
        found = StreamProcess.find(StreamFolder.of(self._settings.home, record.name, record.instance_id))
        if found is not None:
            # The earlier agent may have paused it, and can't resume it any more.
            found.resume()
            self._say(f"going on with {record.name} (process {found.pid})")
        return found

    def _start(self, kept: HeldStream, record: StreamRecord) -> None:
        # This holds if one of the next lines fails.
        kept.start_at = self._now() + WAITS_SECONDS[1]
        instance_id = new_instance_id()
        try:
            prepared = self._starter.prepare(record, instance_id)
        except RefeedError as exc:
            kept.start_at = self._now() + self._next_wait(kept)
            self._report(record, StreamState.FAILED, FaultRecord.of(exc))
            return
        folder = prepared.folder
        home = StreamHome(gethostname(), str(folder.state))
        # Written first: if this agent is killed now, the next agent finds the process by its instance id.
        report = partial(self._store.report_stream, record.name, self.owner, StreamState.STARTING)
        report(instance_id=instance_id, home=home, error=record.error)
        _remove_old(folder)
        self._say(f"starting {record.name}")
        kept.process = prepared.start()
        kept.started_at, kept.kill_at = self._now(), None

    def _state_of(self, record: StreamRecord) -> Path:
        return StreamFolder.of(self._settings.home, record.name).state

    def _steer(self, kept: HeldStream, process: StreamProcess, record: StreamRecord, wanted: Wanted) -> None:
        """Write the order for the desired state, report the process's state, and kill a process that is late."""
        before = process.control.number
        if wanted is Wanted.RUNNING:
            process.keep_pace(self._pace(kept, record))
            status = process.status()
            state = _STATES.get(str(status.get("state")), record.state)
            if self._updates is not None and self._updates.is_shown(record.name):
                state = StreamState.UPDATING
            elif state is StreamState.UPDATING:
                state = StreamState.RUNNING
            self._report(record, state, _fault_of(status.get("error")))
            self._starter.logs.rotate(record.name, process.instance_id)
            return
        is_drain = wanted is Wanted.DRAINED
        bound = record.drain_timeout_seconds if is_drain else None
        grace = record.drain_timeout_seconds + _DRAIN_GRACE_SECONDS if is_drain else _CANCEL_GRACE_SECONDS
        try:
            process.order("drain" if is_drain else "cancel", timeout_seconds=bound)
        except OSError as exc:
            # With a full disk the process gets no order, and is killed when it is late.
            _log.warning("order_not_written", stream=record.name, error=str(exc))
        if kept.kill_at is None or process.control.number != before:
            kept.kill_at = self._now() + grace
        self._report(record, StreamState.DRAINING, record.error)
        if self._now() >= kept.kill_at:
            _log.warning("stream_killed", stream=record.name, wanted=wanted.value)
            process.kill()

    def _end(self, process: StreamProcess | None, record: StreamRecord) -> None:
        """Report the end that was requested, with the messages that were not committed, and release the stream."""
        status: Mapping[str, Any] = {}
        if process is not None:
            process.kill()
            status = process.status()
        left = status.get("not_committed")
        why = f"{left:,} messages were not committed. Pub/Sub delivers them again." if left else None
        state = StreamState.DRAINED if record.wanted is Wanted.DRAINED else StreamState.CANCELLED
        self._store.report_stream(record.name, self.owner, state, error=_fault_of(status.get("error")), why=why)
        self._kept.pop(record.name, None)
        self._say(f"{record.name} is {state}" + (f": {why}" if why else ""))

    def _note_death(self, kept: HeldStream, process: StreamProcess, record: StreamRecord) -> ProcessEndedError:
        """Plan the next start of the stream, each time a little later."""
        now = self._now()
        if now - kept.started_at >= _HEALTHY_SECONDS:
            kept.deaths = 0
        wait = self._next_wait(kept)
        kept.start_at, kept.process = now + wait, None
        ended = process.ended_error()
        # Child processes that still run would keep the stream's locks.
        process.kill()
        status = process.status()
        fault = _fault_of(status.get("error")) if status.get("state") in {"failed", "stopped"} else None
        code = ended.details.get("exit_code")
        said = FaultRecord(
            ended.code,
            f"The process of {record.name} ended with exit code {code}. The stream's log has the reason.",
        )
        self._report(record, StreamState.FAILED, fault or said)
        self._say(f"{ended.message}\nstarting {record.name} again in {wait:.0f} s")
        return ended

    def _next_wait(self, kept: HeldStream) -> float:
        """Return the seconds until the next start, longer with each one that failed."""
        kept.deaths += 1
        return WAITS_SECONDS[min(kept.deaths, len(WAITS_SECONDS)) - 1]

    def _report(self, record: StreamRecord, state: StreamState, error: FaultRecord | None) -> None:
        if (record.state, record.error) != (state, error):
            self._store.report_stream(record.name, self.owner, state, error=error)

    def _report_stopped(self, name: str) -> None:
        record = self._store.get_stream(name)
        if record.agent == self.owner and record.wanted is Wanted.RUNNING:
            why = "The stream's agent was stopped."
            self._store.report_stream(name, self.owner, StreamState.STARTING, error=record.error, why=why)

    def _pace(self, kept: HeldStream, record: StreamRecord) -> BatchPace:
        """Return the pace in the record's options, with the deployment's settings for options that are not set."""
        if kept.version != record.version:
            kept.pace, kept.version = self._starter.pace(record), record.version
        return kept.pace


def _fault_of(error: Any) -> FaultRecord | None:
    if not isinstance(error, dict):
        return None
    return FaultRecord(str(error.get("code", "")), str(error.get("message", ""))).shown()


def _remove_old(folder: StreamFolder) -> None:
    """Remove the folders of all but the last few starts; instance ids sort by their time."""
    instances: list[Path] = sorted(folder.run.parent.glob("*"))
    for old in instances[:-_KEPT_INSTANCES]:
        shutil.rmtree(old, ignore_errors=True)
