"""What a backfill's message looks like: the archived one with the tags that say where it comes from."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connectors.pubsub.publish import KEY_STOPPED, Refusal
from connectors.pubsub.requests import ATTRIBUTES_TYPE, MESSAGE_SCHEMA, key_ends
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


@dataclass(frozen=True, slots=True)
class Target:
    """Where a backfill publishes to, and what is the same for all of its messages.

    ``attributes`` are added to each. With ``by_key`` messages keep their ordering keys, else they have none.
    """

    backfill_id: str
    topic_path: str
    emulator_host: str | None
    replay_token: str
    attributes: tuple[tuple[str, str], ...] = ()
    by_key: bool = False


def tag_messages(
    rows: pa.RecordBatch, target: Target, *, is_key_stopped: bool = False
) -> tuple[pa.RecordBatch, np.ndarray[Any, np.dtype[np.int64]], list[Refusal]]:
    """Return messages to publish, the row that each comes from, and the rows that can't be messages.

    A message has its original attributes, those that the target adds, and the tags. Where two have the same name,
    the tag wins over what is added, and that over the original. Rows whose attributes would be more than 100, or
    have no key or value, are refused; by key so are the rows behind one that have its ordering key. A topic or
    publish_time that the query does not give has no tag.
    """
    count = rows.num_rows
    attributes = rows.column("attributes")
    lengths = pc.list_value_length(attributes).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    parents = np.repeat(np.arange(count, dtype=np.int64), lengths)
    entries = attributes.flatten()
    keys, values = entries.field("key"), entries.field("value")
    has_no_text = pc.or_(pc.is_null(keys), pc.is_null(values)).to_numpy(zero_copy_only=False)
    tags = _tags(rows, target)
    names = [*REPLAY_TAGS, *(name for name, _ in tags)]
    kept = ~pc.is_in(keys, pa.array(names)).to_numpy(zero_copy_only=False)
    tag_rows = [np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False)) for _, column in tags]
    all_rows = np.concatenate([parents[kept], *tag_rows])
    counts = np.bincount(all_rows, minlength=count)

    is_bad = np.zeros(count, dtype=bool)
    is_bad[parents[has_no_text]] = True
    is_crowded = counts > MAX_ATTRIBUTES
    ordering_keys = pc.fill_null(rows.column("ordering_key"), "") if target.by_key else pa.repeat("", count)
    is_held = _held_by_key(is_bad | is_crowded, ordering_keys, is_stopped=is_key_stopped)
    is_refused = is_bad | is_crowded | is_held
    reasons = {
        int(row): "attribute_without_text: an attribute has no key or no value"
        if is_bad[row]
        else f"no_room_for_tags: {counts[row]} attributes with the tags, Pub/Sub takes {MAX_ATTRIBUTES}"
        if is_crowded[row]
        else KEY_STOPPED
        for row in np.flatnonzero(is_refused)
    }
    refused = [Refusal(row, reason) for row, reason in reasons.items()]

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
            ordering_keys,
        ],
        schema=MESSAGE_SCHEMA,
    )
    if not refused:
        return messages, np.arange(count, dtype=np.int64), []
    return messages.filter(pa.array(~is_refused)), np.flatnonzero(~is_refused), refused


def _held_by_key(
    is_refused: np.ndarray[Any, np.dtype[np.bool_]], keys: pa.Array, *, is_stopped: bool
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which rows stand behind a refused one of their key; ``is_stopped`` says so of the first row's key."""
    is_held = np.zeros(len(keys), dtype=bool)
    if not is_stopped and not is_refused.any():
        return is_held
    start = 0
    for end in key_ends(keys):
        if keys[start].as_py():
            before = np.logical_or.accumulate(is_refused[start:end])
            is_held[start + 1 : end] = before[:-1]
            if start == 0 and is_stopped:
                is_held[:end] = True
        start = int(end)
    is_held[is_refused] = False
    return is_held


def _tags(rows: pa.RecordBatch, target: Target) -> list[tuple[str, pa.Array]]:
    count = rows.num_rows
    added = [(name, pa.repeat(value, count)) for name, value in target.attributes if name not in REPLAY_TAGS]
    return [
        *added,
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
