"""The backup and one stream a group, as the registry has them: launched and drained by the service's own calls."""

from contextlib import closing
from pathlib import Path

import pytest

from cli.streams import UP, WantedStreams
from jobs.store import open_store
from model.principal import STREAMS_OPERATE, STREAMS_READ, Principal
from model.stream_record import StreamState, Wanted
from rollout.request import StreamLaunch
from rollout.service import StreamService

ANN = Principal("ann", frozenset({STREAMS_READ, STREAMS_OPERATE}))


class Yard:
    """A registry, a service, and a ``refeed up`` that follows the one with the other at every look."""

    def __init__(self, folder: Path, service: StreamService) -> None:
        self.folder = folder / "registry"
        self.service = service
        self.said: list[str] = []
        self.streams = self.make()

    def make(self) -> WantedStreams:
        return WantedStreams(self.service, str(self.folder), poll_seconds=0.0, say=self.said.append)

    def publish(self, **groups: str) -> None:
        self.folder.mkdir(exist_ok=True)
        lines = [
            f"  {source}: {{topic: {source}, schema: inferred, group: {group}}}"
            for source, group in groups.items()
        ]
        (self.folder / "sources.yaml").write_text("\n".join(["sources:", *lines]))

    def look(self) -> list[str]:
        self.streams.look()
        return self.running("pipeline-")

    def running(self, prefix: str = "") -> list[str]:
        records = self.service.list_records(principal=UP)
        return [
            record.name
            for record in records
            if record.name.startswith(prefix) and record.is_living and record.wanted is Wanted.RUNNING
        ]


@pytest.fixture
def yard(tmp_path):
    with closing(open_store(f"sqlite:///{tmp_path / 'jobs.db'}")) as store:
        yield Yard(tmp_path, StreamService(store))


def test_a_home_without_a_registry_has_the_backup_alone(yard):
    for _ in range(3):
        yard.streams.look()
    assert (yard.running(), yard.said) == (["backup"], [])
    record = yard.service.get("backup", principal=ANN)
    assert (record.created_by, record.generation) == ("refeed up", 1)


def test_a_new_group_gets_its_stream_and_no_other_one_is_disturbed(yard):
    yard.publish(orders="shop")
    assert yard.look() == ["pipeline-shop"]
    before = yard.service.get("pipeline-shop", principal=ANN)
    assert before.options == {"group": "shop"}
    yard.publish(orders="shop", customers="shop", clicks="web")
    assert yard.look() == ["pipeline-shop", "pipeline-web"]
    assert yard.service.get("pipeline-shop", principal=ANN) == before


def test_a_group_that_is_gone_is_drained_and_may_come_back(yard):
    yard.publish(orders="shop", clicks="web")
    yard.look()
    yard.service._store.take_streams("agent", limit=10, lease_seconds=60)
    yard.publish(orders="shop")
    assert yard.look() == ["pipeline-shop"]
    gone = yard.service.get("pipeline-web", principal=ANN)
    assert (gone.wanted, gone.is_living) == (Wanted.DRAINED, True)
    yard.publish(orders="shop", clicks="web")
    assert yard.look() == ["pipeline-shop"], "it waits until the one before has drained"
    yard.service._store.report_stream("pipeline-web", "agent", StreamState.DRAINED)
    assert yard.look() == ["pipeline-shop", "pipeline-web"]
    assert yard.service.get("pipeline-web", principal=ANN).generation == 2


def test_a_group_that_is_gone_while_nothing_runs_is_drained_by_the_next_up(yard):
    yard.publish(orders="shop", clicks="web")
    yard.look()
    yard.publish(orders="shop")
    yard.streams = yard.make()
    assert yard.look() == ["pipeline-shop"]
    yard.publish(orders="shop", clicks="web")
    yard.streams = yard.make()
    assert yard.look() == ["pipeline-shop", "pipeline-web"]


@pytest.mark.parametrize("name", ["backup", "pipeline-shop"])
def test_a_stream_that_a_person_ended_stays_so_under_the_next_up(yard, name):
    yard.publish(orders="shop")
    yard.look()
    if name == "backup":
        yard.service.drain(name, principal=ANN)
    else:
        yard.service.cancel(name, principal=ANN)
    for _ in range(2):
        yard.streams = yard.make()
        yard.look()
        assert not yard.streams.is_running(name)
        assert name not in yard.running()
    ended = yard.service.get(name, principal=ANN).state
    kind = "backup" if name == "backup" else "pipeline"
    again = f"refeed launch {name} --kind {kind}" + (" --group shop" if kind == "pipeline" else "")
    assert yard.said == [f"{name} is {ended}; '{again}' starts it again"] * 2
    options = {} if name == "backup" else {"group": "shop"}
    yard.service.launch(StreamLaunch(name=name, kind=kind, options=options), principal=ANN)
    yard.streams = yard.make()
    yard.look()
    assert yard.streams.is_running(name), "launched by a person, it runs on"


def test_a_stream_that_a_person_launched_for_a_group_of_his_own_is_left_alone(yard):
    yard.service.launch(StreamLaunch(name="mine", kind="pipeline", options={"group": "web"}), principal=ANN)
    yard.publish(orders="shop")
    yard.look()
    assert yard.running() == ["backup", "mine", "pipeline-shop"]
    yard.publish(orders="shop", clicks="web")
    yard.look()
    assert yard.running() == ["backup", "mine", "pipeline-shop"], "its group has a stream"
    assert any("pipeline-web is not launched" in line for line in yard.said)


def test_a_registry_with_a_fault_leaves_running_what_runs_and_says_so_once(yard):
    yard.publish(orders="shop")
    yard.look()
    (yard.folder / "sources.yaml").write_text("sources: {orders: {topic: 1}}")
    for _ in range(3):
        assert yard.look() == ["pipeline-shop"]
    (line,) = [line for line in yard.said if "Running streams continue" in line]
    assert "sources.yaml.sources.orders.topic" in line
    yard.publish(orders="shop", clicks="web")
    assert yard.look() == ["pipeline-shop", "pipeline-web"]


def test_a_fault_of_one_source_keeps_no_other_group_from_starting(yard):
    yard.publish(orders="shop", clicks="web")
    path = yard.folder / "sources.yaml"
    path.write_text(path.read_text().replace("topic: orders", "topics: orders"))
    assert yard.look() == ["pipeline-web"]
