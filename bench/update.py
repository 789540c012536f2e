"""Seconds in which nothing is committed when a stream changes its process, under 4,000 messages/s.

A hand-over to a standby beside a plain restart (drain, then start), turn about, of a backup with the settings as
they come. A pause runs from the old process's last commit to the new one's first, as their statuses have it.
Messages have 1 KB. In the end the archive must have every message once.
"""

import json
import math
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import duckdb

from bench.yard import SUBSCRIPTION, TOPIC, attach, make_messages, start_server
from connectors.lake.archive import LakeArchive
from connectors.pubsub.channel import open_channel
from connectors.pubsub.publish import Publisher
from model.settings import Settings
from model.stream import BACKUP_STREAM
from rollout.child import Children
from rollout.handover import HandOver, HandOverState, Pause
from rollout.process import StreamProcess
from streams.control import BatchPace, Order
from streams.folder import StreamFolder
from tests.rollout.handing import wait_for_end, wait_for_standby

MESSAGES_PER_SECOND = 4_000
ROUNDS = 7
GOAL_SECONDS = 0.7
# A process runs for so long before it is replaced, so that neither its start nor a backlog is in the figures.
_STEADY_SECONDS = 6.0
_BOUND_SECONDS = 60.0
_PORTIONS_PER_SECOND = 20


