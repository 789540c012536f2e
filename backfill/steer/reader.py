"""What can be seen of backfills: states, lists, histories, logs, slices and what is missing."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from backfill.plan.redrive import LetterChoice, LetterCounter, LetterReasonOut
from backfill.run.dead_letters import (
    DeadLetter,
    DeadLetterReason,
    count_dead_letters,
    failed_rows,
    find_dead_letter,
    list_dead_letters,
)
from backfill.run.folder import BackfillFolder
from backfill.run.pace import burst_of
from backfill.run.progress import CheckpointFolder, Progress, SliceCheckpoint
from backfill.run.publish import unconfirmed_bound
from backfill.run.selection import read_selection
from backfill.steer.inbox_items import list_inbox
from backfill.steer.kind import BACKFILL
from backfill.steer.letters import show_letter, show_pipeline_letter
from backfill.steer.rates import BackfillRate, rate_intervals
from backfill.steer.verification import MissingMessageOut, Verifier
from backfill.steer.view import Backfill
from jobs.inbox_items import InboxItem
from jobs.listing import DEFAULT_PAGE_SIZE
from jobs.service import JobService
from jobs.store import Job, JobStore
from jobs.store.figures import job_subject
from jobs.supervisor import JobSupervisor
from model.errors import ForbiddenError, MessageNotFoundError
from model.job import JobState
from model.moment import render_moment
from model.principal import MESSAGES, READ, Principal


class BackfillSlice(BaseModel):
    """One slice (a part of the selection), and its progress."""

    number: int = Field(description="The slice's number.")
    first_row: int = Field(description="The number of the slice's first row.")
    rows: int = Field(description="Number of rows in the slice.")
    state: Literal["waiting", "begun", "done"] = Field(description="The state of the slice.")
    offset: int = Field(description="Number of rows of the slice that Pub/Sub has accepted or refused.")
    published: int = Field(description="Number of messages that Pub/Sub has confirmed.")
    failed: int = Field(description="Number of messages that can't be published.")
    bytes: int = Field(description="Bytes of the publish requests that Pub/Sub has confirmed.")
    event_time: datetime | None = Field(description="The latest `publish_time` of the slice's replayed messages.")
    repeated_at_most: int = Field(
        description="At most this number of the slice's messages were published twice, or would be published "
        "twice by a retry."
    )


class BackfillReader(JobService[Backfill]):
    """Shows backfills within milliseconds, from the store and the jobs' folders.

    Raises:
        ForbiddenError: any call whose ``principal`` does not hold the scope it needs.
        JobNotFoundError: any call that names a backfill that is not there.
    """

    def __init__(
        self, store: JobStore, supervisor: JobSupervisor, verifier: Verifier, letters: LetterCounter
    ) -> None:
        super().__init__(BACKFILL, store, supervisor)
        self._verifier = verifier
        self._letters = letters

    def list_slices(self, backfill_id: str, *, principal: Principal) -> list[BackfillSlice]:
        """Return how far each slice is, in order; none before the selection is made."""
        folder = self._folder_of(self._read(backfill_id, principal).id)
        selection = read_selection(folder.selection)
        if selection is None:
            return []
        reached = {c.slice: c for c in CheckpointFolder(folder.progress).read_all()}
        views = []
        for part in selection.slices:
            c = reached.get(part.number, SliceCheckpoint(part.number, epoch=0))
            # Those that a retry has published since are no failures any more.
            failed = len(failed_rows(folder, part.number)) if c.failed else 0
            views.append(
                BackfillSlice(
                    number=part.number,
                    first_row=part.first_row,
                    rows=part.rows,
                    state="waiting" if part.number not in reached else "done" if c.done else "begun",
                    offset=c.offset,
                    published=c.offset - failed,
                    failed=failed,
                    bytes=c.bytes,
                    event_time=None if c.event_time is None else datetime.fromisoformat(c.event_time),
                    repeated_at_most=c.repeated_at_most,
                )
            )
        return views

    def list_dead_letters(
        self,
        backfill_id: str,
        *,
        principal: Principal,
        limit: int = DEFAULT_PAGE_SIZE,
        after: int = -1,
        preview_bytes: int | None = None,
    ) -> tuple[list[dict[str, Any]], int | None]:
        """Return messages that could not be published, by row after ``after``, and the last row if there are more.

        Payloads and attributes are those that the caller may read, payloads cut at ``preview_bytes``.
        """
        job = self._read(backfill_id, principal)
        page = list_dead_letters(self._folder_of(job.id), limit=limit, after=after, preview_bytes=preview_bytes)
        shown = [show_letter(letter, reader=principal, preview_bytes=preview_bytes) for letter in page.letters]
        return shown, page.next_after

    def read_dead_letter(self, backfill_id: str, row: int, *, principal: Principal) -> DeadLetter:
        """Return one message that could not be published, whole.

        Raises:
            MessageNotFoundError: the row is no dead letter, or has been published since.
            ForbiddenError: the caller may not read messages, or not those of its topic.
        """
        job = self._read(backfill_id, principal)
        principal.require(MESSAGES)
        letter = find_dead_letter(self._folder_of(job.id), row)
        if letter is None:
            raise MessageNotFoundError(
                f"Row {row} of {job.id} is not a dead letter, or it has been published in the meantime.", row=row
            )
        if not principal.may_read(letter.topic):
            topic = letter.topic or "that the query did not give"
            raise ForbiddenError(
                f"{principal.name} may not read messages of the topic {topic}.", topic=letter.topic
            )
        return letter

    def count_dead_letters(self, backfill_id: str, *, principal: Principal) -> list[DeadLetterReason]:
        """Return how many messages could not be published for each reason, the most frequent one first."""
        return count_dead_letters(self._folder_of(self._read(backfill_id, principal).id))

    def list_rates(self, backfill_id: str, *, principal: Principal) -> list[BackfillRate]:
        """Return how much was published in each interval since the backfill began, oldest first; 240 at most."""
        job = self._read(backfill_id, principal)
        subject = job_subject(job.id)
        return rate_intervals(job, self._store.list_figures([subject], job.created_at).get(subject, ()))

    def list_missing(
        self, backfill_id: str, *, principal: Principal, limit: int = DEFAULT_PAGE_SIZE, after: int = -1
    ) -> list[MissingMessageOut]:
        """Return selected messages that are not in the staging table, by row after ``after``.

        Those that became dead letters of the pipeline have the reason.

        Raises:
            StagingUnknownError: nobody knows what landed.
            WarehouseError, QueryError: a table can't be read.
        """
        job = self._read(backfill_id, principal)
        return self._verifier.missing_messages(job, limit=limit, after=after)

    def explain_missing(self, backfill_id: str, *, principal: Principal) -> str | None:
        """Return why missing messages may still arrive, and what to do; None if none is on its way."""
        waits = self._verifier.find_waiting(self._read(backfill_id, principal))
        return None if waits is None else waits.advice

    def count_letters(self, start: datetime, *, principal: Principal) -> list[LetterReasonOut]:
        """Return the pipeline's dead letters since ``start`` by source, reason and path.

        Raises:
            WarehouseError, QueryError: the table can't be read.
        """
        principal.require(READ)
        return self._letters.count(start)

    def list_letters(
        self, choice: LetterChoice, *, principal: Principal, limit: int, preview_bytes: int | None = None
    ) -> list[dict[str, Any]]:
        """Return up to ``limit`` of the pipeline's dead letters, the latest first.

        With ``preview_bytes`` they have the payloads that the caller may read, cut there, and their attributes.

        Raises:
            WarehouseError, QueryError: the table can't be read.
        """
        principal.require(READ)
        # Where queries are billed, payloads that nobody may see are not read.
        wanted = preview_bytes if principal.may(MESSAGES) else None
        found = self._letters.list_messages(choice, limit=limit, preview_bytes=wanted)
        return [show_pipeline_letter(letter, reader=principal, preview_bytes=wanted) for letter in found]

    def read_letter_data(
        self, source: str, topic: str, message_id: str, start: datetime, *, principal: Principal
    ) -> bytes:
        """Return the whole payload of one of the pipeline's dead letters that was written since ``start``.

        Raises:
            MessageNotFoundError: there is no such dead letter.
            ForbiddenError: the caller may not read messages, or not those of the topic.
            WarehouseError, QueryError: the table can't be read.
        """
        principal.require(READ)
        principal.require(MESSAGES)
        principal.require_reading(topic)
        data = self._letters.read_data(source, topic, message_id, start)
        if data is None:
            message = f"{source} has no dead letter {message_id} of {topic} since {render_moment(start)}."
            raise MessageNotFoundError(message, topic=topic)
        return data

    def _folder_of(self, job_id: str) -> BackfillFolder:
        return BackfillFolder.of(super()._folder_of(job_id))

    def _list_waiting(self) -> list[InboxItem]:
        return list_inbox(self._store, self._folder_of)

    def _show(self, job: Job) -> Backfill:
        return Backfill.from_job(job, in_flight_at_most=self._in_flight_at_most(job))

    def _in_flight_at_most(self, job: Job) -> int | None:
        """Return how many messages may still go out of a job that is to stop, or None while it runs.

        A task sends nothing new once it has seen the order; it has at most this many messages under way.
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
        progress = Progress.of(job)
        return max(0, min(selection.rows - progress.published - progress.failed, under_way))

    def _steady_rate(self, job: Job) -> float | None:
        """Return the job's rate limit when it has held since its attempt began, else None.

        What went out under another one may be on its way still.
        """
        rate: float | None = job.options.get("rate_limit_messages_per_second")
        for event in reversed(self._store.list_events(job.id) if rate is not None else []):
            if event.is_move(before=JobState.PENDING, to=JobState.RUNNING):
                break
            if event.has_changed("rate_limit_messages_per_second"):
                return None
        return rate
