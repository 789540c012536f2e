"""A stream under a steady load for minutes, with the memory of each process: nothing may grow after the warm-up.

    make soak MINUTES=30

The last line is one JSON object; the exit code is 0 only when nothing was lost and nothing grew.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cli.processes import Child, Children
from tests.chaos.yard import ChaosYard, descendants, wait_until_drained

_SAMPLE_SECONDS: Final = 5.0
# What comes before is caches that fill, code that is compiled, a heap that finds its size.
_WARM_UP_PART: Final = 0.4
# Medians of two halves may differ by so much: collectors and allocators breathe.
_GROWTH_FRACTION: Final = 0.10
_GROWTH_BYTES: Final = 24 * 1024 * 1024


@dataclass
class Memory:
    """Resident bytes of each kind of process over time."""

    samples: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def sample(self, yard: ChaosYard, backup: Child) -> None:
        """Take one sample: workers that come and go are summed up, so that a leak of processes shows too."""
        found: dict[str, int] = defaultdict(int)
        found["server"] = resident_bytes(yard.server.pid)
        found["driver"] = resident_bytes(backup.pid)
        for name, pids in descendants(backup.pid).items():
            for pid in pids:
                found["jvm" if name == "java" else "workers"] += resident_bytes(pid)
        for name, size in found.items():
            self.samples[name].append(size)

    def growth(self) -> dict[str, dict[str, Any]]:
        """Return for each kind the medians of the two halves after the warm-up, and whether it grew."""
        found = {}
        for name, samples in self.samples.items():
            steady = samples[int(len(samples) * _WARM_UP_PART) :]
            middle = len(steady) // 2
            if middle < 1:
                continue
            before, after = statistics.median(steady[:middle]), statistics.median(steady[middle:])
            grew = after - before > max(_GROWTH_BYTES, _GROWTH_FRACTION * before)
            found[name] = {"before_bytes": int(before), "after_bytes": int(after), "grew": grew}
        return found


def resident_bytes(pid: int) -> int:
    """Return what a process holds of the machine's memory, 0 when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def run_soak(minutes: float, home: Path) -> dict[str, Any]:
    """Publish steadily for so long, drain, compare, and return the verdict."""
    memory = Memory()
    pause = threading.Event()
    with Children() as children:
        yard = ChaosYard(home, children)
        backup = yard.start_backup()
        end = time.monotonic() + minutes * 60
        with yard.publishing(1):
            while time.monotonic() < end:
                if not backup.is_running:
                    raise backup.ended_error()
                memory.sample(yard, backup)
                pause.wait(_SAMPLE_SECONDS)
        wait_until_drained(yard, backup, 300)
        if backup.stop(seconds=60) != 0:
            raise backup.ended_error()
        published, difference = yard.compare()
    growth = memory.growth()
    is_clean = published > 0 and not difference and not any(each["grew"] for each in growth.values())
    return {
        "minutes": minutes,
        "published": published,
        "lost": len(difference.lost),
        "duplicates": len(difference.duplicated),
        "changed": len(difference.changed),
        "memory": growth,
        "ok": is_clean,
    }


def main() -> int:
    """Run what the command line asks for; 0 when it was clean."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    home = Path(tempfile.mkdtemp(prefix="refeed-soak-"))
    verdict = run_soak(parser.parse_args().minutes, home)
    if verdict["ok"]:
        shutil.rmtree(home, ignore_errors=True)
    sys.stdout.write(f"{json.dumps(verdict)}\n")
    return 0 if verdict["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
