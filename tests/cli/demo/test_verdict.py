from dataclasses import replace

import pytest

from cli.demo.verdict import ArchivedMessage, Verdict, compare_archive, compare_replay
from model.message import Message

AT = "2026-01-01T00:00:00.000001Z"
PUBLISHED = {
    ("orders", "1"): Message(b"\x00\xff", {"a": "1", "b": ""}),
    ("orders", "2"): Message(b"", {"a": "1", "refeed_replay": "foreign"}),
    # The same id in another topic is another message.
    ("members", "1"): Message(b"x", {}),
}
ROWS = [
    ArchivedMessage("orders", "1", b"\x00\xff", (("b", ""), ("a", "1")), AT),
    ArchivedMessage("orders", "2", b"", (("a", "1"), ("refeed_replay", "foreign")), AT),
    ArchivedMessage("members", "1", b"x", (), AT),
]
MARKER = ArchivedMessage("orders", "9", b"", (("refeed-demo", "marker"),), AT)
CLEAN = Verdict(published=3, archived=3, selected=2, republished=2, expected_selected=2, seconds={"total": 1.0})


def figures(rows: list[ArchivedMessage]) -> tuple[int, int, int, int, int]:
    found = compare_archive(PUBLISHED, rows, frozenset({("orders", "9")}))
    return found.archived, found.lost, found.duplicates, found.payload_mismatches, found.foreign


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        pytest.param([*ROWS, MARKER, MARKER], (3, 0, 0, 0, 0), id="markers do not count"),
        pytest.param(ROWS[:2], (2, 1, 0, 0, 0), id="lost"),
        pytest.param([*ROWS, ROWS[0]], (3, 0, 1, 0, 0), id="a duplicate"),
        pytest.param([*ROWS, replace(ROWS[0], message_id="7")], (3, 0, 0, 0, 1), id="foreign"),
        *(
            ([changed, *ROWS[1:]], (3, 0, 0, 1, 0))
            for changed in (
                replace(ROWS[0], data=b"\x00\xfe"),
                replace(ROWS[0], data=None),
                replace(ROWS[0], attributes=(("a", "1"),)),
                replace(ROWS[0], attributes=(("a", "1"), ("b", " "))),
                replace(ROWS[0], attributes=(("a", "1"), ("b", ""), ("b", ""))),
            )
        ),
    ],
)
def test_an_archive_has_every_fault_counted_as_what_it_is(rows, found):
    assert figures(rows) == found


def replayed(row: int, source: ArchivedMessage, **changes: str | None) -> Message:
    tags = {
        "refeed_replay": "token",
        "refeed_backfill_id": "bf_1",
        "refeed_row": str(row),
        "refeed_topic": source.topic,
        "refeed_message_id": source.message_id,
        "refeed_publish_time": AT,
        **changes,
    }
    attributes = {**dict(source.attributes), **tags}
    return Message(source.data, {name: value for name, value in attributes.items() if value is not None}, str(row))


def replay_figures(messages: list[Message]) -> tuple[int, int, int, int]:
    selected = {(row.topic, row.message_id): row for row in ROWS[:2]}
    found = compare_replay(selected, messages, token="token", backfill_id="bf_1")
    return found.republished, found.repeated, found.payload_mismatches, found.untagged


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        # A tag replaced a producer's own.
        ([replayed(1, ROWS[1]), replayed(0, ROWS[0])], (2, 0, 0, 0)),
        ([replayed(0, ROWS[0]), replayed(0, ROWS[0])], (1, 1, 0, 0)),
        ([replayed(0, replace(ROWS[0], data=b"")), replayed(1, ROWS[1], added="1")], (0, 0, 2, 0)),
        *(
            ([replayed(0, ROWS[0], **{name: value})], (0, 0, 0, 1))
            for name, value in {
                "refeed_replay": "other",
                "refeed_backfill_id": "bf_2",
                "refeed_row": None,
                "refeed_topic": "members",
                "refeed_message_id": "3",
                "refeed_publish_time": "2026-01-01T00:00:00.000002Z",
            }.items()
        ),
        ([replayed(0, ROWS[0], refeed_replay=None)], (0, 0, 0, 1)),
    ],
)
def test_a_replay_has_what_is_repeated_altered_and_untagged_counted(messages, found):
    assert replay_figures(messages) == found


def test_a_clean_verdict_has_exactly_the_keys_that_scripts_rely_on() -> None:
    assert CLEAN.as_json() == {
        "published": 3,
        "archived": 3,
        "lost": 0,
        "duplicates": 0,
        "payload_mismatches": 0,
        "selected": 2,
        "republished": 2,
        "rearchived": 0,
        "seconds": {"total": 1.0},
        "ok": True,
    }


@pytest.mark.parametrize(
    "fault",
    [
        {"published": 0, "archived": 0},
        {"archived": 2},
        {"lost": 1},
        {"duplicates": 1},
        {"payload_mismatches": 1},
        {"rearchived": 1},
        {"selected": 1},
        {"republished": 1},
        {"expected_selected": 3},
        {"selected": 0, "republished": 0, "expected_selected": 0},
    ],
)
def test_any_fault_makes_it_unclean(fault: dict[str, int]) -> None:
    assert not replace(CLEAN, **fault).is_clean
