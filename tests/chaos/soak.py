"""The whole system under a steady load for minutes, with the memory of each process: nothing may grow for ever.

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

from tests.chaos.processes import StuckError, descendants
from tests.chaos.run import compare_tables, drain
from tests.chaos.yard import ChaosYard

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

    def sample(self, yard: ChaosYard) -> None:
        """Take one sample: workers that come and go are summed up, so that a leak of processes shows too."""
        found: dict[str, int] = defaultdict(int)
        for part in (yard.server, yard.api):
            found[part.name] = resident_bytes(part.pid)
        for stream in (yard.backup, yard.pipeline):
            found[f"{stream.name} driver"] = resident_bytes(stream.pid)
            for name, pids in descendants(stream.pid).items():
                for pid in pids:
                    found[f"{stream.name} {'jvm' if name == 'java' else 'workers'}"] += resident_bytes(pid)
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
    """Publish steadily for so long, drain, compare, and return the verdict.

    Raises:
        StuckError: a process ended by itself, or what was published did not come through.
    """
    memory = Memory()
    pause = threading.Event()
    yard = ChaosYard(home, pause)
    try:
        yard.open()
        parts = (yard.backup, yard.pipeline, yard.api)
        for part in parts:
            part.ensure()
        end = time.monotonic() + minutes * 60
        with yard.publishing(1):
            while time.monotonic() < end:
                for part in parts:
                    if not part.is_running:
                        raise StuckError(f"{part.name} ended by itself; {part.last_words()}")
                memory.sample(yard)
                pause.wait(_SAMPLE_SECONDS)
        drain(yard)
        published, _, differences = compare_tables(yard, [])
    finally:
        yard.close()
    growth = memory.growth()
    is_clean = published > 0 and not differences and not any(each["grew"] for each in growth.values())
    return {
        "minutes": minutes,
        "published": published,
        "lost": sum(len(each.lost) for each in differences),
        "duplicates": sum(len(each.duplicated) for each in differences),
        "changed": sum(len(each.changed) for each in differences),
        "memory": growth,
        "ok": is_clean,
    }


def main() -> int:
    """Run what the command line asks for; 0 when it was clean."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    asked = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="refeed-soak-"))
    try:
        verdict = run_soak(asked.minutes, home)
    except StuckError as exc:
        sys.stderr.write(f"{exc}\nIts home is {home}\n")
        return 1
    if verdict["ok"]:
        shutil.rmtree(home, ignore_errors=True)
    sys.stdout.write(f"{json.dumps(verdict)}\n")
    return 0 if verdict["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
