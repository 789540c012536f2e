"""Rollouts with real processes and releases, on one system: a restart and an update over kills, and a reversal."""

import subprocess
import time

import pytest

from model.principal import SCOPES, Principal
from model.stream_record import StreamState
from model.stream_update import StreamUpdate, UpdateState
from rollout.manifests.service import ManifestService
from rollout.releases import Releases
from rollout.rollouts import RolloutService
from rollout.updates import UpdateService
from tests.waiting import wait_until
from tests.worlds.updates import Rollout, rollout, wheels

__all__ = ["rollout", "wheels"]
pytestmark = [pytest.mark.java, pytest.mark.kills, pytest.mark.timeout(1200)]
ANN = Principal("ann", frozenset(SCOPES))
MIN_MESSAGES = 50
TEXT = """\
kind: Rollout
name: {name}
stream: backup
from: {{}}
to: {{release: {release}}}
strategy: {strategy}
validate: {{seconds: {seconds}, min_messages: {messages}}}
"""


class Replica:
    """What the service does of rollouts, beside a stream whose agent is a process."""

    def __init__(self, beside: Rollout) -> None:
        self.beside = beside
        self.store = beside.store
        self.updates = UpdateService(self.store)
        self.manifests = ManifestService(self.store, rollouts=RolloutService(self.store))

    def apply(self, name: str, release: str, strategy: str, seconds: int) -> None:
        text = TEXT.format(name=name, release=release, strategy=strategy, seconds=seconds, messages=MIN_MESSAGES)
        self.manifests.apply(name, text.encode(), principal=ANN)

    @property
    def newest(self) -> StreamUpdate:
        return self.store.list_updates()[0]

    def wait_for(self, state: UpdateState, *, publishing: bool = False) -> StreamUpdate:
        """Return the newest rollout in ``state``; with ``publishing`` messages come meanwhile, twenty a second."""
        published_at = 0.0

        def is_there() -> bool:
            nonlocal published_at
            found = self.newest
            assert not found.state.is_ended or found.state is state, f"{found}: {self.beside.logs()}"
            if publishing and time.monotonic() - published_at >= 1:
                self.beside.yard.publish("orders", 20)
                published_at = time.monotonic()
            return found.state is state

        wait_until(is_there, seconds=300, why=f"{state}: {self.beside.agent.log_tail(40)}")
        return self.newest

    def release(self) -> str | None:
        return self.store.get_stream("backup").release


def test_a_stream_is_rolled_out_reversed_taken_back_by_itself_and_survives_its_agent(rollout, tmp_path):
    replica, marker = Replica(rollout), tmp_path / "hit"
    # The agent is killed when it has stopped the stream for its restart.
    rollout.launch(REFEED_FAILPOINTS=f"update.start.entered=0:{marker}")
    rollout.wait_until_archived()

    # Its lock is this tree's: the packages that are installed here are used, and none was downloaded.
    assert {path.suffix for path in (rollout.yard.home / "environments").iterdir()} == {".lock"}
    # A checkout where a process is started does not win over the release.
    started = Releases(rollout.yard.home).start("changed", rollout.yard.environment)
    command = started.command("--version")
    ran = subprocess.run(command, env=started.variables, check=True, capture_output=True, text=True)
    assert ran.stdout == "refeed 0.1.0+changed\n"

    replica.apply("restart", "changed", "restart", seconds=60)
    wait_until(lambda: not rollout.agent.is_running, seconds=300, why=f"the agent is killed: {rollout.logs()}")
    assert (marker.exists(), rollout.processes()) == (True, [])
    rollout.start_agent()
    replica.wait_for(UpdateState.WATCHING)
    restarted = replica.wait_for(UpdateState.STABLE, publishing=True)
    assert (replica.release(), rollout.store.get_stream("backup").generation) == ("changed", 1)
    assert processed(restarted) >= MIN_MESSAGES
    assert rollout.totals()["by_the_release"] > 0

    reversal = replica.updates.revert(restarted.id, principal=ANN)
    assert reversal.request.is_trusted
    replica.wait_for(UpdateState.STABLE)
    assert replica.release() is None

    replica.apply("broken", "broken", "update", seconds=120)
    rollout.wait_for_update(UpdateState.WATCHING)
    back = replica.wait_for(UpdateState.ROLLED_BACK, publishing=True)
    assert back.error.code == "stream_died"
    assert replica.release() is None
    logs = rollout.living().error.logs
    assert "The release is broken." in logs["new"]
    assert logs["old"]

    updated = update_over_kills(rollout, replica)
    rollout.wait_for_stream(StreamState.RUNNING)
    rollout.wait_until_archived()
    rollout.drain()
    writers = rollout.check_each_message_once()
    assert writers["old"] >= 200
    assert writers["new"] >= processed(restarted) + processed(updated)


def update_over_kills(rollout: Rollout, replica: Replica) -> StreamUpdate:
    """Update the stream while its agent is killed twice."""
    replica.apply("update", "changed", "update", seconds=20)
    rollout.wait_for_update(UpdateState.STARTING)
    rollout.agent.kill()
    rollout.start_agent()
    rollout.wait_for_update(UpdateState.WATCHING)
    (process,) = [each for each in rollout.processes() if each.instance_id == rollout.living().instance_id]
    rollout.agent.kill()
    rollout.yard.publish("orders", 20, seed=1)
    # It archives without an agent, and goes on under the next one.
    rollout.wait_until_archived()
    rollout.start_agent()
    updated = replica.wait_for(UpdateState.STABLE, publishing=True)
    assert replica.release() == "changed"
    assert processed(updated) >= MIN_MESSAGES
    done = rollout.living()
    assert (done.state, done.has_way_back) == (UpdateState.STABLE, True)
    assert done.paused_seconds is not None
    assert [each.pid for each in rollout.processes()] == [process.pid]
    return updated


def processed(rollout: StreamUpdate) -> float:
    """Return how many messages the new release had processed when it was judged."""
    return rollout.figures["after"]["messages"]
