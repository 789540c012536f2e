"""What a backfill has beside other jobs: what became of its messages, dead letters and those that are missing."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from client.reverting import find_revert_obstacle
from console.messages import PREVIEW_BYTES
from console.rates import draw_rates
from console.visit import Visit
from console.volumes import draw_cells

_LETTERS: Final = 50
_MISSING: Final = 200
_MOST_SLICES: Final = 200
ENDED: Final = frozenset({"CANCELLED", "SUCCEEDED", "FAILED"})
_STEPS: Final = ("selected", "published", "landed", "merged")


def read_backfill(visit: Visit, job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a job's page that a backfill alone has."""
    name = job["id"]
    figures = visit.read(f"figures {name}", lambda: visit.api.jobs.read_part(name, "figures"))
    intervals, slices = ([], []) if figures.problem else (figures.data["intervals"], figures.data["slices"])
    return {
        "figures": figures,
        "slices": draw_slices(slices),
        "reasons": visit.read(f"reasons {name}", lambda: visit.api.count_dead_letters(job=name)["reasons"]),
        "rates": draw_rates(intervals),
        "verdict": compare_steps(job["verification"]),
        "revert_obstacle": find_revert_obstacle(job),
        "awaits_approval": awaits_approval(job),
    }


def read_letters(visit: Visit) -> dict[str, Any]:
    """Return what the page of a backfill's dead letters shows: one by one, to choose those that go out again."""
    job, preview = visit.path_params["id"], str(PREVIEW_BYTES)
    read = partial(visit.api.list_dead_letters, job=job, preview_bytes=preview)
    return _read_list(visit, "Dead letters of a backfill", "dead_letters", _LETTERS, read)


def read_letter_payload(visit: Visit) -> bytes:
    """Return the whole payload of the dead letter in the URL.

    Raises:
        RequestRefusedError: there is no such dead letter, or the caller may not read messages.
    """
    return visit.api.download_dead_letter(visit.path_params["row"], job=visit.path_params["id"])


def read_missing(visit: Visit) -> dict[str, Any]:
    """Return what the page of a backfill's missing messages shows."""
    read = partial(visit.api.jobs.read_part, visit.path_params["id"], "missing")
    return _read_list(visit, "Missing messages of a backfill", "messages", _MISSING, read)


def _read_list(
    visit: Visit, title: str, name: str, size: int, read: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    job, token = visit.path_params["id"], visit.params.get("page_token") or None
    found = visit.read(f"backfill {job}", lambda: visit.api.backfills.read(job))
    listed = visit.read(f"{name} {job} {token}", lambda: read(page_size=str(size), page_token=token))
    state = None if found.problem else found.data["state"]
    return {
        "title": title,
        "id": job,
        "found": found,
        "job": found.data,
        "listed": listed,
        "rows": () if listed.problem else listed.data[name],
        "next": None if listed.problem else listed.data["next_page_token"],
        "is_over": state in ENDED,
    }


def compare_steps(verification: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the four counts of a verdict, and whether each is that of the step before; None is unknown.

    Merges come later, so fewer merged messages than landed ones are pending and no difference.

    Example:
        >>> found = compare_steps({"selected": 3, "published": 3, "landed": 2, "merged": None})
        >>> [(each["count"], each["is_equal"]) for each in found]
        [(3, None), (3, True), (2, False), (None, None)]
        >>> compare_steps({"selected": 3, "published": 3, "landed": 3, "merged": 0})[-1]["is_pending"]
        True
    """
    counts = [verification[name] for name in _STEPS]
    before = [None, *counts]
    return [
        {
            "name": name,
            "count": count,
            "is_equal": None if None in (count, earlier) else count == earlier,
            "is_pending": name == "merged" and None not in (count, earlier) and count < earlier,
        }
        for name, count, earlier in zip(_STEPS, counts, before[:-1], strict=True)
    ]


def draw_slices(slices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how many slices are in each state, their cells in a row, and the first of them.

    Example:
        >>> drawn = draw_slices([{"state": "done"}, {"state": "done"}, {"state": "waiting"}])
        >>> (drawn["done"], drawn["begun"], drawn["waiting"], drawn["cells"]["done"])
        (2, 0, 1, 'M0 0h2v1h-2z')
    """
    numbers: dict[str, list[int]] = {state: [] for state in ("done", "begun", "waiting")}
    for number, each in enumerate(slices):
        numbers[each["state"]].append(number)
    return {
        **{state: len(found) for state, found in numbers.items()},
        "count": len(slices),
        "cells": {state: draw_cells(found) for state, found in numbers.items()},
        "first": slices[:_MOST_SLICES],
        "hidden": max(0, len(slices) - _MOST_SLICES),
    }


def awaits_approval(job: Mapping[str, Any]) -> bool:
    """Whether somebody has to approve it before it goes on."""
    approval = job["approval"]
    return bool(approval and approval["required"] and approval["by"] is None and job["state"] not in ENDED)
