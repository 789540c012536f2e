"""Chaos with a seed: the whole system under steady load is killed, stopped and starved, then compared.

    make chaos SEED=3 RUNS=2 WAREHOUSE=lake

The last line is one JSON object; the exit code is 0 only when nothing was lost, doubled or changed, nothing got
stuck and every failpoint that was armed was hit: with 200 kills or more all that there are. docs/chaos.md says how
to read a failure.
"""

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from model.failpoint import FAILPOINTS
from tests.chaos.agents import AgentLane
from tests.chaos.backfills import BackfillLane
from tests.chaos.lanes import Lane, ServerLane, StreamLane, WarehouseLane
from tests.chaos.managed import ManagedStream
from tests.chaos.messages import EVENTS, ORDERS
from tests.chaos.oracle import (
    Difference,
    Replay,
    compare_archive,
    compare_published,
    compare_replay,
    compare_reporting,
    compare_staging,
)
from tests.chaos.processes import Part, StuckError
from tests.chaos.schedule import Schedule, draw, draw_under_agents, parts_of, places_of
from tests.chaos.tables import TablesLane
from tests.chaos.yard import ChaosYard
from tests.standin.fixture import run_standin
from tests.worlds.bucket import unkind_lake

WAREHOUSES: Final = ("lake", "bigquery")
AGENTS: Final = ("after", "only", "never")
BUCKETS: Final = ("s3", "gs")
_LANES: Final[dict[str, type[Lane]]] = {
    "backup": StreamLane,
    "pipeline": StreamLane,
    "agents": AgentLane,
    "backfill": BackfillLane,
    "tables": TablesLane,
    "server": ServerLane,
    "warehouse": WarehouseLane,
}
# What each request to a bucket takes.
_DELAY_SECONDS: Final = 0.03
_DRAIN_SECONDS: Final = 400.0
_MERGE_SECONDS: Final = 240.0
_SUPERVISE_SECONDS: Final = 0.5
# How long a lane of a run that is interrupted may go on with what it does.
_END_SECONDS: Final = 10.0
_KILLS: Final = 40
# So many kills come to every failpoint, however they are shared out over runs and warehouses.
_ENOUGH_KILLS: Final = 200


@dataclass
class Tally:
    """What all runs together came to; ``hit`` is at which failpoints (warehouse, part, name) something was killed.

    ``warehouses`` says whose failpoints there are to be hit.
    """

    warehouses: tuple[str, ...]
    runs: int = 0
    kills: int = 0
    published: int = 0
    replayed: int = 0
    lost: int = 0
    duplicates: int = 0
    changed: int = 0
    stuck: int = 0
    hit: set[tuple[str, str, str]] = field(default_factory=set)

    @property
    def places(self) -> set[str]:
        return {name for each in self.warehouses for part in parts_of(each) for name in places_of(part, each)}

    @property
    def missed(self) -> list[str]:
        """Those at which nothing was killed yet, in the order of a message's way."""
        found = {name for *_, name in self.hit}
        return [name for name in FAILPOINTS if name in self.places and name not in found]

    def as_json(self) -> dict[str, Any]:
        """Return the last line."""
        counts = ("runs", "kills", "published", "replayed", "lost", "duplicates", "changed", "stuck")
        found = {name: getattr(self, name) for name in counts}
        hit = len(self.places) - len(self.missed)
        return found | {"failpoints_hit": hit, "failpoints": len(self.places), "missed": self.missed}

    @property
    def is_clean(self) -> bool:
        """Whether everything is where it belongs, once and bit for bit, and there was something at all.

        That a failpoint was missed counts once there were kills enough to come to each.
        """
        is_complete = not self.missed or self.kills < _ENOUGH_KILLS
        wrong = self.lost or self.duplicates or self.changed or self.stuck
        return self.published > 0 and is_complete and not wrong

    def hit_by(self, warehouse: str) -> set[tuple[str, str]]:
        return {(part, name) for where, part, name in self.hit if where == warehouse}


