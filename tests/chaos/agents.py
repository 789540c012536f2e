"""Streams as records that two agents keep, each in a home of its own: ended, moved, and put back under load."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from jobs.lease_owner import LeaseOwner
from tests.chaos.lanes import Lane
from tests.chaos.managed import ManagedStream
from tests.chaos.processes import Part, StuckError, kill_pid, suspend
from tests.chaos.rollouts import StreamRollouts, armed
from tests.chaos.service import Service

# Longer than an agent holds its streams, which another agent has by then.
_FROZEN_SECONDS: Final = 25.0
# Longer than another agent takes to see that the one before it is dead.
_GONE_SECONDS: Final = 8.0


@dataclass
class AgentLane(Lane):
    """Two agents of one job store and what they keep; both homes are on this machine."""

    def __post_init__(self) -> None:
        service = Service(self.yard, self.over, self.say)
        self.streams = [ManagedStream(name, self.yard, service) for name in self.yard.stream_names]
        self._snapshots: dict[str, list[str]] = {stream.name: [] for stream in self.streams}
        self._rollouts = StreamRollouts(self.yard, self.dice, self.say)

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

    def failpoint(self, name: str) -> None:
        stream = self.dice.choice(self.streams)
        if name.startswith(("snapshot.", "deletion.", "restore.")):
            snapshot_id = self._some_snapshot(stream)
            with armed(self.yard.agents, name) as hit:
                if name.startswith("snapshot."):
                    self._keep_snapshot(stream)
                elif name.startswith("deletion."):
                    self._snapshots[stream.name].remove(snapshot_id)
                    stream.delete_snapshot(snapshot_id)
                else:
                    stream.roll_back(snapshot_id, lambda: None)
        else:
            hit = self._rollouts.pass_place(self.streams, name)
        self.note(hit[0] if hit else self.yard.agents[0], name, is_hit=bool(hit))

    def rollout(self, strategy: str) -> None:
        self._rollouts.roll_out(self._stream_for(strategy), strategy)

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
            case "rollout":
                strategy = self.dice.choice(self._rollouts.strategies(stream))
                self._rollouts.roll_out(stream, strategy, lambda: self._kill_in_rollout(stream))

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

    def _kill_in_rollout(self, stream: ManagedStream) -> None:
        """Kill the stream's process, its agent or the service, at a moment of a rollout that the dice choose."""
        self.pause(0.0, 30.0)
        if self.dice.random() < 0.3:
            self.yard.api.kill()
        else:
            self._kill_one_of(stream)

    def _stream_for(self, strategy: str) -> ManagedStream:
        return self.dice.choice([each for each in self.streams if strategy in self._rollouts.strategies(each)])

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
