"""Streams as records that two agents keep, each in a home of its own: ended, moved, and put back under load."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from jobs.lease_owner import LeaseOwner
from jobs.store import JobStore
from model.stream_record import StreamRecord, StreamState, Wanted
from model.stream_snapshot import RestoreState, SnapshotRecord, SnapshotState
from model.stream_update import StreamUpdate, UpdateState
from rollout.process import StreamProcess
from streams.folder import StreamFolder
from tests.chaos.lanes import Lane
from tests.chaos.processes import Part, StuckError, kill_pid, suspend
from tests.chaos.service import Service
from tests.chaos.yard import ChaosYard

_PATIENCE_SECONDS: Final = 300.0
_POLL_SECONDS: Final = 0.2
_DRAIN_SECONDS: Final = 120.0
_TRIES: Final = 5
# Longer than an agent holds its streams, which another agent has by then.
_FROZEN_SECONDS: Final = 25.0
# Longer than another agent takes to see that the one before it is dead.
_GONE_SECONDS: Final = 8.0
_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "backup": {"name": "backup", "kind": "backup"},
    "pipeline": {"name": "pipeline", "kind": "pipeline", "options": {"group": "default"}},
}
_UPDATE: Final[dict[str, Any]] = {"validate_seconds": 2, "min_messages": 0}
_ENDED: Final = (StreamState.DRAINED, StreamState.CANCELLED)


class ManagedStream:
    """A stream that agents keep, steered by the API's calls; ``store`` says how it stands."""

    def __init__(self, name: str, yard: ChaosYard, service: Service) -> None:
        self.name = name
        self._yard = yard
        self._service = service

    def record(self) -> StreamRecord | None:
        """Return its record, None before it was launched for the first time."""
        with self.store() as store:
            return next((found for found in store.list_streams() if found.name == self.name), None)

    @contextmanager
    def store(self) -> Iterator[JobStore]:
        """Open the job store for as long as the block lasts."""
        with closing(JobStore(self._yard.home / "jobs.db")) as store:
            yield store

    def ensure(self) -> None:
        """Return once it runs; one that has ended is launched."""
        record = self.record()
        if record is None or record.wanted is not Wanted.RUNNING:
            self._call("post", "/streams", _OPTIONS[self.name], "is launched")
        # Its record says so for a moment longer than it does.
        self.wait(lambda: self._stands_at(StreamState.RUNNING) and self.process() is not None, "runs")

    def wait(self, is_true: Callable[[], bool], what: str, *, seconds: float = _PATIENCE_SECONDS) -> None:
        """Wait until ``is_true``, and keep the agents and the API running until then.

        Raises:
            StuckError: it did not come to that.
        """
        deadline = time.monotonic() + seconds
        while not is_true():
            for part in (*self._yard.agents, self._yard.api):
                part.start()
            if time.monotonic() > deadline or self._yard.over.wait(_POLL_SECONDS):
                raise StuckError(f"{self.name}: not within {seconds:.0f} s: {what}; {self.last_words()}")

    def end(self, verb: str, **body: Any) -> StreamRecord:
        """Have it drained or cancelled, and return its record when it has ended."""
        self._call("post", f"/streams/{self.name}:{verb}", body, f"takes {verb}")
        self.wait(lambda: self._stands_at(*_ENDED), f"has ended after {verb}")
        record = self.record()
        assert record is not None
        return record

    def stop(self) -> int:
        """Let it drain; 0 when it did so within its bound."""
        record = self.end("drain", timeout_seconds=_DRAIN_SECONDS)
        return int(record.state is not StreamState.DRAINED or record.error is not None)

    def change(self, **options: Any) -> None:
        """Give it another pace while it runs."""
        self._call("patch", f"/streams/{self.name}", {"options": options}, "takes another pace")

    def take_snapshot(self, meanwhile: Callable[[], object]) -> str:
        """Have a snapshot made with its source, do ``meanwhile``, and return its id once it is whole.

        One that fails because of something that was killed is made again, as a patient caller would.
        """
        for _ in range(_TRIES):
            made = self._call("post", f"/streams/{self.name}:snapshot", {"with_source": True}, "takes a snapshot")
            meanwhile()
            with self.store() as store:
                found = self._await_snapshot(store, made["id"])
            if found.state is SnapshotState.COMPLETED:
                return found.id
            self._service.say(f"{found.id} of {self.name} is {found.state}: {found.error}")
            self.ensure()
        raise StuckError(f"{self.name}: no snapshot in {_TRIES} tries; {self.last_words()}")

    def _await_snapshot(self, store: JobStore, snapshot_id: str) -> SnapshotRecord:
        self.wait(lambda: store.get_snapshot(snapshot_id).state is not SnapshotState.PENDING, "makes a snapshot")
        return store.get_snapshot(snapshot_id)

    def roll_back(self, snapshot_id: str, meanwhile: Callable[[], object]) -> None:
        """Have it put back to a snapshot, do ``meanwhile``, and return once it is."""
        self._call("post", f"/streams/{self.name}:rollback", {"snapshot": snapshot_id}, "goes back")
        meanwhile()
        with self.store() as store:
            self.wait(lambda: store.list_restores(self.name)[0].state is not RestoreState.RUNNING, "is put back")
            found = store.list_restores(self.name)[0]
        if found.state is not RestoreState.SUCCEEDED:
            raise StuckError(f"{self.name}: the rollback to {snapshot_id} is {found.state}: {found.error}")

    def update(self, meanwhile: Callable[[], object]) -> StreamUpdate:
        """Have it handed over to the same release, do ``meanwhile``, and return the update when it has ended.

        One that waits for a person is approved.
        """
        self._call("post", f"/streams/{self.name}:update", _UPDATE, "is updated")
        meanwhile()
        with self.store() as store:
            self.wait(lambda: self._is_updated(store.list_updates(self.name)[0]), "is updated")
            return store.list_updates(self.name)[0]

    def _is_updated(self, update: StreamUpdate) -> bool:
        if update.state is UpdateState.INCONCLUSIVE:
            self._call("post", f"/updates/{update.id}:approve", {}, "is approved")
        return update.state.is_ended

    def process(self) -> StreamProcess | None:
        """Return its process, whichever home it is in; None while it has none."""
        record = self.record()
        if record is None or record.home is None or record.instance_id is None:
            return None
        return StreamProcess.find(StreamFolder(Path(record.home.path), record.instance_id))

    def last_words(self) -> str:
        """Return how it stands and the last lines of its logs and of its agents'."""
        logs = [part.home / "logs" / f"{self.name}.log" for part in self._yard.agents]
        tails = [f"{log} ends:\n{log.read_text(errors='replace')[-2000:]}" for log in logs if log.exists()]
        return "\n".join([str(self.record()), *(part.last_words() for part in self._yard.agents), *tails])

    def _stands_at(self, *states: StreamState) -> bool:
        record = self.record()
        return record is not None and record.state in states

    def _call(self, method: str, path: str, body: dict[str, Any], what: str) -> dict[str, Any]:
        def call() -> dict[str, Any]:
            answer = self._yard.client.request(method, path, json=body, timeout=60)
            # A conflict is a call that was taken and whose answer was lost.
            if answer.status_code != httpx.codes.CONFLICT:
                answer.raise_for_status()
            found: dict[str, Any] = answer.json()
            return found

        answered: dict[str, Any] = self._service.keep_trying(call, httpx.HTTPError, f"{self.name} {what}")
        return answered


