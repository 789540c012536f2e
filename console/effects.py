"""What the actions of a backfill will do, in sentences."""

from collections.abc import Callable, Mapping
from typing import Any

# Returns what an action of a job will do, in sentences.
Effects = Callable[[Mapping[str, Any]], tuple[str, ...]]


def render_left(job: Mapping[str, Any]) -> str:
    """Return how many messages of a backfill are published and left."""
    progress = job["progress"]
    if progress["selected"] is None:
        return "The backfill's query has not run yet, so the number of messages is unknown."
    left = progress["selected"] - progress["published"] - progress["failed"]
    published = f"{progress['published']:,} of {progress['selected']:,} messages are published."
    return f"{published} {left:,} are not published yet."


def pause_effects(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a pause will do."""
    return (
        render_left(job),
        "The backfill publishes nothing more until somebody resumes it.",
        "Publish requests that the backfill has already sent still finish.",
    )


def resume_effects(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a resume will do."""
    return (
        render_left(job),
        f"The backfill continues to publish to {job['topic']}. The backfill does not pause for a canary again.",
    )


def cancel_effects(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a cancel will do."""
    return (
        render_left(job),
        "The backfill stops. Published messages stay published. A retry sends the other messages.",
    )


def approve_effects(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what an approval will do."""
    rows = (job["approval"] or {}).get("rows")
    many = "an unknown number of" if rows is None else f"{rows:,}"
    return (
        f"{job['created_by']} wants to publish {many} messages to {job['topic']}.",
        "If you approve the backfill, it starts. The history names you as the approver.",
    )


def revert_effects(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a revert will do."""
    landed = job["verification"]["landed"]
    rows = "The rows" if landed is None else f"{landed:,} rows"
    return (
        f"{rows} of this backfill are deleted from the staging table.",
        "If a merge has already read some of these rows, the API refuses the revert.",
        "Other consumers keep the messages that they have received.",
    )
