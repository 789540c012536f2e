"""Which active backfills would publish some of the same messages to the same topic."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from backfill.plan.request import BackfillRequest
from backfill.run.folder import BackfillFolder
from backfill.run.selection import read_selection
from jobs.store import Job
from model.errors import BackfillOverlapsError, fault_at
from model.window import Window


def overlap_guard(
    request: BackfillRequest,
    times: Mapping[str, Any],
    source_topics: Collection[str] | None,
    folder_of: Callable[[str], BackfillFolder],
) -> Callable[[Sequence[Job]], None]:
    """Return what raises when an active backfill would publish some of the same messages to the same topic.

    Messages are the same where ``times`` overlap and their topics in the archive do; topics that are not known
    overlap with everything. ``times`` has the ``window`` and the ``replays`` of a job's request.
    """

    def guard(active: Sequence[Job]) -> None:
        overlapping = [
            job
            for job in active
            if job.request["topic"] == request.topic
            and _times_overlap(job.request, times)
            and _may_share(source_topics, _source_topics(job, folder_of))
        ]
        if overlapping and not request.allow_overlap:
            raise BackfillOverlapsError(
                f"{overlapping[0].id} is {overlapping[0].state}. It also publishes to {request.topic}, and the "
                f"time windows of both backfills overlap. To run both backfills, use allow_overlap.",
                errors=[
                    fault_at("/topic", BackfillOverlapsError.code, f"{each.id} is {each.state}.")
                    for each in overlapping
                ],
            )

    return guard


def retry_guard(job: Job, folder_of: Callable[[str], BackfillFolder]) -> Callable[[Sequence[Job]], None]:
    """Return what raises when an active backfill would publish some of the messages of an ended one."""
    asked = BackfillRequest("", job.request["topic"], allow_overlap=bool(job.request.get("allow_overlap")))
    return overlap_guard(asked, job.request, _source_topics(job, folder_of), folder_of)


def overlapping_ids(jobs: Sequence[Job], topic: str, times: Mapping[str, Any]) -> list[str]:
    """Return the active backfills that a plan warns of: same target, overlapping times."""
    return [job.id for job in jobs if job.request["topic"] == topic and _times_overlap(job.request, times)]


def _times_overlap(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Whether two backfills may choose the same messages, by their partitions and a time that both choose by."""
    names = ["window"]
    columns = [(each.get("replays") or {}).get("column") for each in (left, right)]
    if columns[0] is not None and columns[0] == columns[1]:
        names.append("replays")
    return all(_window(left[name]).overlaps(_window(right[name])) for name in names)


def _window(window: Mapping[str, str]) -> Window:
    return Window(datetime.fromisoformat(window["from"]), datetime.fromisoformat(window["to"]))


def _source_topics(job: Job, folder_of: Callable[[str], BackfillFolder]) -> Collection[str] | None:
    """Return where the job's messages come from: by its plan, or by its selection once that is made."""
    planned: Collection[str] | None = job.request.get("source_topics")
    if planned is not None:
        return planned
    selection = read_selection(folder_of(job.id).selection)
    if selection is None or sum(selection.rows_by_topic.values()) < selection.rows:
        return None
    return selection.rows_by_topic.keys()


def _may_share(left: Collection[str] | None, right: Collection[str] | None) -> bool:
    return left is None or right is None or not set(left).isdisjoint(right)
