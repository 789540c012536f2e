"""Updates with real processes and releases: forward, refused, back by itself, and over kills of the agent."""

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from jobs.store import JobStore, open_store
from model.principal import STREAMS_OPERATE, STREAMS_READ, Principal
from model.stream_record import StreamState
from model.stream_update import StreamUpdate, UpdateRequest, UpdateState
from pipeline.registry import Registry
from rollout.child import Child
from rollout.process import StreamProcess
from rollout.releases import Releases
from rollout.request import StreamLaunch
from rollout.service import StreamService
from rollout.updates import UpdateService
from streams.folder import StreamFolder
from tests.acceptance.conftest import Backyard
from tests.acceptance.test_pipeline import PROTO, SOURCES
from tests.acceptance.test_release import CHANGES, COUNT
from tests.pipeline.conftest import compile_protos
from tests.rollout.wheels import build_release
from tests.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.kills, pytest.mark.timeout(1200)]
ANN = Principal("ann", frozenset({STREAMS_READ, STREAMS_OPERATE}))
# It commits, and ends before it acknowledges: everything that it had comes again.
CRASH = {"backup/archiving.py": (COUNT, f'        raise RuntimeError("The release is broken.")\n{COUNT}')}
PLACES = (
    "update.snapshotting",
    "update.starting",
    "update.standby_started",
    "update.handing_over",
    "update.ordered",
    "update.watching",
)


class Rollout:
    """A backyard's stream by the service's calls, with agents and releases."""

    def __init__(self, yard: Backyard, store: JobStore, name: str = "backup") -> None:
        self.yard = yard
        self.store = store
        self.name = name
        self.streams, self.updates = StreamService(store), UpdateService(store)

    def start_agent(self, **environment: str) -> Child:
        name = f"agent-{len(list(self.yard._children))}"
        command = [sys.executable, "-m", "cli.main", "agent"]
        log = self.yard.home / "logs" / f"{name}.log"
        child = Child(name, command, environment={**self.yard.environment, **environment}, log=log)
        self.agent = self.yard._children.start(child)
        return self.agent

    def launch(self, kind: str = "backup", **environment: str) -> None:
        """Start an agent, in ``environment`` too, and launch the stream."""
        self.start_agent(**environment)
        self.streams.launch(StreamLaunch(name=self.name, kind=kind), principal=ANN)
        self.wait_for_stream(StreamState.RUNNING)

    def update(self, release: str | None, **given: float) -> StreamUpdate:
        request = UpdateRequest(release, {}, {}, **{"validate_seconds": 15, "min_messages": 50} | given)
        return self.updates.create(self.name, request, principal=ANN)

    def living(self) -> StreamUpdate:
        return self.updates.list_updates(self.name, principal=ANN)[0]

    def wait_for_update(self, *states: UpdateState) -> StreamUpdate:
        def is_there() -> bool:
            found = self.living()
            assert not found.state.is_ended or found.state in states, f"{found}: {self.logs()}"
            return found.state in states

        wait_until(is_there, seconds=240, why=f"{states}: {self.agent.log_tail(40)}")
        return self.living()

    def wait_for_stream(self, state: StreamState) -> None:
        is_there = lambda: self.store.get_stream(self.name).state is state  # noqa: E731
        wait_until(is_there, seconds=180, why=f"it is {state}: {self.logs()}")

    def wait_until_archived(self) -> None:
        wait_until(
            lambda: self.yard.unacked() == 0,
            seconds=180,
            every_seconds=0.05,
            why=f"all is acknowledged: {self.logs()}",
        )

    def logs(self) -> str:
        found = sorted((self.yard.home / "logs").glob("*.log"))
        ends = [f"--- {path.name}\n" + "\n".join(path.read_text().splitlines()[-15:]) for path in found]
        return "\n".join(ends)

    def drain(self) -> None:
        self.streams.drain(self.name, principal=ANN, timeout_seconds=60)
        self.wait_for_stream(StreamState.DRAINED)
        assert self.agent.stop() == 0
        assert self.processes() == []

    def processes(self) -> list[StreamProcess]:
        folders = (self.yard.home / "streams" / self.name / "instances").glob("*")
        found = [StreamProcess.find(StreamFolder.of(self.yard.home, self.name, each.name)) for each in folders]
        return [each for each in found if each is not None]

    def check_each_message_once(self) -> Counter[str]:
        """Nothing is lost, nothing is there twice; return how many rows each release has written."""
        rows = self.yard.archived()
        twice = {key: n for key, n in Counter((row["topic"], row["message_id"]) for row in rows).items() if n > 1}
        assert twice == {}
        assert {(row["topic"], row["message_id"]) for row in rows} == set(self.yard.published)
        writers: Counter[str] = Counter()
        for row in rows:
            data = self.yard.published[row["topic"], row["message_id"]].data
            is_changed = row["data"] == data + b" by the release"
            assert is_changed or row["data"] == data
            writers["new" if is_changed else "old"] += 1
        return writers


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wheels")
    changes = {"changed": CHANGES, "broken": CRASH}
    return {name: build_release(folder / name, f"0.1.0+{name}", made) for name, made in changes.items()}


@pytest.fixture
def rollout(backyard: Backyard, wheels: dict[str, Path]) -> Iterator[Rollout]:
    for name, wheel in wheels.items():
        Releases(backyard.home).add(wheel, name=name)
    with closing(open_store(backyard.settings.job_store)) as store:
        backyard.attach("orders")
        backyard.publish("orders", 200)
        found = Rollout(backyard, store)
        yield found
        for process in found.processes():
            process.kill()


