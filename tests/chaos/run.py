"""Chaos with a seed: a stream under steady load is killed, stopped and starved again and again, then compared.

    make chaos SEED=3 RUNS=2

The last line is one JSON object; the exit code is 0 only when nothing was lost, doubled or changed.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from cli.processes import Child, Children
from model.errors import ProcessEndedError
from model.failpoint import FAILPOINTS
from tests.acceptance.conftest import wait_for
from tests.chaos.yard import ChaosYard, Difference, descendants, suspend, wait_until_drained

# The places that a backup into a lake passes; compaction comes when files pile up, not when a test wants it.
STREAM_FAILPOINTS: Final = tuple(
    name for name in FAILPOINTS if name.partition(".")[0] not in {"compact", "bigquery", "merge", "backfill"}
)
# Longer than the ack deadline of the yard's subscriptions: whoever wakes up finds its leases gone.
_SUSPEND_SECONDS: Final = 12.0
_START_SECONDS: Final = 120.0
_HIT_SECONDS: Final = 60.0
_DRAIN_SECONDS: Final = 300.0


@dataclass
class Tally:
    """What all runs together came to."""

    runs: int = 0
    kills: int = 0
    published: int = 0
    lost: int = 0
    duplicates: int = 0
    changed: int = 0
    failpoints_hit: int = 0
    failpoints: int = len(STREAM_FAILPOINTS)
    places: set[str] = field(default_factory=set)

    def as_json(self) -> dict[str, Any]:
        """Return the last line."""
        found = asdict(self)
        del found["places"]
        return {**found, "failpoints_hit": len(self.places)}

    @property
    def is_clean(self) -> bool:
        """Whether every message was archived once, bit for bit, and there were messages at all."""
        return self.published > 0 and not (self.lost or self.duplicates or self.changed)


class Run:
    """One seed: a home of its own, a schedule drawn from the seed, a comparison at the end."""

    def __init__(self, seed: int, kills: int, home: Path, tally: Tally, say: Callable[[str], object]) -> None:
        self._seed = seed
        self._kills = kills
        self._home = home
        self._tally = tally
        self._say = say
        self._dice = random.Random(seed)
        self._schedule: list[str] = []
        self._over = threading.Event()

    def run(self) -> Difference:
        """Break the stream as often as was asked for, let it drain, and compare."""
        with Children() as children:
            yard = ChaosYard(self._home, children)
            with yard.publishing(self._seed) as publisher:
                for action in self._actions():
                    self._schedule.append(action)
                    self._say(f"seed {self._seed}: {action}")
                    self._act(yard, action)
                    self._tally.kills += 1
            self._say(f"seed {self._seed}: draining {publisher.confirmed} messages")
            backup = yard.start_backup()
            wait_until_drained(yard, backup, _DRAIN_SECONDS)
            if backup.stop(seconds=60) != 0:
                raise backup.ended_error()
            published, difference = yard.compare()
        self._tally.runs += 1
        self._tally.published += published
        self._tally.lost += len(difference.lost)
        self._tally.duplicates += len(difference.duplicated)
        self._tally.changed += len(difference.changed)
        if difference:
            self._say(f"seed {self._seed}: schedule {self._schedule}")
            self._say(f"seed {self._seed}: {difference}")
        return difference

    def _actions(self) -> Iterator[str]:
        """Yield every failpoint that was not hit yet in any run, between them every other kind of harm."""
        missing = [name for name in STREAM_FAILPOINTS if name not in self._tally.places]
        self._dice.shuffle(missing)
        others = ["kill:driver", "kill:jvm", "kill:worker", "kill:server", "suspend:driver", "suspend:server"]
        for number in range(self._kills):
            if missing and (number % 2 == 0 or self._kills < len(missing)):
                yield f"failpoint:{missing.pop()}"
            else:
                yield self._dice.choice(others)

    def _act(self, yard: ChaosYard, action: str) -> None:
        kind, _, what = action.partition(":")
        if kind == "failpoint":
            self._pass_failpoint(yard, what)
            return
        backup = self._started(yard)
        if what == "server":
            self._break_server(yard, kind)
        elif kind == "suspend":
            suspend(backup.pid, _SUSPEND_SECONDS, self._over)
        elif what == "driver":
            os.kill(backup.pid, signal.SIGKILL)
        else:
            names = {"jvm": "java", "worker": "python"}
            victims = [
                pid
                for name, pids in descendants(backup.pid).items()
                if name.startswith(names[what])
                for pid in pids
            ]
            os.kill(self._dice.choice(victims), signal.SIGKILL)
            # A stream without its JVM or with a dead worker goes on or ends; either way the next one takes over.
        backup.kill()

    def _pass_failpoint(self, yard: ChaosYard, name: str) -> None:
        marker = self._home / "markers" / f"{name}-{len(self._schedule)}"
        marker.parent.mkdir(parents=True, exist_ok=True)
        skip = self._dice.choice([0, 0, 1, 3])
        backup = yard.start_backup(REFEED_FAILPOINTS=f"{name}={skip}:{marker}")
        wait_for(
            lambda: marker.exists() or not backup.is_running,
            seconds=_START_SECONDS + _HIT_SECONDS,
            why=f"{name} was passed; the stream's log: {backup.log_tail()}",
        )
        if marker.exists():
            self._tally.places.add(name)
        backup.kill()

    def _started(self, yard: ChaosYard) -> Child:
        """Start a stream and return once it works, at a moment that the dice choose."""
        backup = yard.start_backup()
        backup.wait_until(lambda: "backup_started" in backup.log_tail(200), seconds=_START_SECONDS, what="begun")
        self._over.wait(self._dice.uniform(0.0, 3.0))
        return backup

    def _break_server(self, yard: ChaosYard, kind: str) -> None:
        if kind == "suspend":
            suspend(yard.server.pid, _SUSPEND_SECONDS, self._over)
            return
        yard.server.kill()
        self._over.wait(self._dice.uniform(0.0, 2.0))
        yard.server.start()
        yard.wait_for_server()


def run_chaos(seeds: list[int], kills: int, say: Callable[[str], object], folder: Path | None = None) -> Tally:
    """Run every seed and return what they came to; the home of a run that is not clean is kept and named."""
    tally = Tally()
    for seed in seeds:
        home = Path(tempfile.mkdtemp(prefix=f"refeed-chaos-{seed}-", dir=folder))
        if Run(seed, kills, home, tally, say).run():
            say(f"seed {seed}: its home is {home}")
        else:
            shutil.rmtree(home, ignore_errors=True)
    return tally


def main() -> int:
    """Run what the command line asks for; 0 when it was clean."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first run's seed; the others count on")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--kills", type=int, default=len(STREAM_FAILPOINTS) * 2, help="kills a run")
    asked = parser.parse_args()
    try:
        tally = run_chaos(
            list(range(asked.seed, asked.seed + asked.runs)),
            asked.kills,
            lambda text: sys.stderr.write(f"{text}\n"),
        )
    except ProcessEndedError as exc:
        sys.stderr.write(f"{exc.message}\n")
        return 1
    sys.stdout.write(f"{json.dumps(tally.as_json())}\n")
    return 0 if tally.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
