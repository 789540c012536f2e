"""Agents as processes: one is killed, and its stream goes on under the next one, from launch to drain."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from jobs.store import open_store
from model.principal import STREAMS_OPERATE, STREAMS_READ, Principal
from model.stream_record import StreamRecord, StreamState
from rollout.child import Child
from rollout.process import StreamProcess
from rollout.request import StreamLaunch
from rollout.service import StreamService
from streams.folder import StreamFolder
from tests.acceptance.conftest import Backyard
from tests.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.kills, pytest.mark.timeout(1200)]
ANN = Principal("ann", frozenset({STREAMS_READ, STREAMS_OPERATE}))


@dataclass
class Agents:
    """The backyard's streams by the service's calls, and agents for them."""

    yard: Backyard
    service: StreamService

    def start(self) -> Child:
        name = f"agent-{len(list(self.yard._children))}"
        command = [sys.executable, "-m", "cli.main", "agent"]
        log = self.yard.home / "logs" / f"{name}.log"
        return self.yard._children.start(Child(name, command, environment=self.yard.environment, log=log))

    def record(self) -> StreamRecord:
        return self.service.get("backup", principal=ANN)

    def process(self) -> StreamProcess | None:
        return StreamProcess.find(StreamFolder.of(self.yard.home, "backup", self.record().instance_id))

    def wait_for(self, state: StreamState, agent: Child) -> StreamRecord:
        wait_until(lambda: self.record().state is state, seconds=120, why=f"{state}: {agent.log_tail()}")
        return self.record()


@pytest.fixture
def agents(backyard: Any) -> Iterator[Agents]:
    with closing(open_store(backyard.settings.job_store)) as store:
        agents = Agents(backyard, StreamService(store))
        yield agents
        left = agents.process()
        if left is not None:
            left.kill()


def test_a_stream_of_a_killed_agent_goes_on_under_the_next_one_and_drains(agents: Agents) -> None:
    yard = agents.yard
    yard.attach("orders")
    yard.publish("orders", 200)
    agents.service.launch(StreamLaunch(name="backup", kind="backup"), principal=ANN)
    first = agents.start()
    before = agents.wait_for(StreamState.RUNNING, first)
    process = agents.process()
    assert process is not None

    os.kill(first.pid, signal.SIGKILL)
    yard.publish("orders", 200, seed=1)
    wait_until(lambda: yard.unacked() == 0, seconds=60, every_seconds=0.05, why="it archives without an agent")
    second = agents.start()
    wait_until(lambda: agents.record().agent != before.agent, seconds=60, why=f"the next: {second.log_tail()}")
    wait_until(lambda: "going on with backup" in second.log_tail(), seconds=60, why="it found the process")
    found = agents.process()
    assert found is not None
    assert (found.pid, agents.record().instance_id) == (process.pid, before.instance_id)

    agents.service.drain("backup", principal=ANN, timeout_seconds=60)
    agents.wait_for(StreamState.DRAINED, second)
    assert agents.process() is None
    assert second.stop() == 0
    # Launched again, it goes on where it was; an agent that is asked to stop drains it.
    yard.publish("orders", 100, seed=2)
    agents.service.launch(StreamLaunch(name="backup", kind="backup"), principal=ANN)
    third = agents.start()
    agents.wait_for(StreamState.RUNNING, third)
    wait_until(lambda: yard.unacked() == 0, seconds=60, every_seconds=0.05, why="all is archived")
    assert third.stop() == 0
    assert agents.process() is None
    yard.check_archive()
