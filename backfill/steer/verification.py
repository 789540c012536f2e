"""Proves a backfill: what was selected, published, landed in its target's staging table and was merged."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

import numpy as np
from pydantic import BaseModel, Field

from backfill.run.folder import BackfillFolder
from backfill.run.progress import CheckpointFolder, Progress
from backfill.run.selection import Selection, read_selection, read_slice
from jobs.store import Job
from model.errors import AlreadyMergedError, RefeedError, RegistryError, StagingUnknownError
from model.job import JobState
from warehouse.staging import Staging

# A topic and a message's id, and the code and the reason of a dead letter.
Message = tuple[str, str]
Reason = tuple[str, str]
_MOST_LETTERS: Final = 1000


class VerificationState(StrEnum):
    """What is proven of a backfill."""

    PENDING = "pending"
    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verification:
    """The verdict on a backfill, in rows of its selection; None is what can't be known.

    ``missing`` are rows that have not landed, and ``dead_letters`` those of them that the pipeline could not read;
    they are counted while at most a thousand are missing. A row that was never sent, because the job ended before,
    is not missing. Of the rows that have not landed, ``waiting`` may not be delivered yet. ``advice`` says what a
    person does about a verdict that is open.
    """

    state: VerificationState
    selected: int | None
    published: int
    landed: int | None = None
    merged: int | None = None
    missing: int | None = None
    waiting: int | None = None
    advice: str | None = None
    dead_letters: int | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """Messages that wait for the streams that stage a topic; ``messages`` None is an unknown number of them."""

    messages: int | None
    advice: str


# Returns what waits of the messages that a topic got until a moment; None if nothing does, or nobody knows of any.
WaitingOf = Callable[[str, datetime], Waiting | None]


class MissingMessageOut(BaseModel):
    """A selected message that is not in the target's staging table."""

    row: int = Field(description="The row's number in the selection.")
    message_id: str | None
    topic: str | None = Field(description="The topic of the archived message.")
    publish_time: datetime | None
    code: str | None = Field(
        description="If the message became a dead letter of the pipeline since the backfill was created: the code "
        "of the dead letter. Else null."
    )
    reason: str | None = Field(description="The reason of this dead letter.")


def _no_reasons(_messages: Collection[Message], _start: datetime) -> Mapping[Message, Reason]:
    return {}


