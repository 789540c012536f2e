"""What a task does: publish slices of a selection, tagged, with a checkpoint after each confirmed request."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backfill.selection import SelectionSlice, read_slice, render_time
from connectors.pubsub.channel import open_channel
from connectors.pubsub.publish import MAX_UNCONFIRMED_MESSAGES, Confirmation, Publisher, Refusal
from connectors.pubsub.requests import ATTRIBUTES_TYPE, MESSAGE_SCHEMA
from jobs.folder import JobFolder
from jobs.progress import CheckpointFolder, SliceCheckpoint
from model.message import (
    BACKFILL_ID_ATTRIBUTE,
    MAX_ATTRIBUTES,
    MESSAGE_ID_ATTRIBUTE,
    PUBLISH_TIME_ATTRIBUTE,
    REPLAY_ATTRIBUTE,
    REPLAY_TAGS,
    ROW_ATTRIBUTE,
    TOPIC_ATTRIBUTE,
)

CHECKPOINT_SCHEMA: Final = pa.schema(
    [("slice", pa.int64()), ("published", pa.int64()), ("failed", pa.int64()), ("done", pa.bool_())]
)
CHECKPOINT_DDL: Final = "slice bigint, published bigint, failed bigint, done boolean"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a backfill publishes to, and the tags that are the same for all of its messages."""

    backfill_id: str
    topic_path: str
    emulator_host: str | None
    replay_token: str


def unconfirmed_bound(slices_running: int) -> int:
    """Return how many messages at most still go out after a pause or a cancel of so many running slices.

    What a task has sent can't be called back: it is the requests that wait for their answers. How many slices run
    is ``len(folder.running_slices(epoch))``.
    """
    return slices_running * MAX_UNCONFIRMED_MESSAGES


def publish_slices(
    batches: Iterator[pa.RecordBatch],
    *,
    folder: str,
    epoch: int,
    target: Target,
    slices: tuple[SelectionSlice, ...],
) -> Iterator[pa.RecordBatch]:
    """Publish the slices whose places in ``slices`` arrive as column ``id``; yield one row a slice.

    This is what Spark calls in a task: places come in and counts go out, messages never pass through Spark.
    """
    job_folder = JobFolder(Path(folder))
    with open_channel(target.emulator_host) as channel:
        publisher = Publisher(channel, target.topic_path)
        for batch in batches:
            for place in batch.column("id").to_pylist():
                end = publish_slice(publisher, job_folder, epoch, target, slices[place])
                yield pa.RecordBatch.from_pylist(
                    [{field.name: getattr(end, field.name) for field in CHECKPOINT_SCHEMA}],
                    schema=CHECKPOINT_SCHEMA,
                )


def publish_slice(
    publisher: Publisher, folder: JobFolder, epoch: int, target: Target, part: SelectionSlice
) -> SliceCheckpoint:
    """Publish what is left of one slice and return how far it got.

    It goes on behind the last checkpoint of any attempt. What a crash lets go out twice is what was on its
    way without an answer: the publisher's requests in flight, counted in ``repeated_at_most``. It stops
    before the next request when the job's control says so.
    """
    checkpoints = CheckpointFolder(folder.progress)
    reached = _take_over(checkpoints.read(part.number), epoch, part, publisher.max_unconfirmed_messages)
    # Written before the first request: a slice without a checkpoint has sent nothing.
    checkpoints.write(reached)
    if reached.done:
        return reached
    rows = read_slice(folder.selection, part, reached.offset)
    messages, sent_rows, refused = tag_messages(rows, target)
    dead_letters = _DeadLetters(folder, epoch, part)
    times = rows.column("publish_time")
    base = reached.offset
    for confirmed in publisher.publish_arrow(messages, room=lambda _: 1000 if folder.may_publish(epoch) else None):
        end = confirmed.start + confirmed.rows
        offset = base + (int(sent_rows[end]) if end < len(sent_rows) else rows.num_rows)
        late = [Refusal(int(sent_rows[r.row]), r.reason) for r in confirmed.refused]
        early = [r for r in refused if reached.offset <= base + r.row < offset]
        dead_letters.write(rows, [*early, *late])
        reached = _advance(reached, confirmed, offset, failed=len(early) + len(late), times=times, base=base)
        checkpoints.write(reached)
    if len(sent_rows) == 0:
        dead_letters.write(rows, refused)
        reached = replace(reached, offset=part.rows, failed=reached.failed + len(refused))
    is_done = reached.offset == part.rows
    reached = replace(reached, done=is_done, stopped=not is_done)
    checkpoints.write(reached)
    return reached


