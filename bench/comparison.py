"""Timing Refeed beside others: turn about, medians of rounds, ratios, goals."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.processes import CpuMeter

_LOOK_SECONDS = 0.05
# A first and a last sample, and one between them.
_ENOUGH_SAMPLES = 3


@dataclass(frozen=True)
class Run:
    """How fast one of them was in one round, and the CPU time of all its processes."""

    messages_per_second: float
    cpu_us_per_message: float


@dataclass(frozen=True)
class Sample:
    """How much was done at one moment (steady clock), and the CPU seconds used until then."""

    at: float
    messages: int
    cpu_seconds: float


@dataclass(frozen=True)
class Goal:
    """What a figure is to be: at least, or with ``is_most`` at most."""

    what: str
    bound: float
    is_most: bool = False

    def judge(self, value: float | None) -> dict[str, Any]:
        """Return the goal as results have it; ``met`` is None when there is nothing to judge."""
        met = None if value is None else value <= self.bound if self.is_most else value >= self.bound
        return {
            "what": self.what,
            "value": value,
            "goal": f"{'<=' if self.is_most else '>='} {self.bound:g}",
            "met": met,
        }


def watch(
    count: Callable[[], int],
    messages: int,
    roots: Callable[[], Iterable[int]],
    check: Callable[[], None],
    *,
    seconds: float = 600.0,
) -> list[Sample]:
    """Look until ``count`` says ``messages``; return a sample for each look that saw more than the one before.

    ``check`` raises when there is nothing to wait for any more.
    """
    deadline = time.monotonic() + seconds
    samples: list[Sample] = []
    meter = CpuMeter()
    while not samples or samples[-1].messages < messages:
        check()
        found = count()
        if found > (samples[-1].messages if samples else 0):
            samples.append(Sample(time.monotonic(), found, meter.read_seconds(roots())))
        assert time.monotonic() < deadline, f"{found} of {messages} messages in {seconds:.0f} s"
        time.sleep(_LOOK_SECONDS)
    return samples


def steady_run(samples: Sequence[Sample], *, has_linger: bool = False) -> Run:
    """Return the speed between the first sample and the last, so that nobody's start counts.

    With ``has_linger`` the last sample is left out too: who commits waits for more before the last commit, which
    is a setting of latency and says nothing of speed.
    """
    assert len(samples) >= _ENOUGH_SAMPLES, "it was over at once: raise the number of messages"
    first, last = samples[0], samples[-2] if has_linger else samples[-1]
    messages = last.messages - first.messages
    cpu_us = (last.cpu_seconds - first.cpu_seconds) / messages * 1e6
    return Run(messages / (last.at - first.at), cpu_us)


def alternate(contenders: Mapping[str, Callable[[], Run]], rounds: Mapping[str, int]) -> dict[str, list[Run]]:
    """Run each contender once a round, for as many rounds as it has; what else the machine does hits all alike."""
    runs: dict[str, list[Run]] = {name: [] for name in contenders}
    for number in range(max(rounds.values())):
        for name, measure in contenders.items():
            if number < rounds[name]:
                runs[name].append(measure())
        shown = (
            f"{name} {found[-1].messages_per_second:,.0f}/s {found[-1].cpu_us_per_message:.1f} us"
            for name, found in runs.items()
            if len(found) > number
        )
        print(f"  round {number + 1}: {', '.join(shown)}", flush=True)
    return runs


def ratio(runs: Mapping[str, Sequence[Run]], other: str) -> float | None:
    """Return the median, over the rounds that both have, of Refeed's speed divided by the other's."""
    pairs = list(zip(runs["refeed"], runs.get(other, ()), strict=False))
    if not pairs:
        return None
    return statistics.median(a.messages_per_second / b.messages_per_second for a, b in pairs)


def summarise(
    name: str,
    runs: Mapping[str, Sequence[Run]],
    *,
    ratios: Mapping[str, float | None],
    cpu_us: float | None = None,
) -> dict[str, Any]:
    """Return one result: medians, ratios to the others with their goals (at least), and CPU time (at most)."""
    found = {other: ratio(runs, other) for other in ratios}
    speeds = {
        other: statistics.median(run.messages_per_second for run in taken) if taken else None
        for other, taken in runs.items()
    }
    cpu = {
        other: statistics.median(run.cpu_us_per_message for run in taken) for other, taken in runs.items() if taken
    }
    goals = [
        Goal(f"refeed / {other}", bound).judge(found[other])
        for other, bound in ratios.items()
        if bound is not None
    ]
    if cpu_us is not None:
        goals.append(Goal("CPU us a message", cpu_us, is_most=True).judge(cpu["refeed"]))
    return {
        "name": name,
        "unit": "messages/s",
        **speeds,
        "ratio": found.get("limit"),
        "goal_ratio": ratios.get("limit"),
        "ratios": found,
        "cpu_us_per_message": cpu,
        "goals": goals,
        "rounds": {other: len(taken) for other, taken in runs.items()},
    }
