from dataclasses import replace

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from backfill.run.selection import SELECTION_SCHEMA
from backfill.run.tagging import Target, common_attributes, tag_messages
from model.message import REPLAY_TAGS

ATTRIBUTES = SELECTION_SCHEMA.field("attributes").type
ADDED = (("added", "by us"), ("clash", "ours"), ("refeed_row", "not ours to set"))
TARGET = Target("bf_1", "projects/shop/topics/replay", None, "token")
texts = st.text(max_size=8)


@settings(max_examples=75, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.binary(max_size=20)),
            st.one_of(
                st.none(),
                st.dictionaries(st.one_of(texts, st.sampled_from([*REPLAY_TAGS, "clash"])), texts, max_size=6),
            ),
            st.booleans(),
        ),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 5),
    st.sampled_from([(), ADDED]),
)
def test_a_message_has_its_own_attributes_what_is_added_wins_over_them_and_tags_over_both(
    messages, skipped, added
):
    count = len(messages)
    selected = pa.RecordBatch.from_arrays(
        [
            pa.array(range(count), pa.int64()),
            pa.array([data for data, _, _ in messages], pa.binary()),
            pa.array(
                [
                    None if own is None else [{"key": k, "value": v} for k, v in own.items()]
                    for _, own, _ in messages
                ],
                ATTRIBUTES,
            ),
            pa.array([f"m{n}" for n in range(count)], pa.string()),
            pa.nulls(count, pa.timestamp("us", tz="UTC")),
            pa.array(["orders" if has_topic else None for _, _, has_topic in messages], pa.string()),
            pa.nulls(count, pa.string()),
        ],
        schema=SELECTION_SCHEMA,
    ).slice(min(skipped, count - 1))
    tagged, places, refused = tag_messages(selected, replace(TARGET, attributes=added))
    assert refused == []
    assert places.tolist() == list(range(selected.num_rows))
    common = common_attributes(replace(TARGET, attributes=added))
    for row, (data, own, has_topic) in zip(tagged.to_pylist(), messages[min(skipped, count - 1) :], strict=True):
        by_column = [(name, row[name]) for name in REPLAY_TAGS if row.get(name) is not None]
        attributes = [*((pair["key"], pair["value"]) for pair in row["attributes"]), *by_column, *common.items()]
        tags = {key: value for key, value in attributes if key in REPLAY_TAGS}
        rest = {key: value for key, value in attributes if key not in REPLAY_TAGS}
        assert row["data"] == (data or b"")
        wanted = {**(own or {}), **dict(added)}
        assert rest == {k: v for k, v in wanted.items() if k not in REPLAY_TAGS}
        assert (tags["refeed_replay"], tags["refeed_backfill_id"]) == ("token", "bf_1")
        assert tags["refeed_message_id"] == f"m{tags['refeed_row']}"
        assert ("refeed_topic" in tags) == has_topic
        assert "refeed_publish_time" not in tags
        assert len(attributes) == len(tags) + len(rest)


def rows_of(keys: list[str | None], bad: set[int]) -> pa.RecordBatch:
    count = len(keys)
    attributes = [[{"key": "n", "value": None if n in bad else "x"}] for n in range(count)]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(range(count), pa.int64()),
            pa.nulls(count, pa.binary()),
            pa.array(attributes, ATTRIBUTES),
            pa.nulls(count, pa.string()),
            pa.nulls(count, pa.timestamp("us", tz="UTC")),
            pa.nulls(count, pa.string()),
            pa.array(keys, pa.string()),
        ],
        schema=SELECTION_SCHEMA,
    )


def test_ordering_keys_are_restored_when_they_are_asked_for() -> None:
    rows = rows_of([None, "a", "b"], set())
    assert tag_messages(rows, TARGET)[0].column("ordering_key").to_pylist() == ["", "", ""]
    by_key = tag_messages(rows, replace(TARGET, by_key=True))[0]
    assert by_key.column("ordering_key").to_pylist() == ["", "a", "b"]


def test_by_key_the_rows_behind_a_refused_one_of_their_key_are_refused_too() -> None:
    rows = rows_of([None, None, "a", "a", "a", "b", "b", "c"], {0, 3, 6})
    _, _, refused = tag_messages(rows, replace(TARGET, by_key=True))
    _, _, stopped = tag_messages(rows.slice(4), replace(TARGET, by_key=True), is_key_stopped=True)
    _, places, without_order = tag_messages(rows, TARGET)
    assert [(r.row, r.reason.split(":")[0]) for r in refused] == [
        (0, "attribute_without_text"),
        (3, "attribute_without_text"),
        (4, "ordering_key_stopped"),
        (6, "attribute_without_text"),
    ]
    assert [r.row for r in stopped] == [0, 2]
    assert [r.row for r in without_order] == [0, 3, 6]
    assert places.tolist() == [1, 2, 4, 5, 7]