class Verifier:
    """Counts what became of a backfill's messages; ``staging_of`` returns the staging table of a topic, or None.

    ``find_reasons`` returns the code and the reason of messages that the pipeline made dead letters since a time.

    Raises:
        CheckpointCorruptError: any call, when the selection can't be read.
        RegistryError: any call but :meth:`verify`, when a fault hides whether a source reads the topic.
        WarehouseError: any call, when the staging table does not answer.
    """

    def __init__(
        self,
        folder_of: Callable[[str], BackfillFolder],
        staging_of: Callable[[str], Staging | None],
        waiting_of: WaitingOf = lambda _topic, _until: None,
        find_reasons: Callable[[Collection[Message], datetime], Mapping[Message, Reason]] = _no_reasons,
    ) -> None:
        self._folder_of = folder_of
        self._staging_of = staging_of
        self._waiting_of = waiting_of
        self._find_reasons = find_reasons

    def verify(self, job: Job) -> dict[str, Any]:
        """Return the verdict on ``job`` as the API shows it.

        It is pending while the job has not ended, while all that has not landed may not be delivered yet, and
        while the registry has a fault. It is unknown where no staging table is known and nothing is wrong so far.
        A later call may find more: what is published lands seconds after.
        """
        return asdict(self._judge(job))

    def _judge(self, job: Job) -> Verification:
        folder = self._folder_of(job.id)
        progress = Progress.of(job)
        selected, published = progress.selected, progress.published
        selection: Selection | None = None
        # The files of one that ended long ago are removed; its figures stay.
        if folder.exists():
            selection = read_selection(folder.selection)
            selected = None if selection is None else selection.rows
            published = sum(c.published for c in CheckpointFolder(folder.progress).read_all())
        if not job.state.is_final:
            return Verification(VerificationState.PENDING, selected, published)
        is_short = selected is None or published < selected
        try:
            staging = self._staging_of(job.request["topic"])
        except RegistryError as exc:
            return Verification(VerificationState.PENDING, selected, published, advice=exc.message)
        if selected is None or staging is None:
            if is_short:
                return Verification(VerificationState.INCOMPLETE, selected, published)
            advice = _render_unknown(job.request["topic"])
            return Verification(VerificationState.UNKNOWN, selected, published, advice=advice)
        # Before the rows: what lands in between is not taken to be missing.
        waits = self.find_waiting(job)
        rows = _landed(staging, job.id, selected)
        landed = int(np.count_nonzero(rows))
        # Without the files, which rows were sent is unknown.
        accounted = rows if selection is None else rows | ~_sent(job, folder, selection)
        gone = int(np.count_nonzero(~accounted))
        letters = None if selection is None else self._count_letters(job, gone)
        on_way = gone - (letters or 0)
        waiting = 0 if waits is None else on_way if waits.messages is None else min(on_way, waits.messages)
        state = VerificationState.INCOMPLETE
        if landed == selected and not is_short:
            state = VerificationState.COMPLETE
        elif 0 < waiting == gone and not is_short:
            state = VerificationState.PENDING
        return Verification(
            state,
            selected,
            published,
            landed=landed,
            merged=staging.merged_rows(job.id),
            missing=gone - waiting,
            waiting=waiting,
            advice=waits.advice if waits is not None and waiting else None,
            dead_letters=letters,
        )

    def _count_letters(self, job: Job, missing: int) -> int | None:
        if missing > _MOST_LETTERS:
            return None
        # Without the table of dead letters the rest of the verdict is as good.
        with suppress(RefeedError):
            found = self.missing_messages(job, limit=missing) if missing else ()
            return sum(each.code is not None for each in found)
        return None

    def find_waiting(self, job: Job) -> Waiting | None:
        """Return what waits of the messages that the target had got when the job ended; others' are among them."""
        return self._waiting_of(job.request["topic"], job.finished_at or datetime.now(UTC))

    def missing_messages(self, job: Job, *, limit: int, after: int = -1) -> list[MissingMessageOut]:
        """Return up to ``limit`` selected messages that are not in the staging table, after row ``after``.

        Those that became dead letters of the pipeline have the reason.

        Raises:
            StagingUnknownError: nobody knows what landed.
            QueryError: the table of dead letters can't be read.
        """
        selection, rows = self._find_missing(job)
        if selection is None:
            return []
        wanted = rows[np.searchsorted(rows, after, side="right") :][:limit]
        found = list(_read_messages(self._folder_of(job.id), selection, wanted))
        named = {(each.topic, each.message_id) for each in found if each.topic and each.message_id}
        reasons = self._find_reasons(named, job.created_at) if named else {}
        for each in found:
            each.code, each.reason = reasons.get((each.topic or "", each.message_id or ""), (None, None))
        return found

    def missing_rows(self, job: Job) -> list[int]:
        """Return the number of every row that was sent and has not landed, ascending.

        Raises:
            StagingUnknownError: nobody knows what landed.
        """
        rows: list[int] = self._find_missing(job)[1].tolist()
        return rows

    def _find_missing(self, job: Job) -> tuple[Selection | None, Any]:
        """Return the job's selection, if it was made, and the numbers of its rows that are missing."""
        staging, folder = self._staging(job), self._folder_of(job.id)
        selection = read_selection(folder.selection)
        if selection is None:
            return None, np.empty(0, dtype=np.int64)
        sent = _sent(job, folder, selection)
        return selection, np.flatnonzero(sent & ~_landed(staging, job.id, selection.rows))

    def delete_rows(self, job: Job) -> int:
        """Delete the job's rows from the staging table, and return how many there were.

        Raises:
            StagingUnknownError: there is none to delete from.
            AlreadyMergedError: some are merged; deleting the others would undo a part only.
        """
        staging = self._staging(job)
        merged = staging.merged_rows(job.id)
        if merged:
            raise AlreadyMergedError(
                f"{merged} rows of {job.id} are already in the reporting table.", id=job.id, merged=merged
            )
        return staging.delete_rows(job.id)

    def _staging(self, job: Job) -> Staging:
        topic = job.request["topic"]
        staging = self._staging_of(topic)
        if staging is None:
            raise StagingUnknownError(_render_unknown(topic), topic=topic)
        return staging


def _render_unknown(topic: str) -> str:
    return (
        f"Refeed knows no staging table for the topic {topic}, because no source reads the topic. To check this "
        f"replay, look at the backlogs of the topic's subscriptions: refeed histogram {topic}. To have later "
        "replays verified, add a source for the topic: refeed source publish --help"
    )


def _sent(job: Job, folder: BackfillFolder, selection: Selection) -> Any:
    """Return for each row of the selection whether Pub/Sub accepted or refused it; one byte a row."""
    if job.state is JobState.SUCCEEDED:
        return np.ones(selection.rows, dtype=np.bool_)
    sent = np.zeros(selection.rows, dtype=np.bool_)
    offsets = {c.slice: c.offset for c in CheckpointFolder(folder.progress).read_all()}
    for part in selection.slices:
        sent[part.first_row : part.first_row + offsets.get(part.number, 0)] = True
    return sent


def _landed(staging: Staging, backfill_id: str, selected: int) -> Any:
    """Return for each row of the selection whether it landed; one byte a row."""
    landed = np.zeros(selected, dtype=np.bool_)
    for batch in staging.landed_rows(backfill_id):
        rows = np.asarray(batch, dtype=np.int64)
        # A producer may have used the tags' names itself; a number that no row has proves nothing.
        landed[rows[(rows >= 0) & (rows < selected)]] = True
    return landed


def _read_messages(folder: BackfillFolder, selection: Selection, rows: Any) -> Iterator[MissingMessageOut]:
    """Yield the messages of ``rows``, which ascend, from the selection; each slice that has some is read once."""
    for part in selection.slices:
        here = rows[(rows >= part.first_row) & (rows < part.first_row + part.rows)]
        if len(here) == 0:
            continue
        found = read_slice(folder.selection, part).select(["refeed_row", "message_id", "topic", "publish_time"])
        for row in found.take(here - part.first_row).to_pylist():
            yield MissingMessageOut(row=row.pop("refeed_row"), **row, code=None, reason=None)
