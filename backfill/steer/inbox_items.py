"""Backfills that wait for a person: canaries, approvals, pauses, failures, and what did not land."""

from collections.abc import Callable
from datetime import UTC, datetime

from backfill.run.progress import Progress
from backfill.steer.approval import exceeds_approval, known_rows
from backfill.steer.kind import BACKFILL
from jobs.folder import JobFolder
from jobs.inbox_items import InboxItem, InboxKind, failure_item, list_ended
from jobs.store import Job, JobStore
from model.job import JobState


def list_inbox(store: JobStore, folder_of: Callable[[str], JobFolder]) -> list[InboxItem]:
    """Return the backfills that go on, or are mended, only when somebody does something.

    What ended is looked at for seven days, a thousand backfills at most. The rows of a reverted backfill are meant
    to be missing.
    """
    active = store.list_active(BACKFILL.name)
    items = [item for job in active if (item := _waiting(job, store, folder_of)) is not None]
    for job in list_ended(store, BACKFILL.name, (JobState.FAILED, JobState.SUCCEEDED), now=datetime.now(UTC)):
        verification = job.findings or {}
        if job.state is JobState.FAILED:
            items.append(failure_item(job, job.request["topic"]))
        elif verification.get("state") == "incomplete" and not job.options.get("reverted"):
            missing = verification.get("missing")
            said = "an unknown number of" if missing is None else f"{missing:,}"
            items.append(
                _item(job, "incomplete", job.finished_at, f"{said} messages are not in the staging table")
            )
    return items


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
