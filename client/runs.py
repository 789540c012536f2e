"""How the last runs of a schedule ended, as the terminal and the console show them."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any


def split_runs(runs: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any] | None, list[Mapping[str, Any]]]:
    """Return the newest run that was not skipped, and the skipped ones after it, all newest first.

    Example:
        >>> states = ("SKIPPED", "SKIPPED", "FAILED", "SUCCEEDED")
        >>> split_runs([{"state": state} for state in states])
        ({'state': 'FAILED'}, [{'state': 'SKIPPED'}, {'state': 'SKIPPED'}])
    """
    skipped = list(takewhile(lambda run: run["state"] == "SKIPPED", runs))
    return next(iter(runs[len(skipped) :]), None), skipped
