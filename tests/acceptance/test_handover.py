"""Streams that are handed over from process to process under load, with kills of the old and of the new one."""

import os
import signal
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from model import failpoint
from rollout import handover
from rollout.handover import HandOver, HandOverState, Pause
from rollout.process import StreamProcess
from streams.control import BatchPace
from streams.folder import StreamFolder, read_newest_status
from tests.rollout.handing import wait_for_end, wait_for_standby

pytestmark = [pytest.mark.java, pytest.mark.kills, pytest.mark.timeout(900)]


class Starts:
    """The starts of one stream, each an instance with a folder of failpoints of its own."""

    def __init__(self, yard, name, arguments, folder):
        self.yard = yard
        self.name = name
        self._arguments = arguments
        self._folder = folder
        self.made: list[StreamProcess] = []

    def start(self, order="stand_by"):
        instance = f"in_{len(self.made)}"
        failpoints = self._folder / instance
        failpoints.mkdir(parents=True)
        found = StreamProcess.start(
            StreamFolder.of(self.yard.home, self.name, instance),
            [sys.executable, "-m", "cli.main", *self._arguments, "--instance", instance],
            BatchPace(0.3, 1_000_000),
            environment={**self.yard.environment, "REFEED_FAILPOINTS": str(failpoints)},
            log=self.yard.home / "logs" / f"{self.name}-{instance}.log",
            order=order,
        )
        self.made.append(found)
        return found

    def stand_by(self):
        found = self.start()
        wait_for_standby(found, seconds=300)
        return found

    def arm(self, process, name):
        assert process.instance_id is not None
        failpoint.arm(self._folder / process.instance_id, name)

    def tail(self):
        return str([(one.instance_id, one.status(), one.ended_error().message) for one in self.made[-2:]])

    def wait_until(self, is_true, why):
        deadline = time.monotonic() + 300
        while not is_true():
            assert time.monotonic() < deadline, f"{why}: {self.tail()}"
            time.sleep(0.02)

    def end(self):
        for process in self.made:
            process.kill()


@contextmanager
def load(publish):
    """Publish a little all the time while the block runs."""
    over = threading.Event()

    def run():
        number = 0
        while not over.wait(0.05):
            number += 1
            publish(number)

    thread = threading.Thread(target=run, name="load", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)


def hand_over_in_every_way(starts, monkeypatch):
    """Hand a stream over again and again; return the process that runs it in the end."""
    monkeypatch.setattr(handover, "KILL_GRACE_SECONDS", 0.5)
    old = starts.start("run")
    new = starts.stand_by()
    starts.wait_until(lambda: "last_commit_at" in old.status(), "the first one commits")
    status = new.status()
    assert (status["state"], status.get("epoch"), status.get("totals")) == ("standby", None, None)
    shown = read_newest_status(starts.yard.home, starts.name)
    assert shown["instance"] == old.instance_id, "a standby hides nothing"

    # As it should be.
    passing = HandOver(old, new, timeout_seconds=60)
    assert wait_for_end(passing, seconds=60) is HandOverState.HANDED_OVER, starts.tail()
    starts.wait_until(
        lambda: Pause.between(old.status(), new.status()).seconds is not None, "the second one commits"
    )
    assert new.status()["epoch"] > old.status()["epoch"]
    starts.wait_until(lambda: not old.is_running, "the first one ends")
    status = old.status()
    assert (status["state"], status["not_committed"], passing.was_killed) == ("stopped", 0, False)
    assert status["last_commit_at"] <= new.status()["first_commit_at"]

    # The new one dies between its first commit and the acknowledgements; another standby is there.
    old, new, spare = new, starts.stand_by(), starts.stand_by()
    starts.arm(new, "commit.after")
    passing = HandOver(old, new, timeout_seconds=60)
    wait_for_end(passing, seconds=60)
    starts.wait_until(lambda: not new.is_running, "it was killed")
    assert passing.look() in {HandOverState.NEW_ENDED, HandOverState.HANDED_OVER}
    assert wait_for_end(HandOver(old, spare, timeout_seconds=60), seconds=60) is HandOverState.HANDED_OVER, (
        starts.tail()
    )

    # The old one hangs, and is killed when its time is over.
    old, new = spare, starts.stand_by()
    os.kill(old.pid, signal.SIGSTOP)
    passing = HandOver(old, new, timeout_seconds=0.5)
    assert wait_for_end(passing, seconds=60) is HandOverState.HANDED_OVER, starts.tail()
    assert passing.was_killed
    starts.wait_until(lambda: "first_commit_at" in new.status(), "the last one commits")
    assert [one.instance_id for one in starts.made if one.is_running] == [new.instance_id]
    return new


def test_a_backup_that_is_handed_over_in_every_way_loses_nothing_and_archives_nothing_twice(
    backyard, tmp_path, monkeypatch
):
    backyard.attach("orders")
    starts = Starts(backyard, "backup", ["backup"], tmp_path / "failpoints")
    try:
        with load(lambda number: backyard.publish("orders", 20, number)):
            last = hand_over_in_every_way(starts, monkeypatch)
        starts.wait_until(lambda: backyard.unacked() == 0, "all is acknowledged")
        backyard.check_archive()
        # A standby that is told to end has done nothing and ends well.
        spare = starts.stand_by()
        spare.order("drain", timeout_seconds=60)
        last.order("drain", timeout_seconds=60)
        starts.wait_until(lambda: not (spare.is_running or last.is_running), "both end")
        assert "code 0" in spare.ended_error().message
    finally:
        starts.end()