def test_an_update_goes_forward_and_each_message_is_archived_once(rollout: Rollout) -> None:
    rollout.launch()
    rollout.wait_until_archived()
    asked = rollout.update("changed")
    rollout.wait_for_update(UpdateState.STARTING)
    rollout.yard.publish("orders", 300, seed=1)
    rollout.wait_for_update(UpdateState.WATCHING)
    rollout.yard.publish("orders", 300, seed=2)
    done = rollout.wait_for_update(UpdateState.STABLE)
    assert (done.id, done.has_way_back, done.attempts) == (asked.id, True, 1)
    record = rollout.store.get_stream("backup")
    assert (record.release, record.instance_id) == ("changed", done.instance_id)
    assert done.paused_seconds is not None
    rollout.wait_until_archived()
    rollout.drain()
    writers = rollout.check_each_message_once()
    assert writers["old"] >= 200
    assert writers["new"] >= 300


def test_a_new_release_that_crashes_goes_back_by_itself(rollout: Rollout) -> None:
    rollout.launch()
    rollout.wait_until_archived()
    before = rollout.store.get_stream("backup").instance_id
    rollout.update("broken", validate_seconds=120)
    rollout.wait_for_update(UpdateState.WATCHING)
    rollout.yard.publish("orders", 300, seed=1)
    back = rollout.wait_for_update(UpdateState.ROLLED_BACK)
    assert back.error is not None
    assert back.error.code == "stream_died"
    assert "The release is broken." in back.error.logs["new"]
    assert back.error.logs["old"]
    record = rollout.store.get_stream("backup")
    assert (record.release, record.instance_id) == (None, back.instance_id)
    assert record.instance_id != before
    rollout.yard.publish("orders", 100, seed=2)
    rollout.wait_until_archived()
    rollout.drain()
    assert rollout.check_each_message_once() == {"old": 600}


def test_a_new_release_that_hangs_when_it_is_told_to_run_is_killed_and_the_old_one_goes_on(
    rollout: Rollout, tmp_path: Path
) -> None:
    rollout.launch(REFEED_FAILPOINTS=f"update.handing_over=0:{tmp_path / 'killed'}")
    rollout.wait_until_archived()
    rollout.update("changed")
    killed = rollout.agent
    wait_until(lambda: not killed.is_running, seconds=400, why=f"the agent is killed: {rollout.logs()}")
    # Its standby is ready and has no order yet; the next agent gives that.
    folder = StreamFolder.of(rollout.yard.home, "backup", rollout.living().instance_id)
    standby = StreamProcess.find(folder)
    assert standby is not None
    os.killpg(standby.pid, signal.SIGSTOP)
    rollout.start_agent()
    rollout.wait_for_update(UpdateState.ROLLING_BACK, UpdateState.HANDING_BACK, UpdateState.ROLLED_BACK)
    back = rollout.wait_for_update(UpdateState.ROLLED_BACK)
    assert back.error is not None
    assert "hung in the hand-over" in back.error.message
    rollout.yard.publish("orders", 100, seed=1)
    rollout.wait_until_archived()
    rollout.drain()
    assert rollout.check_each_message_once() == {"old": 300}


@pytest.mark.parametrize("places", [PLACES[::2], PLACES[1::2]])
def test_an_update_goes_on_under_the_next_agent_wherever_one_is_killed(
    rollout: Rollout, tmp_path: Path, places: tuple[str, ...]
) -> None:
    deaths = [{"REFEED_FAILPOINTS": f"{place}=0:{tmp_path / place}"} for place in places]
    rollout.launch(**deaths[0])
    rollout.wait_until_archived()
    asked = rollout.update("changed")
    for number, (place, following) in enumerate(zip(places, [*deaths[1:], {}], strict=True)):
        killed = rollout.agent
        wait_until(
            lambda killed=killed: not killed.is_running, seconds=120, why=f"{place} kills: {rollout.logs()}"
        )
        assert (tmp_path / place).exists()
        rollout.yard.publish("orders", 200, seed=1 + number)
        rollout.start_agent(**following)
    rollout.wait_for_update(UpdateState.WATCHING)
    rollout.yard.publish("orders", 200, seed=9)
    assert rollout.wait_for_update(UpdateState.STABLE).id == asked.id
    rollout.wait_until_archived()
    rollout.drain()
    assert rollout.check_each_message_once()["new"] >= 200


def test_an_update_with_a_renamed_source_and_no_mapping_is_refused(backyard: Backyard, tmp_path: Path) -> None:
    backyard.environment["REFEED_REGISTRY_POLL_SECONDS"] = "3600"
    (tmp_path / "shop.proto").write_text(PROTO % "")
    descriptors = compile_protos(tmp_path, "shop.proto")
    registry = Registry(backyard.settings.registry)
    registry.publish({"shop.desc": descriptors, "sources.yaml": SOURCES.encode()})
    for topic in ("orders", "members"):
        backyard.pubsub.create_topic(topic)
    with closing(open_store(backyard.settings.job_store)) as store:
        rollout = Rollout(backyard, store, "pipeline")
        rollout.launch("pipeline")
        before = store.get_stream("pipeline").instance_id
        renamed = SOURCES.replace("orders: {topic: orders,", "sales: {topic: orders,")
        registry.publish({"shop.desc": descriptors, "sources.yaml": renamed.encode()})
        rollout.update(None)
        refused = rollout.wait_for_update(UpdateState.REFUSED)
        assert refused.error is not None
        assert refused.error.code == "update_refused"
        assert "orders" in refused.error.message
        record = store.get_stream("pipeline")
        assert (record.state, record.instance_id) == (StreamState.RUNNING, before)
        rollout.drain()
