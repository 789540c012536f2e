"""What can be seen of backfills: states, lists, histories, logs, slices and what is missing."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from backfill.chores import KIND
from backfill.dead_letters import (
    DeadLetterPage,
    DeadLetterReason,
    count_dead_letters,
    failed_rows,
    list_dead_letters,
)
from backfill.inbox import list_inbox
from backfill.pace import burst_of
from backfill.publish import unconfirmed_bound
from backfill.redrive import LetterCounter, LetterReason
from backfill.resource import Backfill
from backfill.selection import read_selection
from backfill.verification import MissingMessage, Verifier
from jobs.folder import JobFolder
from jobs.inbox import InboxItem
from jobs.listing import DEFAULT_PAGE_SIZE, ListRequest, read_page
from jobs.log import DEFAULT_TAIL_BYTES, LogPiece, read_log_end, read_log_from
from jobs.progress import CheckpointFolder
from jobs.store import Event, Job, JobStore
from model.errors import JobNotFoundError
from model.job import JobState
from model.principal import READ, Principal


@dataclass(frozen=True, slots=True)
class Page:
    """Some backfills, and the token of those that come after them."""

    backfills: list[Backfill]
    next_page_token: str | None


@dataclass(frozen=True, slots=True)
class Changes:
    """A backfill as it is now, and the lines of its history that are new."""

    shown: Backfill
    events: list[Event]


@dataclass(frozen=True, slots=True)
class SliceView:
    """How far one slice is; ``offset`` counts its rows with an answer from Pub/Sub, good or bad."""

    number: int
    first_row: int
    rows: int
    state: str
    offset: int
    published: int
    failed: int
    bytes: int
    event_time: str | None
    repeated_at_most: int


class BackfillReader:
    """Shows backfills within milliseconds, from the store and the jobs' folders.

    Raises:
        ForbiddenError: any call whose ``principal`` does not hold the scope it needs.
        JobNotFoundError: any call that names a backfill that is not there.
    """

    def __init__(
        self,
        store: JobStore,
        folder_of: Callable[[str], JobFolder],
        verifier: Verifier,
        letters: LetterCounter,
    ) -> None:
        self._store = store
        self._folder_of = folder_of
        self._verifier = verifier
        self._letters = letters

    def get(self, backfill_id: str, *, principal: Principal) -> Backfill:
        """Return the backfill with its latest figures."""
        return self._show(self._read(backfill_id, principal))

    def list_backfills(
        self,
        request: ListRequest | None = None,
        *,
        principal: Principal,
    ) -> Page:
        """Return backfills that a filter lets through, the newest first without an order.

        Raises:
            RequestInvalidError: order or token is wrong, or the token is of another list.
        """
        principal.require(READ)
        page = read_page(self._store, KIND, request or ListRequest())
        return Page([self._show(job) for job in page.jobs], page.next_page_token)

    def list_events(self, backfill_id: str, *, principal: Principal, after: int = 0) -> list[Event]:
        """Return the backfill's history behind line number ``after``, oldest first."""
        return self._store.list_events(self._read(backfill_id, principal).id, after=after)

    def watch(self, backfill_id: str, *, principal: Principal, after: int = 0) -> Changes:
        """Return the backfill and what happened to it behind line number ``after``; for whoever asks again.

        The state is read first, so one that has ended comes with the last line of its history.
        """
        job = self._read(backfill_id, principal)
        return Changes(self._show(job), self._store.list_events(job.id, after=after))

    def read_log(
        self, backfill_id: str, *, principal: Principal, tail_bytes: int = DEFAULT_TAIL_BYTES
    ) -> LogPiece:
        """Return the end of the driver's log, whole lines only; empty while there is none.

        A batch keeps its log at Google: then it is one line that says where.
        """
        job = self._read(backfill_id, principal)
        return read_log_end(job, self._folder_of(job.id).driver_log, tail_bytes=tail_bytes)

    def read_log_from(self, backfill_id: str, offset: int, *, principal: Principal) -> LogPiece:
        """Return what the driver's log has from byte ``offset`` on, 64 KiB at most; for whoever follows it."""
        job = self._read(backfill_id, principal)
        return read_log_from(job, self._folder_of(job.id).driver_log, offset)

    def list_slices(self, backfill_id: str, *, principal: Principal) -> list[SliceView]:
        """Return how far each slice is, in order; none before the selection is made."""
        folder = self._folder_of(self._read(backfill_id, principal).id)
        selection = read_selection(folder.selection)
        if selection is None:
            return []
        reached = {c.slice: c for c in CheckpointFolder(folder.progress).read_all()}
        views = []
        for part in selection.slices:
            c = reached.get(part.number)
            # Those that a retry has published since are no failures any more.
            failed = 0 if c is None or not c.failed else len(failed_rows(folder, part.number))
            views.append(
                SliceView(
                    number=part.number,
                    first_row=part.first_row,
                    rows=part.rows,
                    state="waiting" if c is None else "done" if c.done else "begun",
                    offset=0 if c is None else c.offset,
                    published=0 if c is None else c.offset - failed,
                    failed=failed,
                    bytes=0 if c is None else c.bytes,
                    event_time=None if c is None else c.event_time,
                    repeated_at_most=0 if c is None else c.repeated_at_most,
                )
            )
        return views

    def list_dead_letters(
        self, backfill_id: str, *, principal: Principal, limit: int = DEFAULT_PAGE_SIZE, after: int = -1
    ) -> DeadLetterPage:
        """Return messages that could not be published, whole, by row from behind ``after`` on."""
        job = self._read(backfill_id, principal)
        return list_dead_letters(self._folder_of(job.id), limit=limit, after=after)

    def count_dead_letters(self, backfill_id: str, *, principal: Principal) -> list[DeadLetterReason]:
        """Return how many messages could not be published for each reason, the most frequent one first."""
        return count_dead_letters(self._folder_of(self._read(backfill_id, principal).id))

    def list_missing(
        self, backfill_id: str, *, principal: Principal, limit: int = DEFAULT_PAGE_SIZE, after: int = -1
    ) -> list[MissingMessage]:
        """Return selected messages that have not landed, by row from behind ``after`` on.

        Raises:
            StagingUnknownError: nobody knows what landed.
        """
        job = self._read(backfill_id, principal)
        return self._verifier.missing_messages(job, limit=limit, after=after)

    def count_letters(self, start: datetime, *, principal: Principal) -> list[LetterReason]:
        """Return the pipeline's dead letters since ``start`` by source and reason.

        Raises:
            WarehouseError, QueryError: the table can't be read.
        """
        principal.require(READ)
        return self._letters.count(start)

    def list_active(self, *, principal: Principal) -> list[Backfill]:
        """Return every backfill that is not at its end, oldest first."""
        principal.require(READ)
        return [self._show(job) for job in self._store.list_active(KIND)]

    def list_inbox(self, *, principal: Principal) -> list[InboxItem]:
        """Return the backfills that go on, or are mended, only when somebody does something."""
        principal.require(READ)
        return list_inbox(self._store, self._folder_of)

    def _read(self, backfill_id: str, principal: Principal) -> Job:
        principal.require(READ)
        return self._get(backfill_id)

    def _get(self, backfill_id: str) -> Job:
        job = self._store.get(backfill_id)
        if job.kind != KIND:
            raise JobNotFoundError(f"There is no backfill {backfill_id}.", id=backfill_id)
        return job

    def _show(self, job: Job) -> Backfill:
        return Backfill.from_job(job, in_flight_at_most=self._in_flight_at_most(job))

    def _in_flight_at_most(self, job: Job) -> int | None:
        """Return how many messages may still go out of a job that is told to stop, or None while it runs.

        A task sends nothing new once it has seen the order; what it has under way are so many messages at most.
        """
        if job.state not in {JobState.PAUSED, JobState.CANCELLING}:
            return None
        folder = self._folder_of(job.id)
        running, selection = folder.running_slices(job.epoch), read_selection(folder.selection)
        rate = self._steady_rate(job) if running else None
        most = None if rate is None else burst_of(rate, folder.sight_seconds)
        under_way = unconfirmed_bound(len(running), most)
        # Higher numbers are of rows that are sent once more: they were counted the first time.
        if selection is None or any(number >= len(selection.slices) for number in running):
            return under_way
        if folder.sight_seconds and most is None:
            # Before a task has seen the order, a moment after it was given, it may send the rest of its slice.
            under_way = sum(selection.slices[number].rows for number in running)
        return max(0, min(selection.rows - job.progress.published - job.progress.failed, under_way))

    def _steady_rate(self, job: Job) -> float | None:
        """Return the job's rate limit when it has held since its attempt began, else None.

        What went out under another one may be on its way still.
        """
        rate: float | None = job.options.get("rate_limit_messages_per_second")
        for event in reversed(self._store.list_events(job.id) if rate is not None else []):
            if event.what == f"{JobState.PENDING} -> {JobState.RUNNING}":
                break
            if "rate_limit_messages_per_second" in event.what:
                return None
        return rate
