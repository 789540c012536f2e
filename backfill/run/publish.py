"""What a task does: publish pieces of a selection, tagged, with a checkpoint after each confirmed request."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backfill.run.dead_letters import DeadLetterWriter, failed_rows
from backfill.run.folder import BackfillFolder
from backfill.run.pace import Turn
from backfill.run.progress import CheckpointFolder, SliceCheckpoint
from backfill.run.selection import read_slice
from backfill.run.tagging import Target, common_attributes, tag_messages
from backfill.run.work import Chain, Piece
from connectors.pubsub.channel import process_channel
from connectors.pubsub.publish import MAX_UNCONFIRMED_MESSAGES, Confirmation, Publisher, RefusedMessage
from connectors.worker import freeze_loaded
from model import failpoint
from model.errors import FolderUnavailableError, RefeedError
from model.moment import render_time

CHECKPOINT_SCHEMA: Final = pa.schema(
    [("slice", pa.int64()), ("published", pa.int64()), ("failed", pa.int64()), ("done", pa.bool_())]
)
CHECKPOINT_DDL: Final = "slice bigint, published bigint, failed bigint, done boolean"


def unconfirmed_bound(slices_running: int, most: int | None = None) -> int:
    """Return how many messages at most still go out after a pause or a cancel of ``slices_running`` slices.

    What a task has sent can't be called back: it is the requests that wait for their answers. How many slices run
    is ``len(folder.running_slices(epoch))``. ``most`` is what the attempt's pace lets them have out together.
    """
    bound = slices_running * MAX_UNCONFIRMED_MESSAGES
    return bound if most is None else min(bound, most)


def publish_chains(
    batches: Iterator[pa.RecordBatch],
    *,
    folder: str,
    epoch: int,
    target: Target,
    chains: tuple[Chain, ...],
    max_failed: int = 0,
) -> Iterator[pa.RecordBatch]:
    """Publish the chains whose places in ``chains`` arrive as column ``id``; yield one row a piece.

    This is what Spark calls in a task: places come in and counts go out, messages never pass through Spark. A
    chain ends with the first piece that is not done. What no other try of the task would mend is written down as
    the attempt's fault, for its driver.
    """
    freeze_loaded()
    job_folder = BackfillFolder(folder)
    publisher = Publisher(process_channel(target.emulator_host), target.topic_path)
    publish = partial(publish_piece, publisher, job_folder, epoch, target, max_failed=max_failed)
    for batch in batches:
        for place in batch.column("id").to_pylist():
            try:
                ends = list(_publish_chain(publish, chains[place]))
            except FolderUnavailableError:
                # Another try of the task may find it well again.
                raise
            except RefeedError as exc:
                job_folder.write_fault(epoch, exc.code, exc.message)
                return
            rows = [{field.name: getattr(end, field.name) for field in CHECKPOINT_SCHEMA} for end in ends]
            yield pa.RecordBatch.from_pylist(rows, schema=CHECKPOINT_SCHEMA)


def _publish_chain(publish: Callable[[Piece], SliceCheckpoint], chain: Chain) -> Iterator[SliceCheckpoint]:
    for piece in chain:
        end = publish(piece)
        yield end
        if not end.done:
            return


def publish_piece(
    publisher: Publisher, folder: BackfillFolder, epoch: int, target: Target, piece: Piece, *, max_failed: int = 0
) -> SliceCheckpoint:
    """Publish what is left of one piece and return how far it got.

    It goes on after the last checkpoint of any attempt. What a crash lets go out twice is what was on its
    way without an answer: the publisher's requests in flight, counted in ``repeated_at_most``. It stops
    before the next request when the job's control or its driver says so, and once more than ``max_failed``
    messages of the piece failed in this attempt.
    """
    folder.enter_slice(piece.number, epoch)
    try:
        return _Publication(publisher, folder, epoch, target, piece, max_failed=max_failed).run()
    finally:
        folder.leave_slice(piece.number, epoch)


class _Publication:
    """One task's work on one piece."""

    def __init__(
        self,
        publisher: Publisher,
        folder: BackfillFolder,
        epoch: int,
        target: Target,
        piece: Piece,
        *,
        max_failed: int,
    ) -> None:
        self._publisher = publisher
        self._folder = folder
        self._target = target
        self._piece = piece
        self._max_failed = max_failed
        self._turn = Turn(folder, epoch, piece.number)
        self._letters = DeadLetterWriter(folder, epoch, piece.part)
        self._checkpoints = CheckpointFolder(folder.progress)
        before = self._checkpoints.read(piece.number)
        self._reached = _take_over(before, epoch, piece, publisher.max_unconfirmed_messages)
        self._base = self._reached.offset
        self._refused: deque[RefusedMessage] = deque()

    def run(self) -> SliceCheckpoint:
        # Written before the first request: a piece without a checkpoint has sent nothing.
        self._checkpoints.write(self._reached)
        failpoint.hit("backfill.piece.begun")
        if self._reached.done or self._turn.room(self._base) is None:
            return self._end()
        rows = self._piece.read(self._folder, self._base)
        if self._piece.kind == "selected":
            self._letters.forget_from(self._piece.row(self._folder, self._base))
        is_stopped = self._target.by_key and _is_key_stopped(self._folder, self._piece, self._base, rows)
        messages, places, refused = tag_messages(rows, self._target, is_key_stopped=is_stopped)
        self._refused = deque(refused)
        # Where the next message is, or the end of the rows.
        ends = np.append(places, rows.num_rows)
        if ends[0]:
            self._advance(rows, Confirmation(0, 0, 0), self._cut(0, int(ends[0])), [])

        def room(start: int) -> int | None:
            first = int(places[start])
            free = self._turn.room(self._base + first)
            if self._reached.newly_failed > self._max_failed or free is None:
                return None
            if len(places) == rows.num_rows:
                return free
            end = min(first + free, self._too_many_at(rows.num_rows))
            # Behind that row nothing is sent: the attempt ends with it.
            return int(np.searchsorted(places, end)) - start if first <= end else None

        for confirmed in self._publisher.publish_arrow(
            messages, added=common_attributes(self._target).items(), room=room, by_key=self._target.by_key
        ):
            end = self._reached.offset - self._base
            if confirmed.rows:
                following = confirmed.start + confirmed.rows
                end = self._cut(int(places[following - 1]) + 1, int(ends[following]))
            late = [RefusedMessage(int(places[refusal.row]), refusal.reason) for refusal in confirmed.refused]
            self._advance(rows, confirmed, end, late)
        return self._end()

    def _end(self) -> SliceCheckpoint:
        is_done = self._reached.offset == self._piece.rows
        self._reached = replace(self._reached, done=is_done, stopped=not is_done)
        self._checkpoints.write(self._reached)
        return self._reached

    def _too_many_at(self, end: int) -> int:
        """Return the row that is one refused too many, or ``end`` when the budget allows all of them."""
        allowed = max(0, self._max_failed - self._reached.newly_failed)
        # What fails again costs nothing.
        if self._piece.kind == "failed" or len(self._refused) <= allowed:
            return end
        return self._refused[allowed].row

    def _cut(self, least: int, end: int) -> int:
        """Return ``end``, or the end of the row after ``least`` that is one refused too many."""
        return max(least, min(end, self._too_many_at(end) + 1))

    def _advance(
        self, rows: pa.RecordBatch, confirmed: Confirmation, end: int, late: list[RefusedMessage]
    ) -> None:
        """Write down that the rows before ``end`` are answered for; dead letters first, they are counted here."""
        failpoint.hit("backfill.confirmed")
        begin = self._reached.offset - self._base
        failed = late
        while self._refused and self._refused[0].row < end:
            failed.append(self._refused.popleft())
        self._letters.write(rows, [(refusal.row, refusal.reason) for refusal in failed])
        count = end - begin
        if self._piece.kind == "failed":
            failing = {refusal.row for refusal in failed}
            numbers = rows.column("refeed_row")
            self._letters.write_published(numbers[n].as_py() for n in range(begin, end) if n not in failing)
        failpoint.hit("backfill.letters.written")
        self._reached = _count(self._reached, self._piece, confirmed, rows=count, failed=len(failed))
        times = rows.column("publish_time").slice(begin, count)
        self._reached = replace(self._reached, event_time=_latest(self._reached.event_time, times))
        self._checkpoints.write(self._reached)
        failpoint.hit("backfill.checkpoint.written")


