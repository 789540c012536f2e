"""Backfills that wait for a person: canaries, approvals, pauses, failures, and what did not land."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from backfill.run.progress import Progress
from backfill.steer.approval import exceeds_approval, known_rows
from backfill.steer.kind import BACKFILL
from jobs.folder import JobFolder
from jobs.inbox_items import InboxItem, InboxKind, list_ended, list_failures
from jobs.store import Job, JobStore
from model.job import JobState

# What decides which messages a backfill publishes, and who gets them.
_PUBLISHED: Final = ("topic", "query", "parameters", "attributes", "target_subscription")
# The parameters of a redrive's query.
_REDRIVE: Final = frozenset({"from", "source", "codes", "paths", "message_ids"})
# 'refeed dead-letters' has them for longer.
_LETTERS_WITHIN: Final = timedelta(days=1)
_GOES: Final = "This item goes after one day, or when the same messages are sent again"


def list_inbox(store: JobStore, folder_of: Callable[[str], JobFolder]) -> list[InboxItem]:
    """Return the backfills that go on, or are mended, only when somebody does something.

    What ended is looked at for seven days, a thousand backfills at most. A later backfill of the same messages
    that succeeded makes up for one that failed, and its verdict replaces that of an earlier one. The rows of a
    reverted backfill are meant to be missing.
    """
    active = store.list_active(BACKFILL.name)
    items = [item for job in active if (item := _waiting(job, store, folder_of)) is not None]
    ended = list_ended(store, BACKFILL.name, (JobState.FAILED, JobState.SUCCEEDED), now=datetime.now(UTC))
    items += list_failures(ended, _publishes_same)
    return [*items, *_list_incomplete([job for job in ended if job.state is JobState.SUCCEEDED])]


def _list_incomplete(succeeded: Sequence[Job]) -> Iterator[InboxItem]:
    """Yield the items of backfills whose messages have not landed whole, but for those that were sent again."""
    for job in succeeded:
        verdict = job.findings or {}
        missing, letters = verdict.get("missing"), verdict.get("dead_letters")
        is_replaced = any(_replaces(later, job) for later in succeeded)
        if verdict.get("state") != "incomplete" or job.options.get("reverted") or is_replaced:
            continue
        count = f"{'an unknown number of' if missing is None else f'{missing:,}'} messages"
        said = f"{count} are not in the staging table"
        if missing and missing == letters:
            if job.finished_at is None or datetime.now(UTC) - job.finished_at > _LETTERS_WITHIN:
                continue
            said = f"{count} became dead letters of the pipeline again. {_GOES}"
        elif letters:
            said += f", and {letters:,} of them are dead letters of the pipeline"
        yield _item(job, "incomplete", job.finished_at, said)


def _replaces(later: Job, job: Job) -> bool:
    """Whether a later backfill has sent the missing messages of ``job`` again, and has a verdict of its own."""
    verdict, missing = later.findings or {}, (job.findings or {}).get("missing")
    if later.created_at <= job.created_at or verdict.get("state") not in {"complete", "incomplete"}:
        return False
    is_whole = missing is not None and (verdict.get("selected") or 0) >= missing
    return is_whole and _messages_of(later) == _messages_of(job)


def _messages_of(job: Job) -> list[Any]:
    """Return what says which messages a backfill sends, of a redrive without its time and the tables it reads."""
    request = {name: job.request.get(name) for name in _PUBLISHED}
    parameters = request["parameters"] or {}
    if parameters.keys() >= _REDRIVE:
        request["query"] = None
        request["parameters"] = {**parameters, "from": None}
    return [request[name] for name in _PUBLISHED]


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
