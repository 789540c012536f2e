"""What the actions of a backfill will do, in sentences."""

from collections.abc import Callable, Mapping
from typing import Any

# Returns what an action of a job will do, in sentences.
Effects = Callable[[Mapping[str, Any]], tuple[str, ...]]


def render_left(job: Mapping[str, Any]) -> str:
    """Return how many messages of a backfill are published and left."""
    progress = job["progress"]
    if progress["selected"] is None:
        return "Its query has not run yet, so nobody knows how many messages are left."
    left = progress["selected"] - progress["published"] - progress["failed"]
    return f"{progress['published']:,} of {progress['selected']:,} messages are published; {left:,} are left."


def pause_effects(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a pause will do."""
    return (render_left(job), "Nothing new goes out until somebody resumes it. Requests under way are finished.")


def resume_effects(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a resume will do."""
    return (render_left(job), f"It goes on to its end and publishes to {job['topic']}. A canary ends with this.")


def cancel_effects(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a cancel will do."""
    return (render_left(job), "It stops. What was published stays published; a retry goes on with the rest.")


def approve_effects(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what an approval will do."""
    rows = (job["approval"] or {}).get("rows")
    many = "an unknown number of" if rows is None else f"{rows:,}"
    return (
        f"{job['created_by']} wants to publish {many} messages to {job['topic']}.",
        "With your approval it starts, and the history names you.",
    )


def revert_effects(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a revert will do."""
    landed = job["verification"]["landed"]
    rows = "The rows" if landed is None else f"{landed:,} rows"
    return (
        f"{rows} that this backfill brought into the staging table are deleted.",
        "What a merge has taken into reporting stays, and then the API refuses this.",
        "Messages that consumers have received can't be taken back.",
    )
