"""What the actions of a job will do, in sentences."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from console.jobs import find_done

# Returns what an action of a job will do, in sentences.
Effects = Callable[[Mapping[str, Any]], tuple[str, ...]]
# What a cancel leaves of a job, by its kind.
_STAYS: Final = {
    "backfill": "The backfill stops. Published messages stay published. A retry sends the other messages.",
    "merge": "The merge stops. Sources that are already merged stay merged. The current source is merged "
    "completely or not at all. A retry merges the other sources.",
    "compaction": "The compaction stops. Tables that are already compacted stay compacted. A retry compacts the "
    "other tables.",
}


def render_left(job: Mapping[str, Any]) -> str:
    """Return how much of a job is done and left."""
    if job["kind"] != "backfill":
        found = find_done(job)
        if found is None:
            return f"The {job['kind']} of {job['stream']} is {job['state']}."
        return f"{found['done']:,} of {found['whole']:,} {found['of'].replace(' ', ' are ')}."
    progress = job["progress"]
    if progress["selected"] is None:
        return "The backfill's query has not run yet, so the number of messages is unknown."
    left = progress["selected"] - progress["published"]
    letters = f", including {progress['failed']:,} dead letters" if progress["failed"] else ""
    published = f"{progress['published']:,} of {progress['selected']:,} messages are published."
    return f"{published} {left:,} are not published yet{letters}."


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
    return (render_left(job), _STAYS[job["kind"]])


def retry_effects(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a retry will do."""
    goes_on = (
        "The backfill continues with the same selection. The query does not run again."
        if job["kind"] == "backfill"
        else f"The {job['kind']} continues where it stopped. Finished work is not repeated."
    )
    return (render_left(job), goes_on)


def rerun_effects(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what another job with the same request, or with a changed one, will do."""
    if job["kind"] == "backfill":
        return (
            "A new backfill is created. It runs its query again, and publishes the messages that it selects now.",
            "To publish only the messages that are not published yet, retry the earlier backfill instead.",
        )
    if job["kind"] == "compaction":
        return ("A new compaction of the same tables is created.", "No row changes.")
    return (
        "A new merge is created.",
        "It reads only rows that are not merged yet. To read rows again, set the time since which to read.",
        "Correctly merged rows do not change.",
    )


def approve_effects(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what an approval will do."""
    if job["kind"] == "change":
        return (
            f"{job['created_by']} asks: {job['what']}",
            "If you approve, Refeed carries out the action at once. The history names you and the requester.",
            "Nobody can approve their own request.",
        )
    rows = (job["approval"] or {}).get("rows")
    many = "an unknown number of" if rows is None else f"{rows:,}"
    return (
        f"{job['created_by']} wants to publish {many} messages to {job['topic']}.",
        "If you approve the backfill, it starts. The history names you as the approver.",
    )


def reject_effects(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a rejection will do."""
    return (
        f"{job['created_by']} asks: {job['what']}",
        "If you reject, Refeed does not carry out the action, and nobody can approve this request later.",
        "The requester can withdraw the request in this way.",
    )


def revert_effects(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a revert will do."""
    if job["kind"] == "update":
        way_back = () if job["finished_at"] else (job["checked"] or {}).get("no_way_back", ())
        again = "A new update returns the stream to its earlier release and options."
        return (
            render_left(job),
            again if job["finished_at"] else "The stream returns to its previous release and options.",
            *(f"The update can't be rolled back: {each}" for each in way_back),
        )
    landed = job["verification"]["landed"]
    rows = "The rows" if landed is None else f"{landed:,} rows"
    return (
        f"{rows} of this backfill are deleted from the staging table.",
        "If a merge has already read some of these rows, the API refuses the revert.",
        "Other consumers keep the messages that they have received.",
    )
