"""One stream a group, as the registry has them; the streams are processes that only sleep."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.streams import PipelineStreams
from rollout.child import Child

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


class Yard:
    """A registry, streams that follow it at every look, and a clock that the test moves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "registry"
        self.said: list[str] = []
        self.made: dict[str, Child] = {}
        self.time = 1000.0
        self.streams = PipelineStreams(
            str(self.folder), self._make, poll_seconds=0.0, say=self.said.append, now=lambda: self.time
        )

    def _make(self, group: str) -> Child:
        log = self.folder.parent / f"{group}.log"
        self.made[group] = Child(f"pipeline-{group}", SLEEPER, environment=os.environ, log=log)
        return self.made[group]

    def publish(self, **groups: str) -> None:
        """Write a registry with a source in each group."""
        self.folder.mkdir(exist_ok=True)
        lines = [
            f"  {source}: {{topic: {source}, schema: inferred, group: {group}}}"
            for source, group in groups.items()
        ]
        (self.folder / "sources.yaml").write_text("\n".join(["sources:", *lines]))

    def running(self) -> list[str]:
        return sorted(child.name for child in self.streams if child.is_running)

    def look_until(self, is_true: Callable[[], bool], why: str) -> None:
        deadline = time.monotonic() + 30
        while not is_true():
            self.streams.look()
            assert time.monotonic() < deadline, why
            time.sleep(0.01)


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path)
    with yard.streams:
        yield yard


def test_a_home_without_a_registry_has_no_streams(yard: Yard) -> None:
    assert not yard.streams.look()
    assert (yard.running(), yard.said) == ([], [])


def test_a_new_group_gets_its_stream_and_no_other_one_is_disturbed(yard: Yard) -> None:
    yard.publish(orders="shop")
    assert yard.streams.look()
    first = yard.made["shop"].pid
    assert not yard.streams.look(), "nothing has changed"
    yard.publish(orders="shop", customers="shop", clicks="web")
    assert yard.streams.look()
    assert yard.running() == ["pipeline-shop", "pipeline-web"]
    assert yard.made["shop"].pid == first


def test_a_group_that_is_gone_is_drained_and_may_come_back(yard: Yard) -> None:
    yard.publish(orders="shop", clicks="web")
    yard.streams.look()
    gone = yard.made["web"]
    yard.publish(orders="shop")
    yard.look_until(lambda: not gone.is_running, "it is told to drain")
    assert yard.running() == ["pipeline-shop"]
    yard.publish(orders="shop", clicks="web")
    yard.look_until(lambda: yard.running() == ["pipeline-shop", "pipeline-web"], "it is back")
    assert yard.made["web"] is not gone


def test_a_stream_that_dies_is_tried_again_ever_more_slowly_and_nothing_else_ends(yard: Yard) -> None:
    yard.publish(orders="shop", clicks="web")
    yard.streams.look()
    waits = []
    for _ in range(5):
        yard.made["web"].kill()
        yard.streams.look()
        assert yard.running() == ["pipeline-shop"]
        began = yard.time
        while yard.running() == ["pipeline-shop"]:
            yard.time += 0.5
            yard.streams.look()
        waits.append(yard.time - began)
    assert waits == [1.0, 5.0, 25.0, 60.0, 60.0]
    assert any("ended by signal SIGKILL" in line for line in yard.said)


def test_a_stream_that_ran_for_long_is_tried_again_soon(yard: Yard) -> None:
    yard.publish(clicks="web")
    yard.streams.look()
    for _ in range(3):
        yard.time += 600
        yard.made["web"].kill()
        yard.streams.look()
        yard.time += 1
        assert yard.streams.look()
        assert yard.running() == ["pipeline-web"]


def test_a_registry_with_a_fault_leaves_running_what_runs_and_says_so_once(yard: Yard) -> None:
    yard.publish(orders="shop")
    yard.streams.look()
    (yard.folder / "sources.yaml").write_text("sources: {orders: {topic: 1}}")
    for _ in range(3):
        yard.streams.look()
    assert yard.running() == ["pipeline-shop"]
    (line,) = [line for line in yard.said if "goes on" in line]
    assert "sources.yaml.sources.orders.topic" in line
    yard.publish(orders="shop", clicks="web")
    yard.look_until(lambda: yard.running() == ["pipeline-shop", "pipeline-web"], "it is read again")


def test_a_fault_of_one_source_keeps_no_other_group_from_starting(yard: Yard) -> None:
    yard.publish(orders="shop", clicks="web")
    path = yard.folder / "sources.yaml"
    path.write_text(path.read_text().replace("topic: orders", "topics: orders"))
    yard.look_until(lambda: yard.running() == ["pipeline-web"], "the other group runs")


def test_leaving_ends_every_stream(tmp_path: Path) -> None:
    yard = Yard(tmp_path)
    yard.publish(orders="shop", clicks="web")
    with yard.streams:
        yard.streams.look()
    assert not any(child.is_running for child in yard.made.values())