@dataclass
class AgentLane(Lane):
    """Two agents of one job store and what they keep; both homes are on this machine."""

    def __post_init__(self) -> None:
        service = Service(self.yard, self.over, self.say)
        self.streams = [ManagedStream(name, self.yard, service) for name in self.yard.stream_names]
        self._snapshots: dict[str, list[str]] = {stream.name: [] for stream in self.streams}

    def act(self, harm: str) -> None:
        self._ensure()
        self.pause(0.0, 3.0)
        super().act(harm)
        self._ensure()
        homes = {
            stream.name: record.home.path for stream in self.streams if (record := stream.record()) and record.home
        }
        self.say(f"after {harm}: {homes}")

    def keep(self) -> None:
        for agent in self.yard.agents:
            agent.start()

    def kill(self, what: str) -> None:
        stream = self.dice.choice(self.streams)
        match what:
            case "agent":
                # At once it finds its streams' processes; later the other agent has them, in its own home.
                agent = self._holder(stream)
                kill_pid(agent.pid)
                self.pause(0.0, self.dice.choice([0.0, _GONE_SECONDS]))
                agent.start()
            case "machine":
                self._kill_machine(self._holder(stream))
            case "stream":
                self._kill_process(stream)
            case "snapshot":
                self._keep_snapshot(stream, meanwhile=lambda: self._kill_one_of(stream))
            case "rollback":
                stream.roll_back(self._some_snapshot(stream), lambda: self._kill_one_of(stream))
            case "update":
                # Spark takes seconds to start: what is killed may be the old process, the new one or their agent.
                self._update(stream, lambda: (self.pause(0.0, 15.0), self._kill_one_of(stream)))

    def suspend(self, _: str) -> None:
        agent = self._holder(self.dice.choice(self.streams))
        suspend([agent.pid], _FROZEN_SECONDS, self.over)

    def move(self, _: str) -> None:
        # Told to stop it drains its streams, and the other agent has them at once.
        agent = self._holder(self.dice.choice(self.streams))
        if agent.stop() != 0:
            raise StuckError(f"{agent.name} did not stop as it should; {agent.last_words()}")

    def snapshot(self, _: str) -> None:
        self._keep_snapshot(self.dice.choice(self.streams))

    def rollback(self, _: str) -> None:
        stream = self.dice.choice(self.streams)
        snapshot_id = self._some_snapshot(stream)
        # What was acknowledged since then comes again.
        self.pause(3.0, 10.0)
        stream.roll_back(snapshot_id, lambda: None)

    def update(self, _: str) -> None:
        self._update(self.dice.choice(self.streams), lambda: None)

    def end(self, verb: str) -> None:
        stream = self.dice.choice(self.streams)
        bound = {"timeout_seconds": self.dice.choice([0.0, 1.0, 60.0])} if verb == "drain" else {}
        record = stream.end(verb, **bound)
        self.say(f"{stream.name} is {record.state}, {bound}, {record.error}")

    def change(self, _: str) -> None:
        self.dice.choice(self.streams).change(batch_seconds=self.dice.choice([0.2, 1.0, 2.0]))

    def _ensure(self) -> None:
        for stream in self.streams:
            stream.ensure()

    def _holder(self, stream: ManagedStream) -> Part:
        """Return the agent that holds the stream; it runs."""
        found: list[Part] = []

        def is_held() -> bool:
            record = stream.record()
            owner = LeaseOwner.parse(record.agent or "") if record is not None else None
            pid = None if owner is None else owner.process.pid
            found[:] = [part for part in self.yard.agents if part.is_running and part.pid == pid]
            return bool(found)

        stream.wait(is_held, "is held by an agent")
        return found[0]

    def _kill_machine(self, agent: Part) -> None:
        """End an agent and all that it started, as a machine that loses its power does."""
        held = [stream for stream in self.streams if self._holder(stream) is agent]
        kill_pid(agent.pid)
        for stream in held:
            self._kill_process(stream)

    def _kill_process(self, stream: ManagedStream) -> None:
        process = stream.process()
        if process is not None:
            process.kill()

    def _kill_one_of(self, stream: ManagedStream) -> None:
        """Kill the stream's process or its agent, a moment after something was asked of them."""
        self.pause(0.0, 2.0)
        if self.dice.random() < 0.5:
            self._kill_process(stream)
        else:
            agent = self._holder(stream)
            kill_pid(agent.pid)

    def _update(self, stream: ManagedStream, meanwhile: Callable[[], object]) -> None:
        found = stream.update(meanwhile)
        self.say(f"{found.id} of {stream.name} is {found.state}, pause {found.paused_seconds}, {found.error}")

    def _some_snapshot(self, stream: ManagedStream) -> str:
        if not self._snapshots[stream.name]:
            self._keep_snapshot(stream)
        return self.dice.choice(self._snapshots[stream.name])

    def _keep_snapshot(self, stream: ManagedStream, meanwhile: Callable[[], object] = lambda: None) -> None:
        snapshot_id = stream.take_snapshot(meanwhile)
        self.say(f"{snapshot_id} of {stream.name}")
        self._snapshots[stream.name].append(snapshot_id)
