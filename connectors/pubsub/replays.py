"""Which of the messages that were pulled are replays, and what their tags say of the original."""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from model.message import REPLAY_ATTRIBUTE, REPLAY_TAGS


def find_replays(rows: pa.RecordBatch, token: str) -> pa.BooleanArray | None:
    """Say of each message whether it is a replay tagged with ``token``; None when none is, the usual case."""
    attributes = rows.column("attributes")
    pairs = attributes.flatten()
    is_tag = pc.and_(pc.equal(pairs.field("key"), REPLAY_ATTRIBUTE), pc.equal(pairs.field("value"), token))
    if not pc.any(is_tag).as_py():
        return None
    tagged_rows = pc.list_parent_indices(attributes).filter(is_tag)
    return pc.is_in(pa.array(range(rows.num_rows), tagged_rows.type), value_set=tagged_rows)


def split_tags(attributes: list[dict[str, str]]) -> tuple[list[dict[str, str]], Mapping[str, str]]:
    """Return a replay's own attributes without the tags, and the tags.

    Example:
        >>> split_tags([{"key": "a", "value": "1"}, {"key": "refeed_row", "value": "7"}])
        ([{'key': 'a', 'value': '1'}], {'refeed_row': '7'})
    """
    own = [pair for pair in attributes if pair["key"] not in REPLAY_TAGS]
    return own, {pair["key"]: pair["value"] for pair in attributes if pair["key"] in REPLAY_TAGS}