def tag_messages(
    rows: pa.RecordBatch, target: Target
) -> tuple[pa.RecordBatch, np.ndarray[Any, np.dtype[np.int64]], list[Refusal]]:
    """Return messages to publish, the row that each comes from, and the rows that can't be messages.

    A message has its original attributes and the tags; where a producer used a tag's name, the tag wins. Rows
    whose attributes would be more than 100, or have no key or value, are refused. A topic or publish_time that
    the query does not give has no tag.
    """
    count = rows.num_rows
    attributes = rows.column("attributes")
    lengths = pc.list_value_length(attributes).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    parents = np.repeat(np.arange(count, dtype=np.int64), lengths)
    entries = attributes.flatten()
    keys, values = entries.field("key"), entries.field("value")
    has_no_text = pc.or_(pc.is_null(keys), pc.is_null(values)).to_numpy(zero_copy_only=False)
    kept = ~pc.is_in(keys, pa.array(REPLAY_TAGS)).to_numpy(zero_copy_only=False)
    tags = _tags(rows, target)
    tag_rows = [np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False)) for _, column in tags]
    all_rows = np.concatenate([parents[kept], *tag_rows])
    counts = np.bincount(all_rows, minlength=count)

    is_bad = np.zeros(count, dtype=bool)
    is_bad[parents[has_no_text]] = True
    is_crowded = counts > MAX_ATTRIBUTES
    refused = [
        Refusal(
            int(row),
            "attribute_without_text: an attribute has no key or no value"
            if is_bad[row]
            else f"no_room_for_tags: {counts[row]} attributes with the tags, Pub/Sub takes {MAX_ATTRIBUTES}",
        )
        for row in np.flatnonzero(is_bad | is_crowded)
    ]

    order = np.argsort(all_rows, kind="stable")
    mask = pa.array(kept)
    all_keys = pa.concat_arrays(
        [keys.filter(mask), *(pa.repeat(name, len(at)) for (name, _), at in zip(tags, tag_rows, strict=True))]
    )
    all_values = pa.concat_arrays([values.filter(mask), *(column.drop_null() for _, column in tags)])
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    merged = pa.MapArray.from_arrays(offsets, all_keys.take(pa.array(order)), all_values.take(pa.array(order)))
    data = rows.column("data")
    messages = pa.RecordBatch.from_arrays(
        [
            data if data.null_count == 0 else pc.fill_null(data, b""),
            merged.cast(ATTRIBUTES_TYPE),
            pa.repeat("", count),
        ],
        schema=MESSAGE_SCHEMA,
    )
    if not refused:
        return messages, np.arange(count, dtype=np.int64), []
    is_good = ~(is_bad | is_crowded)
    return messages.filter(pa.array(is_good)), np.flatnonzero(is_good), refused


def _tags(rows: pa.RecordBatch, target: Target) -> list[tuple[str, pa.Array]]:
    count = rows.num_rows
    return [
        (REPLAY_ATTRIBUTE, pa.repeat(target.replay_token, count)),
        (BACKFILL_ID_ATTRIBUTE, pa.repeat(target.backfill_id, count)),
        (ROW_ATTRIBUTE, rows.column("refeed_row").cast(pa.string())),
        (TOPIC_ATTRIBUTE, rows.column("topic")),
        (MESSAGE_ID_ATTRIBUTE, rows.column("message_id")),
        (PUBLISH_TIME_ATTRIBUTE, _render_times(rows.column("publish_time"))),
    ]


def _render_times(times: pa.Array) -> pa.Array:
    """Return times as RFC 3339 with microseconds and Z; a tenth of the time that strftime takes."""
    # Without its zone a time is still UTC, and its text is "2024-03-01 12:00:00.000005".
    texts = times.cast(pa.timestamp("us")).cast(pa.string()).cast(pa.binary())
    with_t = pc.binary_replace_slice(texts, 10, 11, b"T").cast(pa.string())
    return pc.binary_join_element_wise(with_t, "Z", "")


def _take_over(
    before: SliceCheckpoint | None, epoch: int, part: SelectionSlice, max_unconfirmed: int
) -> SliceCheckpoint:
    """Return where this attempt of the slice begins."""
    if before is None:
        return SliceCheckpoint(part.number, epoch)
    if before.done or before.stopped:
        # A stopped task waited for all of its answers: nothing was on its way.
        return replace(before, epoch=epoch, stopped=False)
    unknown = min(max_unconfirmed, part.rows - before.offset)
    return replace(before, epoch=epoch, repeated_at_most=before.repeated_at_most + unknown)


def _advance(
    reached: SliceCheckpoint, confirmed: Confirmation, offset: int, *, failed: int, times: pa.Array, base: int
) -> SliceCheckpoint:
    latest = pc.max(times.slice(reached.offset - base, offset - reached.offset)).as_py()
    event_time = max(filter(None, (reached.event_time, render_time(latest))), default=None)
    return replace(
        reached,
        offset=offset,
        published=reached.published + confirmed.rows - len(confirmed.refused),
        failed=reached.failed + failed,
        bytes=reached.bytes + confirmed.bytes,
        repeated_at_most=reached.repeated_at_most + confirmed.repeated,
        event_time=event_time,
    )


class _DeadLetters:
    """Rows of one slice that could not be published, and why; their payload stays in the selection."""

    def __init__(self, folder: JobFolder, epoch: int, part: SelectionSlice) -> None:
        self._path = folder.dead_letters / f"{part.number:06d}.{epoch}.ndjson"

    def write(self, rows: pa.RecordBatch, refused: Iterable[Refusal]) -> None:
        lines = [
            json.dumps(
                {
                    "row": rows.column("refeed_row")[refusal.row].as_py(),
                    "topic": rows.column("topic")[refusal.row].as_py(),
                    "message_id": rows.column("message_id")[refusal.row].as_py(),
                    **dict(zip(("code", "reason"), refusal.reason.split(": ", 1), strict=False)),
                }
            )
            for refusal in refused
        ]
        if lines:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                file.write("\n".join(lines) + "\n")