class Run:
    """One seed on one warehouse: a home of its own, a schedule drawn from the seed, a comparison at the end."""

    def __init__(
        self, schedule: Schedule, yard: ChaosYard, over: threading.Event, say: Callable[[str], object]
    ) -> None:
        self._yard = yard
        self._over = over
        self._schedule = schedule
        self._say = say
        self.hit: set[tuple[str, str]] = set()
        self.kills = 0
        self.failures: list[str] = []
        self._done: list[str] = []
        self._lanes = {
            part: _LANES[part](
                part, yard, random.Random(f"{schedule.seed} {part}"), over, self._tell(part), self.hit
            )
            for part in schedule.harms
        }

    def run(self) -> None:
        """Break every part as often as is planned, beside each other, and let all that is left come through.

        Raises:
            StuckError: something did not come to its end; ``failures`` says the same of each part.
        """
        threads = [
            threading.Thread(target=self._follow, args=(part,), name=part, daemon=True) for part in self._lanes
        ]
        with self._yard.publishing(self._schedule.seed) as publisher:
            for thread in threads:
                thread.start()
            try:
                for thread in threads:
                    thread.join()
            except BaseException:
                # A lane that goes on would start what is ended next.
                self._over.set()
                for thread in threads:
                    thread.join(_END_SECONDS)
                raise
        if self.failures:
            raise StuckError("\n".join(self.failures))
        self._say(f"draining {publisher.confirmed} messages")
        agents = self._lanes.get("agents")
        drain(self._yard, agents.streams if isinstance(agents, AgentLane) else None)

    def compare(self) -> tuple[int, int, list[Difference]]:
        """Return how many messages were taken, how many were replayed, and where something is wrong."""
        backfills = self._lanes["backfill"]
        assert isinstance(backfills, BackfillLane)
        return compare_tables(self._yard, backfills.replays())

    def _follow(self, part: str) -> None:
        try:
            for harm in self._schedule.harms[part]:
                if self._over.is_set():
                    return
                self._say(f"{part}: {harm}")
                self._lanes[part].act(harm)
                self.kills += 1
            self._done.append(part)
            # The others need what this part does.
            while len(self._done) < len(self._lanes) and not self._over.wait(_SUPERVISE_SECONDS):
                self._lanes[part].keep()
        except Exception as exc:  # noqa: BLE001 - whatever it was, the others are to end and the seed to be told
            # What gets stuck because the run is over already says nothing.
            if not self._over.is_set():
                text = str(exc) if isinstance(exc, StuckError) else traceback.format_exc()
                self.failures.append(f"{part}: {text}")
            self._over.set()

    def _tell(self, part: str) -> Callable[[str], object]:
        return lambda text: self._say(f"{part}: {text}")


def drain(yard: ChaosYard, managed: Sequence[ManagedStream] | None = None) -> None:
    """Let the streams take all that is left, then end them as an operator does, and merge.

    The streams are processes of the yard, or those that agents keep (``managed``).

    Raises:
        StuckError: something is left, or did not end as it should.
    """
    streams: Sequence[Part | ManagedStream] = managed or (
        [yard.backup, yard.pipeline] if yard.has_pipeline else [yard.backup]
    )
    if yard.standin is not None:
        yard.standin.clear_faults()
    yard.server.ensure()
    for stream in streams:
        stream.ensure()
    for stream in streams:
        try:
            stream.wait(lambda: not yard.backlog(), "has nothing left to take", seconds=_DRAIN_SECONDS)
        except StuckError as exc:
            raise StuckError(f"left are {yard.backlog()}; {exc}") from exc
    for stream in streams:
        _expect(stream, stream.stop())
    if yard.has_pipeline:
        # A second time changes nothing.
        for _ in range(2):
            merge = yard.command("merge", "merge")
            merge.start()
            _expect(merge, merge.join(_MERGE_SECONDS))


def compare_tables(yard: ChaosYard, replays: Sequence[Replay]) -> tuple[int, int, list[Difference]]:
    """Return how many messages were taken, how many of them are replays, and where something is wrong."""
    taken = yard.ear.listen()
    digests = yard.ear.replayed_digests()
    found = [compare_archive(taken, yard.archived()), *(compare_replay(one, taken, digests) for one in replays)]
    if yard.has_pipeline:
        found += [
            compare_staging(topic, taken, yard.staged(topic), yard.dead_letters(topic))
            for topic in (ORDERS, EVENTS)
        ]
        found.append(compare_published((identity for identity, _ in yard.staged(ORDERS)), yard.published()))
        found.append(compare_reporting(taken, yard.reported()))
    replayed = sum(one.backfill_id is not None for one in taken.values())
    return len(taken) - replayed, replayed, [difference for difference in found if difference]


def _expect(part: Part | ManagedStream, code: int | None) -> None:
    if code != 0:
        raise StuckError(f"{part.name} ended with {code}; {part.last_words()}")