def _count(
    reached: SliceCheckpoint, piece: Piece, confirmed: Confirmation, *, rows: int, failed: int
) -> SliceCheckpoint:
    """Return the checkpoint after ``rows`` more, ``failed`` of them dead letters."""
    published, newly_failed, again = rows - failed, failed, 0
    if piece.kind == "failed":
        # What fails again was counted the first time.
        failed, newly_failed = -published, 0
    elif piece.kind == "missing":
        # They were published before: this is the second time for each.
        published, again = -failed, rows - failed
    return replace(
        reached,
        offset=reached.offset + rows,
        published=reached.published + published,
        failed=reached.failed + failed,
        newly_failed=reached.newly_failed + newly_failed,
        bytes=reached.bytes + confirmed.bytes,
        repeated_at_most=reached.repeated_at_most + confirmed.repeated + again,
    )


def _latest(before: str | None, times: pa.Array) -> str | None:
    return max(filter(None, (before, render_time(pc.max(times).as_py()))), default=None)


def _take_over(before: SliceCheckpoint | None, epoch: int, piece: Piece, max_unconfirmed: int) -> SliceCheckpoint:
    """Return where this attempt of the piece begins."""
    if before is None:
        return SliceCheckpoint(piece.number, epoch)
    newly_failed = before.newly_failed if before.epoch == epoch else 0
    if before.done or before.stopped:
        # A stopped task waited for all of its answers: nothing was on its way.
        return replace(before, epoch=epoch, stopped=False, newly_failed=newly_failed)
    unknown = min(max_unconfirmed, piece.rows - before.offset)
    repeated = before.repeated_at_most + unknown
    return replace(before, epoch=epoch, repeated_at_most=repeated, newly_failed=newly_failed)


def _is_key_stopped(folder: BackfillFolder, piece: Piece, offset: int, rows: pa.RecordBatch) -> bool:
    """Whether the row before the next one is a dead letter of the same ordering key.

    Where a message of a key fails, the key's later ones in its slice do too: so the one before tells.
    """
    row = piece.row(folder, offset)
    part = piece.part
    if row > part.first_row:
        before: Any = (
            read_slice(folder.selection, part, row - part.first_row - 1).column("ordering_key")[0].as_py()
        )
        return before == rows.column("ordering_key")[0].as_py() and row - 1 in failed_rows(folder, part.number)
    return part.continues and row - 1 in failed_rows(folder, part.number - 1)
