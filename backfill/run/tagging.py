"""Builds a backfill's messages: the archived ones with the tags that name their origin."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connectors.pubsub.encoding import MESSAGE_SCHEMA
from connectors.pubsub.publish import KEY_STOPPED, RefusedMessage
from connectors.pubsub.requests import key_ends
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

    ``emulator_host`` is where Pub/Sub is, an endpoint of Google's too (older specifications have the name).
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
) -> tuple[pa.RecordBatch, np.ndarray[Any, np.dtype[np.int64]], list[RefusedMessage]]:
    """Return messages to publish, the row that each comes from, and the rows that can't be messages.

    The messages are for a publisher that adds the target's :func:`common_attributes` to each: they have their own
    attributes, but those of the same name as a tag or as one that the target adds, and as further columns the
    tags that differ from message to message. A topic or publish_time that the query does not give has no tag. Rows
    whose attributes would be more than 100, or have no key or value, are refused; by key so are the rows after
    one that has their ordering key.
    """
    count = rows.num_rows
    common, tags = common_attributes(target), _tags(rows)
    attributes, has_no_text = _without(rows.column("attributes"), {*REPLAY_TAGS, *common})
    counts = pc.list_value_length(attributes).to_numpy() + len(common)
    for values in tags.values():
        counts = counts + values.is_valid().to_numpy(zero_copy_only=False)

    is_crowded = counts > MAX_ATTRIBUTES
    ordering_keys = pc.fill_null(rows.column("ordering_key"), "") if target.by_key else pa.repeat("", count)
    is_held = _held_by_key(has_no_text | is_crowded, ordering_keys, is_stopped=is_key_stopped)
    is_refused = has_no_text | is_crowded | is_held
    reasons = {
        int(row): "attribute_without_text: an attribute has no key or no value"
        if has_no_text[row]
        else f"no_room_for_tags: {counts[row]} attributes with the tags, but Pub/Sub allows only {MAX_ATTRIBUTES}"
        if is_crowded[row]
        else KEY_STOPPED
        for row in np.flatnonzero(is_refused)
    }
    refused = [RefusedMessage(row, reason) for row, reason in reasons.items()]
    data = rows.column("data")
    messages = pa.RecordBatch.from_arrays(
        [data if data.null_count == 0 else pc.fill_null(data, b""), attributes, ordering_keys, *tags.values()],
        schema=pa.schema([*MESSAGE_SCHEMA, *(pa.field(name, pa.string()) for name in tags)]),
    )
    if not refused:
        return messages, np.arange(count, dtype=np.int64), []
    return messages.filter(pa.array(~is_refused)), np.flatnonzero(~is_refused), refused


def common_attributes(target: Target) -> dict[str, str]:
    """Return what every message of a backfill gets: what the target adds, and the tags that are all the same.

    Of two that have the same name the tag wins.
    """
    return {name: value for name, value in target.attributes if name not in REPLAY_TAGS} | {
        REPLAY_ATTRIBUTE: target.replay_token,
        BACKFILL_ID_ATTRIBUTE: target.backfill_id,
    }


def _without(lists: pa.Array, names: Collection[str]) -> tuple[pa.Array, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Return the lists of attributes without those that have one of ``names``, and which have no key or value."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    parents = np.repeat(np.arange(len(lists)), lengths)
    entries = lists.flatten()
    has_no_text = np.zeros(len(lists), dtype=bool)
    is_null = pc.or_(pc.is_null(entries.field("key")), pc.is_null(entries.field("value")))
    has_no_text[parents[is_null.to_numpy(zero_copy_only=False)]] = True
    kept = pc.invert(pc.is_in(entries.field("key"), pa.array(names)))
    if not pc.all(kept).as_py():
        entries = entries.filter(kept)
        lengths = np.bincount(parents[kept.to_numpy(zero_copy_only=False)], minlength=len(lists))
    ends = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    return pa.ListArray.from_arrays(ends, entries), has_no_text


def _held_by_key(
    is_refused: np.ndarray[Any, np.dtype[np.bool_]], keys: pa.Array, *, is_stopped: bool
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which rows come after a refused one of their key; with ``is_stopped`` the first row's key had one."""
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


def _tags(rows: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the tags that differ from message to message."""
    return {
        ROW_ATTRIBUTE: rows.column("refeed_row").cast(pa.string()),
        TOPIC_ATTRIBUTE: rows.column("topic"),
        MESSAGE_ID_ATTRIBUTE: rows.column("message_id"),
        PUBLISH_TIME_ATTRIBUTE: _render_times(rows.column("publish_time")),
    }


def _render_times(times: pa.Array) -> pa.Array:
    """Return times as RFC 3339 with microseconds and Z; a tenth of the time that strftime takes."""
    # Without its zone a time is still UTC, and its text is "2024-03-01 12:00:00.000005".
    texts = times.cast(pa.timestamp("us")).cast(pa.string()).cast(pa.binary())
    with_t = pc.binary_replace_slice(texts, 10, 11, b"T").cast(pa.string())
    return pc.binary_join_element_wise(with_t, "Z", "")