def run_chaos(
    seeds: Sequence[int],
    kills: int,
    say: Callable[[str], object],
    *,
    warehouses: tuple[str, ...] = WAREHOUSES,
    folder: Path | None = None,
    plan: Schedule | None = None,
    agents: str = "after",
    bucket: str | None = None,
) -> Tally:
    """Run every seed on every warehouse and return what they came to; the home of a run that is not clean is kept.

    ``plan`` is run instead of what a seed draws. ``agents`` is one of :data:`AGENTS`: each seed ends with a run
    under agents, is nothing but that, or has none. With a ``bucket`` of :data:`BUCKETS` the lake is in one, whose
    every request takes 30 ms, and which loses, cuts or refuses some.
    """
    tally = Tally(warehouses)
    begun = time.monotonic()
    for seed in seeds:
        runs = [(each, False) for each in warehouses] if plan or agents != "only" else []
        if not plan and agents != "never":
            runs.append((warehouses[seed % len(warehouses)], True))
        for warehouse, is_under_agents in runs:
            hit = tally.hit_by(warehouse)
            if is_under_agents:
                schedule = draw_under_agents(seed, kills, warehouse, hit)
            else:
                schedule = plan or draw(seed, kills, warehouse, hit)
            name = f"seed {seed}, {warehouse}" + (", agents" if schedule.has_agents else "")

            def say_so(text: str, where: str = name) -> None:
                say(f"{time.monotonic() - begun:5.0f} s, {where}: {text}")

            if not _run_one(schedule, warehouse, tally, say_so, folder=folder, bucket=bucket):
                say(str(schedule))
            # A call that is ended before its last run has said what it came to.
            say_so(f"so far {json.dumps(tally.as_json())}")
    return tally


def _run_one(
    schedule: Schedule,
    warehouse: str,
    tally: Tally,
    say: Callable[[str], object],
    *,
    folder: Path | None,
    bucket: str | None,
) -> bool:
    """Add one run to ``tally`` and say whether it was clean."""
    home = Path(tempfile.mkdtemp(prefix=f"refeed-chaos-{schedule.seed}-", dir=folder))
    over = threading.Event()
    differences: list[Difference] = []
    problem = ""
    with _open_yard(home, over, warehouse, bucket, has_agents=schedule.has_agents) as yard:
        run = Run(schedule, yard, over, say)
        try:
            run.run()
            published, replayed, differences = run.compare()
            tally.published += published
            tally.replayed += replayed
        except StuckError as exc:
            problem = str(exc)
            tally.stuck += 1
        finally:
            over.set()
    tally.runs += 1
    tally.kills += run.kills
    tally.hit |= {(warehouse, part, name) for part, name in run.hit}
    for difference in differences:
        tally.lost += len(difference.lost)
        tally.duplicates += len(difference.duplicated)
        tally.changed += len(difference.changed)
        say(f"DIFFERENT {difference}")
    if problem:
        say(f"STUCK {problem}")
    if problem or differences:
        say(f"its home is {home}")
        return False
    say(f"clean: {run.kills} kills, {published} messages, {replayed} of them replays")
    shutil.rmtree(home, ignore_errors=True)
    return True


@contextmanager
def _open_yard(
    home: Path, over: threading.Event, warehouse: str, bucket: str | None, *, has_agents: bool
) -> Iterator[ChaosYard]:
    with ExitStack() as stack:
        is_remote = bucket is not None and warehouse == "lake"
        lake = stack.enter_context(unkind_lake(bucket, home, delay_seconds=_DELAY_SECONDS)) if is_remote else None
        standin = stack.enter_context(run_standin(home / "standin")) if warehouse == "bigquery" else None
        yard = ChaosYard(home, over, standin, lake=lake, has_agents=has_agents)
        stack.callback(yard.close)
        yard.open()
        yield yard


def main() -> int:
    """Run what the command line asks for; 0 when it was clean."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first run's seed; the others count on")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--kills", type=int, default=_KILLS, help="kills a run and warehouse")
    parser.add_argument("--warehouse", choices=[*WAREHOUSES, "both"], default="both")
    parser.add_argument("--bucket", choices=BUCKETS, help="where the lake is, if not on this machine's disk")
    parser.add_argument("--agents", choices=AGENTS, default="after", help="the runs under agents")
    asked = parser.parse_args()
    # A run that is ended leaves no process behind, and no disk.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    tally = run_chaos(
        range(asked.seed, asked.seed + asked.runs),
        asked.kills,
        lambda text: sys.stderr.write(f"{text}\n"),
        warehouses=WAREHOUSES if asked.warehouse == "both" else (asked.warehouse,),
        agents=asked.agents,
        bucket=asked.bucket,
    )
    for warehouse in tally.warehouses:
        for part in _LANES:
            if names := sorted(name for where, name in tally.hit_by(warehouse) if where == part):
                sys.stderr.write(f"{warehouse}: {part} was killed at {', '.join(names)}\n")
    sys.stdout.write(f"{json.dumps(tally.as_json())}\n")
    return 0 if tally.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
