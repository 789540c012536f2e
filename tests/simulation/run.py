"""Simulated runs of a stream's engine, and the story of one that broke a promise: ``make simulate``."""

import argparse
import logging
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from tests.simulation.kernel import Mishap
from tests.simulation.stream import Simulation

# Of memory where there is a file system in memory: what a power cut leaves is simulated anyway.
_MEMORY: Final = Path("/dev/shm")
# Steps of one run: what a run leaves behind makes the next ones of it slower.
RUN_STEPS: Final = 20_000
_SHRINK_SECONDS: Final = 60.0
_SHOWN_LINES: Final = 60


def chosen_seed() -> int:
    """Return the seed that the environment asks for, as CI does with another one for each commit; else 1."""
    return int(os.environ.get("SIMULATE_SEED", "1"), 16)


@dataclass(frozen=True)
class Run:
    """How one run ended: ``broken`` is the promise that did not hold, None where all did.

    ``asked_steps`` is how many had mishaps; ``steps`` counts those after them too.
    """

    asked_steps: int
    steps: int
    broken: str | None
    mishaps: tuple[Mishap, ...]
    trace: tuple[str, ...]
    published: int


def run_once(seed: int, steps: int, only: Collection[Mishap] | None = None) -> Run:
    """Run one simulation; with ``only``, these mishaps and no others happen."""
    above = Path(tempfile.mkdtemp(prefix="simulation-", dir=_MEMORY if _MEMORY.is_dir() else None))
    root, broken = above / "machines", None
    root.mkdir()
    try:
        simulation = Simulation(seed, root, only)
        try:
            simulation.run(steps)
        except Exception as exc:  # noqa: BLE001 - whatever it is, the product did it
            broken = f"{type(exc).__name__}: {exc}"
        world = simulation.world
        trace = tuple(line.replace(str(root), "") for line in world.trace)
        return Run(steps, world.steps, broken, tuple(world.happened), trace, len(simulation.published))
    finally:
        shutil.rmtree(above, ignore_errors=True)


def shrink(seed: int, found: Run) -> Run:
    """Return a run that breaks a promise by as few mishaps as are found in a minute."""
    ends_at = time.monotonic() + _SHRINK_SECONDS
    best, size = found, max(1, len(found.mishaps) // 2)
    while size and time.monotonic() < ends_at:
        start, is_smaller = 0, False
        while start < len(best.mishaps) and time.monotonic() < ends_at:
            left = best.mishaps[:start] + best.mishaps[start + size :]
            tried = run_once(seed, found.asked_steps, left)
            if tried.broken is not None:
                best, is_smaller = tried, True
            else:
                start += size
        if not is_smaller or size > len(best.mishaps):
            size //= 2
    return best


def main() -> None:
    """Run as many steps as asked for, run after run; end with 1 at the first that breaks a promise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--run", type=int, help="the seed of one run, as a failing test names it")
    parser.add_argument("--steps", type=int, default=100_000)
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    began, steps, published, runs = time.monotonic(), 0, 0, 0
    mishaps: Counter[str] = Counter()
    while steps < given.steps:
        seed = run_seed(given.seed, runs) if given.run is None else given.run
        run = run_once(seed, min(RUN_STEPS, given.steps - steps))
        runs, steps, published = runs + 1, steps + run.steps, published + run.published
        mishaps += Counter(mishap.kind for mishap in run.mishaps)
        if run.broken is not None:
            _tell(seed, run)
            sys.exit(1)
    seconds = time.monotonic() - began
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(mishaps.items()))
    _say(
        f"seed {given.seed}: {steps:,} steps in {runs} runs and {seconds:.0f} s, {published:,} messages: "
        "no promise is broken"
    )
    _say(f"mishaps: {kinds}")


def run_seed(seed: int, run: int) -> int:
    return seed * 1_000_000 + run


def describe(seed: int, run: Run) -> str:
    """Return what a test says of a run that broke a promise: its end, and how to run it again."""
    again = f"make simulate RUN={seed} STEPS={run.asked_steps}"
    return "\n".join((*run.trace[-_SHOWN_LINES:], f"{run.broken}", f"Shrink it with: {again}"))


def _tell(seed: int, run: Run) -> None:
    _say(f"run {seed} broke a promise after {run.steps:,} steps and {len(run.mishaps)} mishaps: {run.broken}")
    _say("looking for a shorter way to it...")
    short = shrink(seed, run)
    _say(f"{len(short.mishaps)} mishaps are enough: {', '.join(f'{m.kind} at {m.step}' for m in short.mishaps)}")
    for line in short.trace[-_SHOWN_LINES:]:
        _say(line)
    _say(f"{short.broken}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
