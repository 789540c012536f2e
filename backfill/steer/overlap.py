"""Which active backfills would publish some of the same messages to the same topic."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from backfill.plan.request import BackfillRequest
from backfill.run.folder import BackfillFolder
from backfill.run.selection import read_selection
from jobs.store import Job
from model.errors import BackfillOverlapsError
from model.window import Window


def overlap_guard(
    request: BackfillRequest,
    window: Window,
    source_topics: Collection[str] | None,
    folder_of: Callable[[str], BackfillFolder],
) -> Callable[[Sequence[Job]], None]:
    """Return what raises when an active backfill would publish some of the same messages to the same topic.

    Messages are the same where windows overlap and their topics in the archive do; topics that are not known
    overlap with everything.
    """

    def guard(active: Sequence[Job]) -> None:
        overlapping = [
            job
            for job in active
            if job.request["topic"] == request.topic
            and _window_of(job).overlaps(window)
            and _may_share(source_topics, _source_topics(job, folder_of))
        ]
        if overlapping and not request.allow_overlap:
            raise BackfillOverlapsError(
                f"{overlapping[0].id} is {overlapping[0].state}. It also publishes to {request.topic}, and the "
                f"time windows of both backfills overlap. To run both backfills, use allow_overlap.",
                errors=[
                    {"code": "backfill_overlaps", "message": f"{job.id} is {job.state}.", "pointer": "/topic"}
                    for job in overlapping
                ],
            )

    return guard


def retry_guard(job: Job, folder_of: Callable[[str], BackfillFolder]) -> Callable[[Sequence[Job]], None]:
    """Return what raises when an active backfill would publish some of the messages of an ended one."""
    asked = BackfillRequest("", job.request["topic"], allow_overlap=bool(job.request.get("allow_overlap")))
    return overlap_guard(asked, _window_of(job), _source_topics(job, folder_of), folder_of)


def overlapping_ids(jobs: Sequence[Job], topic: str, window: Window) -> list[str]:
    """Return the active backfills that a plan warns of: same target, overlapping windows."""
    return [job.id for job in jobs if job.request["topic"] == topic and _window_of(job).overlaps(window)]


def _window_of(job: Job) -> Window:
    window = job.request["window"]
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
