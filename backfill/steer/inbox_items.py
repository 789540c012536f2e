"""Backfills that wait for a person: canaries, approvals, pauses, failures, and what did not land."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from backfill.run.progress import Progress
from backfill.steer.approval import exceeds_approval, known_rows
from backfill.steer.kind import BACKFILL
from jobs.folder import JobFolder
from jobs.inbox_items import InboxItem, InboxKind, list_ended, list_failures
from jobs.store import Job, JobStore
from model.job import JobState

# What decides which messages a backfill publishes, and who gets them.
_PUBLISHED: Final = ("topic", "query", "parameters", "attributes", "target_subscription")


def list_inbox(store: JobStore, folder_of: Callable[[str], JobFolder]) -> list[InboxItem]:
    """Return the backfills that go on, or are mended, only when somebody does something.

    What ended is looked at for seven days, a thousand backfills at most. A later backfill of the same messages
    that succeeded makes up for one that failed. The rows of a reverted backfill are meant to be missing, and the
    pipeline's dead letters are counted elsewhere, however often they are sent again.
    """
    active = store.list_active(BACKFILL.name)
    items = [item for job in active if (item := _waiting(job, store, folder_of)) is not None]
    ended = list_ended(store, BACKFILL.name, (JobState.FAILED, JobState.SUCCEEDED), now=datetime.now(UTC))
    items += list_failures(ended, _publishes_same)
    for job in ended:
        verification = job.findings or {}
        missing, letters = verification.get("missing"), verification.get("dead_letters")
        is_explained = job.options.get("reverted") or (missing and missing == letters)
        if job.state is JobState.SUCCEEDED and verification.get("state") == "incomplete" and not is_explained:
            said = "an unknown number of" if missing is None else f"{missing:,}"
            items.append(
                _item(job, "incomplete", job.finished_at, f"{said} messages are not in the staging table")
            )
    return items


def _publishes_same(later: Job, job: Job) -> bool:
    return all(later.request.get(name) == job.request.get(name) for name in _PUBLISHED)


def _waiting(job: Job, store: JobStore, folder_of: Callable[[str], JobFolder]) -> InboxItem | None:
    if job.state not in {JobState.PENDING, JobState.PAUSED}:
        return None
    if exceeds_approval(job):
        rows = known_rows(job)
        above = (job.approval or {}).get("above_rows")
        said = f"it has {rows:,} rows, more than {above:,}: a person other than {job.created_by} must approve it"
        return _item(job, "approval", _paused_at(job, store), said)
    if job.state is not JobState.PAUSED:
        return None
    if folder_of(job.id).read_pause(job.epoch) is not None:
        progress = Progress.of(job)
        of = "" if progress.selected is None else f" of {progress.selected:,}"
        return _item(
            job,
            "canary",
            _paused_at(job, store),
            f"{progress.published:,}{of} messages are published, and the backfill waits",
        )
    return _item(
        job, "paused", _paused_at(job, store), "the backfill was paused, or was created with start_paused"
    )


def _paused_at(job: Job, store: JobStore) -> datetime:
    """Return when the job began to wait: at its latest pause, else when it was created."""
    found = [event.at for event in store.list_events(job.id) if event.is_move(to=JobState.PAUSED)]
    return found[-1] if found else job.created_at


def _item(job: Job, kind: InboxKind, since: datetime | None, message: str) -> InboxItem:
    return InboxItem(kind, job.kind, job.id, job.state, job.request["topic"], job.created_by, since, message)