def run(rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Measure both, turn about, and return p50 and p95 of each."""
    handed_over: list[float] = []
    restarted: list[float] = []
    with tempfile.TemporaryDirectory() as folder, Children() as children:
        settings, environment, _ = start_server(Path(folder), children)
        attach(settings)
        starts = Starts(settings, environment, Path(folder))
        with Load(settings) as load:
            try:
                starts.begin()
                for number in range(rounds):
                    handed_over.append(starts.hand_over())
                    restarted.append(starts.restart())
                    shown = f"hand-over {handed_over[-1]:.2f} s, restart {restarted[-1]:.2f} s"
                    print(f"  round {number + 1}: {shown}", flush=True)
                load.stop()
                starts.finish()
            finally:
                starts.kill()
        check_archive(settings, load.published)
    return [
        {
            "name": f"update, pause at {MESSAGES_PER_SECOND:,} messages/s beside a restart: p{percent}",
            "unit": "s",
            "refeed": (ours := percentile(handed_over, percent)),
            "limit": (theirs := percentile(restarted, percent)),
            "ratio": ours / theirs,
            "goals": _goals(ours) if percent == 50 else [],
            "seconds": sorted(handed_over),
            "restart_seconds": sorted(restarted),
        }
        for percent in (50, 95)
    ]


class Starts:
    """The starts of the backup, one after the other, by the orders that an agent gives."""

    def __init__(self, settings: Settings, environment: dict[str, str], folder: Path) -> None:
        self._settings = settings
        self._environment = environment
        self._folder = folder
        self._made: list[StreamProcess] = []

    def begin(self) -> None:
        """Start the first one."""
        self._start("run")
        self._wait_until_steady()

    def hand_over(self) -> float:
        """Hand the stream over to a standby, and return the pause."""
        old, new = self._made[-1], self._start("stand_by")
        wait_for_standby(new, seconds=300)
        passing = HandOver(old, new, timeout_seconds=_BOUND_SECONDS)
        state = wait_for_end(passing, seconds=_BOUND_SECONDS)
        assert (state, passing.was_killed) == (HandOverState.HANDED_OVER, False)
        return self._read_pause(old, new)

    def restart(self) -> float:
        """Drain the process, start another one when it has ended, and return the pause."""
        old = self._made[-1]
        old.order("drain", timeout_seconds=_BOUND_SECONDS)
        self._wait_until(lambda: not old.is_running, "drained")
        return self._read_pause(old, self._start("run"))

    def finish(self) -> None:
        """Return once nothing waits any more and the last process has drained."""
        self._wait_until(lambda: count_unacked(self._settings) == 0, "all is acknowledged")
        self._made[-1].order("drain", timeout_seconds=_BOUND_SECONDS)
        self._wait_until(lambda: not self._made[-1].is_running, "drained")

    def kill(self) -> None:
        for process in self._made:
            process.kill()

    def _start(self, order: Order) -> StreamProcess:
        instance = f"in_{len(self._made)}"
        found = StreamProcess.start(
            StreamFolder.of(self._settings.home, BACKUP_STREAM, instance),
            [sys.executable, "-m", "cli.main", "backup", "--instance", instance],
            BatchPace(),
            environment=self._environment,
            log=self._folder / f"{instance}.log",
            order=order,
        )
        self._made.append(found)
        return found

    def _read_pause(self, old: StreamProcess, new: StreamProcess) -> float:
        self._wait_until_steady()
        self._wait_until(lambda: not old.is_running, "the old process ended")
        assert old.status()["not_committed"] == 0, old.status()
        seconds = Pause(old.status().get("last_commit_at"), new.status().get("first_commit_at")).seconds
        assert seconds is not None, (old.status(), new.status())
        return seconds

    def _wait_until_steady(self) -> None:
        """Return once the newest process has committed for some seconds and its backlog is gone."""
        status = self._made[-1].status

        def is_steady() -> bool:
            found = status()
            committed_for = found.get("last_commit_at", 0.0) - found.get("first_commit_at", 0.0)
            # What a few batches hold is no backlog.
            return committed_for >= _STEADY_SECONDS and count_unacked(self._settings) <= 6 * MESSAGES_PER_SECOND

        self._wait_until(is_steady, "it commits without a backlog")

    def _wait_until(self, is_true: Callable[[], bool], why: str) -> None:
        deadline = time.monotonic() + 300
        while not is_true():
            process = self._made[-1]
            assert process.is_running or process.control.order == "drain", process.ended_error().message
            assert time.monotonic() < deadline, f"not within 300 s: {why}; {process.status()}"
            time.sleep(0.05)


class Load:
    """Publishes at a steady rate from a thread, until it is stopped; ``published`` counts the messages."""

    def __init__(self, settings: Settings) -> None:
        self.published = 0
        self._settings = settings
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(30)

    def _run(self) -> None:
        messages = make_messages()
        size = MESSAGES_PER_SECOND // _PORTIONS_PER_SECOND
        began = time.monotonic()
        with open_channel(self._settings.pubsub_emulator_host) as channel:
            publisher = Publisher(channel, f"projects/{self._settings.project}/topics/{TOPIC}")
            # What a busy machine kept it from is published later: the rate holds over the run.
            while not self._over.wait(max(0.0, began + self.published / MESSAGES_PER_SECOND - time.monotonic())):
                at = self.published % (len(messages) - size)
                self.published += len(publisher.publish(messages[at : at + size]))


def count_unacked(settings: Settings) -> int:
    """Return how many messages of the backup are not acknowledged."""
    with open_channel(settings.pubsub_emulator_host) as channel:
        call = channel.unary_unary("/refeed.local.Stats/Get", request_serializer=None, response_deserializer=None)
        found = json.loads(call(b"", timeout=10))
    return sum(
        stats["undelivered_messages"] + stats["leased_messages"]
        for name, stats in found.items()
        if name.endswith(SUBSCRIPTION)
    )


def check_archive(settings: Settings, published: int) -> None:
    """Raise unless the archive has as many rows as were published, and no message twice."""
    files = [file.path for file in LakeArchive(settings.lake, settings.archive_table).data_files()]
    with duckdb.connect() as connection:
        query = "SELECT count(*), count(DISTINCT (topic, message_id)) FROM read_parquet(?)"
        found = connection.execute(query, [files]).fetchone()
    assert found == (published, published), f"{published:,} published; rows and different messages: {found}"
    print(f"  {published:,} messages published, each archived once", flush=True)


def percentile(seconds: Sequence[float], percent: int) -> float:
    """Return the smallest of ``seconds`` that ``percent`` of them are not above."""
    return sorted(seconds)[max(0, math.ceil(len(seconds) * percent / 100) - 1)]


def _goals(seconds: float) -> list[dict[str, Any]]:
    goal = f"<= {GOAL_SECONDS:g} s"
    return [{"what": "p50", "value": seconds, "goal": goal, "met": seconds <= GOAL_SECONDS}]


if __name__ == "__main__":
    print(run())
