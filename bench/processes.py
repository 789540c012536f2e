"""What processes use, read from /proc: CPU time of whole trees, memory of each process."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class Usage:
    """Resident memory of a process; ``pss_bytes`` shares out what several processes have in common."""

    pid: int
    command: str
    rss_bytes: int
    pss_bytes: int


class CpuMeter:
    """Counts the CPU time of processes and of all below them, from look to look.

    What a process had used when it was last seen stays counted when it ends: workers come and go, and who reaps
    them may not inherit their time. A process that lives for less than a look is missed.
    """

    def __init__(self) -> None:
        self._ticks: dict[int, int] = {}

    def read_seconds(self, roots: Iterable[int]) -> float:
        """Return user and system seconds until now."""
        stats = dict(_read_stats())
        self._ticks |= {pid: int(stats[pid][11]) + int(stats[pid][12]) for pid in _tree(roots, stats)}
        return sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK")


def tree_usage(roots: Iterable[int]) -> list[Usage]:
    """Return the memory of processes and of all below them, the largest first."""
    stats = dict(_read_stats())
    found = [usage for pid in _tree(roots, stats) if (usage := _read_usage(pid)) is not None]
    return sorted(found, key=lambda usage: usage.pss_bytes, reverse=True)


def _read_stats() -> Iterator[tuple[int, list[str]]]:
    """Yield each process with the fields of its stat file that follow the command; the second is its parent."""
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                yield int(entry.name), (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue


def _tree(roots: Iterable[int], stats: dict[int, list[str]]) -> set[int]:
    below = set(roots) & stats.keys()
    while grown := {pid for pid, fields in stats.items() if int(fields[1]) in below} - below:
        below |= grown
    return below


def _read_usage(pid: int) -> Usage | None:
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()[1:]
        command = (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return None
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}
    return Usage(pid, command.strip(), sizes.get("Rss", 0), sizes.get("Pss", 0))
