"""The replays among pulled messages, and their tags, which name the original."""

from collections import Counter
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from model.message import BACKFILL_ID_ATTRIBUTE, REPLAY_ATTRIBUTE, REPLAY_TAGS, ROW_ATTRIBUTE


def find_replays(rows: pa.RecordBatch, token: str) -> pa.BooleanArray | None:
    """Return for each message whether it is a replay tagged with ``token``; None when none is, the usual case."""
    attributes = rows.column("attributes")
    pairs = attributes.flatten()
    is_tag = pc.and_(pc.equal(pairs.field("key"), REPLAY_ATTRIBUTE), pc.equal(pairs.field("value"), token))
    if not pc.any(is_tag).as_py():
        return None
    tagged_rows = pc.list_parent_indices(attributes).filter(is_tag)
    return pc.is_in(pa.array(range(rows.num_rows), tagged_rows.type), value_set=tagged_rows)


def count_forged(rows: pa.RecordBatch, token: str) -> Counter[str]:
    """Count the messages that carry ``token`` and lack a tag that every backfill writes, by that tag's name.

    No backfill published them: a producer knows the token, and its messages are in no archive.
    """
    found: Counter[str] = Counter()
    is_replay = find_replays(rows, token)
    if is_replay is None:
        return found
    attributes = rows.filter(is_replay).column("attributes")
    of_row, names = pc.list_parent_indices(attributes), attributes.flatten().field("key")
    left = set(range(len(attributes)))
    for tag in (BACKFILL_ID_ATTRIBUTE, ROW_ATTRIBUTE):
        tagged = set(of_row.filter(pc.equal(names, tag)).to_pylist())
        if missing := len(left - tagged):
            found[tag] = missing
        left &= tagged
    return found


def split_tags(attributes: list[dict[str, str]]) -> tuple[list[dict[str, str]], Mapping[str, str]]:
    """Return a replay's own attributes without the tags, and the tags.

    Example:
        >>> split_tags([{"key": "a", "value": "1"}, {"key": "refeed_row", "value": "7"}])
        ([{'key': 'a', 'value': '1'}], {'refeed_row': '7'})
    """
    own = [pair for pair in attributes if pair["key"] not in REPLAY_TAGS]
    return own, {pair["key"]: pair["value"] for pair in attributes if pair["key"] in REPLAY_TAGS}
