"""A stream whose agent is the test, and two replicas that roll it out by a clock that the test moves."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from jobs.store import JobStore
from model.errors import ReleaseNotFoundError
from model.principal import SCOPES, Principal
from model.rollout_record import Rollout, RolloutSide, RolloutState
from model.stream_options import StreamKind
from model.stream_record import StreamState, Wanted
from model.stream_update import StreamUpdate, UpdateState
from rollout.manifests.service import ManifestService
from rollout.rollout_engine import RolloutEngine
from rollout.rollouts import RolloutService
from tests.worlds.update_jobs import advance_update, note_update

ANN = Principal("ann", frozenset(SCOPES))
AGENT = "agent-1"
OLD, NEW = RolloutSide("1.2", {"slots": 2}), RolloutSide("1.3", {"slots": 2, "batch_seconds": 3.0})
TEXT = """\
kind: Rollout
name: faster
stream: backup
from: {release: "1.2", options: {slots: 2}}
to: {release: "1.3", options: {slots: 2}, environment: {REFEED_BACKUP_BATCH_SECONDS: 3}}
strategy: restart
validate: {seconds: 60, min_messages: 10}
"""
UPDATE = TEXT.replace("restart", "update")
HALT = "on_failure: halt\n"
GOOD = {
    "totals": {"messages": 600, "dead_letters": 0, "faults": 0},
    "rates": {"messages": 10.0, "dead_letters": 0.0, "faults": 0.0},
    "rates_over_seconds": 60.0,
}


class Killed(BaseException):
    """What kill -9 is to the lines that follow."""


class Yard:
    """A store whose clock the test moves, a stream whose agent the test is, and two replicas."""

    def __init__(self, path: Path) -> None:
        self.now = datetime(2026, 3, 2, 12, tzinfo=UTC)
        self.store = JobStore(path)
        self.store._database.now = lambda _: self.now  # type: ignore[method-assign]
        self.status: dict[str, Any] = GOOD
        self.lag: float | None = 1.0
        self.rollouts = RolloutService(self.store, check_release=self._check_release)
        self.manifests = ManifestService(self.store, rollouts=self.rollouts)
        self.engines = [
            RolloutEngine(
                self.store,
                read_status=lambda _: self.status,
                read_lag=lambda *_: self.lag,
            )
            for _ in range(2)
        ]
        self.starts = 0
        self.store.launch_stream("backup", StreamKind.BACKUP, actor="ann", release="1.2", options={"slots": 2})
        self.run()

    @staticmethod
    def _check_release(name: str | None) -> None:
        if name not in {None, "1.2", "1.3"}:
            raise ReleaseNotFoundError(f"No agent has a release {name}.")

    def run(self, state: StreamState = StreamState.RUNNING, **given: Any) -> None:
        """Have the agent start the stream, or report it in another state."""
        self.store.take_streams(AGENT, limit=1, lease_seconds=7200)
        self.starts += 1
        self.store.report_stream("backup", AGENT, state, instance_id=f"in_{self.starts}", **given)

    def drain(self) -> None:
        """Have the agent drain what is to be drained."""
        assert self.store.get_stream("backup").wanted is Wanted.DRAINED
        self.store.report_stream("backup", AGENT, StreamState.DRAINED)

    def apply(self, text: str = TEXT) -> Rollout:
        self.manifests.apply("faster", text.encode(), principal=ANN)
        return self.rollout

    @property
    def rollout(self) -> Rollout:
        """The newest one."""
        return self.store.list_rollouts(limit=1)[0]

    def tick(self, seconds: float = 0.0) -> RolloutState:
        """Let time pass and both replicas look, twice; return where the rollout stands."""
        self.now += timedelta(seconds=seconds)
        for engine in self.engines * 2:
            engine.tick()
        return self.rollout.state

    def restart(self, text: str = TEXT) -> None:
        """Bring a restart to WATCHING."""
        self.apply(text)
        assert self.exchange() is RolloutState.WATCHING

    def exchange(self) -> RolloutState:
        """Have the agent end the process of one side and start that of the other."""
        assert self.tick() is RolloutState.DRAINING
        self.drain()
        assert self.tick() is RolloutState.STARTING
        self.run()
        return self.tick()

    def reach(self, step: str, text: str = TEXT) -> None:
        """Bring a restart to a step."""
        if step in {"DRAINING", "STARTING"}:
            self.apply(text)
            self.tick()
        else:
            self.restart(text)
        if step == "STARTING":
            self.drain()
            self.tick()
            self.run(StreamState.STARTING)
        if step == "ROLLING_BACK":
            self.lag = 1000.0
            self.tick(60)
        assert self.rollout.state == step

    def begin_update(self, text: str = UPDATE, **given: Any) -> None:
        """Bring an update to its first process."""
        self.apply(text)
        self.tick()
        note_update(self.store, self.update, instance_id="in_9", **given)

    def make_stable(self, text: str = TEXT) -> Rollout:
        """Bring a restart to its end."""
        self.restart(text)
        assert self.tick(60) is RolloutState.STABLE
        return self.rollout

    def go_back(self) -> RolloutState:
        """Let a restart that goes back do so to its end."""
        assert self.tick() is RolloutState.ROLLING_BACK
        self.drain()
        assert self.tick() is RolloutState.STARTING_BACK
        assert self.side() == OLD
        self.run()
        return self.tick()

    def side(self) -> RolloutSide:
        record = self.store.get_stream("backup")
        return RolloutSide(record.release, record.options)

    @property
    def update(self) -> StreamUpdate:
        return self.store.list_updates("backup")[0]

    def advance(self, *states: UpdateState, **changes: Any) -> StreamUpdate:
        """Have the agent bring the update through ``states``."""
        for state in states:
            advance_update(self.store, self.update, state, **changes)
        return self.update

    def steps(self) -> list[str]:
        return [step.state.value for step in self.rollout.steps]


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    made = Yard(tmp_path / "jobs.db")
    yield made
    made.store.close()
