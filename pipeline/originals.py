"""Which message a row, or a dead letter, comes from: of a replay it is the original, which its tags name."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from connectors.pubsub.replays import find_replays, split_tags
from model.message import (
    BACKFILL_ID_ATTRIBUTE,
    MESSAGE_ID_ATTRIBUTE,
    PUBLISH_TIME_ATTRIBUTE,
    ROW_ATTRIBUTE,
    TOPIC_ATTRIBUTE,
)
from pipeline.values import to_timestamp

_INT64: Final = 1 << 63


def read_originals(messages: pa.RecordBatch, *, topic: str, token: str) -> pa.RecordBatch:
    """Return columns that say where ``messages`` come from, and ``attributes`` without the tags of replays.

    A replay is recognised by the ``token`` of ``topic`` alone; a tag that is missing or damaged changes
    nothing.
    """
    count = messages.num_rows
    found = {
        "attributes": messages.column("attributes"),
        "_topic": pa.repeat(pa.scalar(topic, pa.string()), count),
        "_message_id": messages.column("message_id"),
        "_publish_time": messages.column("publish_time"),
        "_backfill_id": pa.nulls(count, pa.string()),
        "_backfill_row": pa.nulls(count, pa.int64()),
    }
    is_replay = find_replays(messages, token) if count else None
    if is_replay is None:
        return pa.RecordBatch.from_pydict(found)
    values = {name: column.to_pylist() for name, column in found.items()}
    for at, flag in enumerate(is_replay.to_pylist()):
        if not flag:
            continue
        values["attributes"][at], tags = split_tags(values["attributes"][at])
        for name, (tag, parse) in _TAGS.items():
            # Tags are written by us; one that is damaged on its way must not end a stream.
            with suppress(ValueError, OverflowError):
                if tag in tags:
                    values[name][at] = parse(tags[tag])
    arrays = {name: pa.array(values[name], column.type) for name, column in found.items()}
    return pa.RecordBatch.from_pydict(arrays)


def replay_ids(backfill_ids: pa.Array, rows: pa.Array) -> pa.Array:
    """Return the name of each replay, ``BACKFILL:ROW``; empty for a live message, and for one that has lost a tag.

    A backfill may publish a row twice, under two message ids: these are one replay.
    """
    names = pc.binary_join_element_wise(backfill_ids.cast(pa.string()), rows.cast(pa.string()), ":")
    return pc.fill_null(names, "")


def _row_number(text: str) -> int:
    number = int(text)
    if not 0 <= number < _INT64:
        raise ValueError(f"{text} is not the number of a row")
    return number


_TAGS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "_topic": (TOPIC_ATTRIBUTE, str),
    "_message_id": (MESSAGE_ID_ATTRIBUTE, str),
    "_publish_time": (PUBLISH_TIME_ATTRIBUTE, to_timestamp),
    "_backfill_id": (BACKFILL_ID_ATTRIBUTE, str),
    "_backfill_row": (ROW_ATTRIBUTE, _row_number),
}
