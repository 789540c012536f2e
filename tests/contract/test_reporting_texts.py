"""Versions that are ordered by text: times as times, numbers as numbers, by one suite on both warehouses."""

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from model.entity import EntityRules, version_order
from model.errors import RulesUnfitError
from model.schema import Field, FieldType, RowSchema
from tests.reporting.shops import RULES, SCHEMA, START, LakeShop, Row, Shop, order, repaired

# A merge is a dozen jobs of a stand-in that runs them beside everything else on the machine.
pytestmark = pytest.mark.timeout(600)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
TEXT = RowSchema(
    tuple(replace(f, type="STRING") if f.name in {"changed_at", "revision"} else f for f in SCHEMA.fields),
    "orders",
)


@pytest.fixture
def shop(shop: Shop) -> Shop:
    shop.rules = replace(RULES, event_time="changed_at")
    shop.schema = TEXT
    return shop


def notes(rows: dict[Any, Row]) -> dict[int, Any]:
    return {key[1]: row["note"] for key, row in rows.items()}


# Each list from the oldest to the newest.
TIMES = (
    ["0001-01-01T00:00:00+01:00", "0001-01-01T00:00:00Z", "1969-12-31T23:59:59.9Z", "1970-01-01T00:00:00Z"],
    ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.45Z", "2026-01-01T00:00:00.500Z", "2026-01-01T00:00:01z"],
    ["2026-01-01T10:00:00+02:00", "2026-01-01t09:30:00Z", "2026-01-01 08:31:00-01:00", "2026-01-01T10:00:00Z"],
    ["2026-01-01T00:00:00.123456788Z", "2026-01-01T00:00:00.123456789Z", "2026-01-01T00:00:00.1234567890001Z"],
    ["2026-01-01", "2026-01-01T00:00:01", "2026-01-01 00:00:01.5", "2026-01-02"],
    [None, "9", "10", "10.5", "1e3"],
)
NUMBERS = (
    [None, "-1e3", "-10", "-9", "0", "9", "10", "1e2"],
    ["9007199254740992", "9007199254740993", "9007199254740994"],
    ["0.1", "0.25", "007", "7.5"],
    # As wide as each other, so texts: ULIDs, and padded positions of a log.
    ["01ARZ3NDEKTSV4RRFFQ69G5FAV", "01BX5ZZKBKACTAV9WEVGEMMVRZ", "01BX5ZZKBKACTAV9WEVGEMMVS0"],
)


@pytest.mark.parametrize(("column", "lists"), [("changed_at", TIMES), ("revision", NUMBERS)])
def test_the_later_time_and_the_greater_number_win_wherever_two_versions_meet(shop, column, lists):
    pairs = [pair for texts in lists for pair in itertools.permutations(enumerate(texts), 2)]
    wanted = {number: max(one, other) for number, ((one, _), (other, _)) in enumerate(pairs)}

    def versions(which: int, first: int) -> list[Row]:
        # The message that came later is the older version in half of the pairs.
        return [
            order(
                first + n,
                minute=which,
                message=2 * n + which,
                note=str(pair[which][0]),
                **_texts(column, pair[which][1]),
            )
            for n, pair in enumerate(pairs)
        ]

    # The versions of the first keys meet in one merge, those of the others in two.
    shop.stage([*versions(0, 0), *versions(1, 0), *versions(0, 1000)], START)
    shop.merge(START + HOUR)
    shop.stage(versions(1, 1000), START + 2 * HOUR)
    seen = notes(shop.view(START + 2 * HOUR))
    shop.merge(START + 3 * HOUR)
    for found in (seen, notes(shop.reporting())):
        assert {n: found[n] for n in wanted} == {n: found[1000 + n] for n in wanted} == wanted
    assert shop.merge(START + 4 * HOUR, since=START - HOUR).newer == 0


def _texts(column: str, text: str | None) -> Row:
    return {"changed_at": None, "revision": None, column: text}


MIXED = [
    ("changed_at", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00"),
    ("changed_at", "2026-01-01T00:00:00Z", "1767225600"),
    ("changed_at", "Jan 1 2026", "Feb 1 2026"),
    ("changed_at", "2026-02-29T00:00:00Z", "2026-02-28T00:00:00Z"),
    ("revision", "10", "ten"),
    ("revision", "v9", "v10"),
]


@pytest.mark.parametrize("meets", ["a version", "reporting"])
def test_versions_that_can_not_be_ordered_end_the_merge_and_change_nothing(shop: Shop, meets: str) -> None:
    for key, (column, one, other) in enumerate(MIXED):
        alone = order(100 + key, message=100 + key, **_texts(column, other))
        shop.stage([order(key, message=key, **_texts(column, one)), alone], START)
    if meets == "reporting":
        shop.merge(START + HOUR)
    before = shop.reporting() if meets == "reporting" else {}
    at = START + 2 * HOUR
    for column, keys in (("changed_at", 4), ("revision", 2)):
        mixed = [(key, one, other) for key, (of, one, other) in enumerate(MIXED) if of == column]
        seconds = [order(k, message=200 + k, minute=1, note="2", **_texts(column, other)) for k, _, other in mixed]
        shop.stage(seconds, at)
        for is_dry_run in (True, False) if column == "changed_at" else (False,):
            with pytest.raises(
                RulesUnfitError, match=f"for {keys} keys, the newest version is unknown.*'{column}'"
            ):
                shop.merge(at, is_dry_run=is_dry_run)
        assert (shop.reporting() if before else {}) == before
        # The messages through repaired code have a time, or a number, as the others have.
        ones = [_texts(column, one) for _, one, _ in mixed]
        shop.stage([repaired(row, **one) for row, one in zip(seconds, ones, strict=True)], at)
        at += HOUR
    shop.merge(START + 10 * HOUR)
    found = notes(shop.reporting())
    assert found == dict.fromkeys(range(len(MIXED)), 2) | {100 + key: {"a": 1} for key in range(len(MIXED))}


def test_an_earlier_column_decides_before_texts_are_looked_at(shop: Shop) -> None:
    shop.schema = RowSchema(
        tuple(replace(f, type="INT64") if f.name == "revision" else f for f in TEXT.fields), "orders"
    )
    shop.stage(
        [
            order(1, revision=1, changed_at="soon", note="1"),
            order(1, revision=2, changed_at="2026-01-01T00:00:00Z", note="2"),
        ],
        START,
    )
    shop.merge(START + HOUR)
    shop.stage([order(1, revision=3, changed_at="7", note="3")], START + 2 * HOUR)
    shop.merge(START + 3 * HOUR)
    assert notes(shop.reporting()) == {1: 3}


def test_one_odd_message_of_another_entity_turns_no_order_of_numbers_around(shop: Shop) -> None:
    """INT64 becomes STRING by it: as text "9" is beyond "10"."""
    shop.rules = EntityRules(("number",), version_order(("revision",), None))
    shop.schema = SCHEMA
    shop.stage([order(10, revision=r, note=f'"{r}"', message=r, minute=20 - r) for r in (9, 10)], START)
    shop.merge(START + HOUR)
    shop.schema = RowSchema(
        tuple(replace(f, type="STRING") if f.name == "revision" else f for f in SCHEMA.fields), "orders"
    )
    shop.widen_staging()
    late = [order(10, revision="9", note='"9"', message=7, minute=30)]
    more = [order(11, revision=str(r), note=f'"{r}"', message=110 + r, minute=20 - r) for r in (9, 10)]
    shop.stage([*late, *more, order(12, revision="2026-01-01", note='"odd"')], START + 2 * DAY)
    seen = shop.view(START + 2 * DAY)
    shop.merge(START + 2 * DAY + HOUR)
    for rows in (seen, shop.reporting()):
        assert {row["number"]: row["note"] for row in rows.values()} == {10: "10", 11: "10", 12: "odd"}


_CELLS: dict[FieldType, Callable[[int], Any]] = {"INT64": int, "FLOAT64": float, "STRING": str}
WIDENINGS: list[tuple[FieldType, FieldType, FieldType]] = [
    ("INT64", "STRING", "STRING"),
    ("INT64", "FLOAT64", "STRING"),
    ("FLOAT64", "STRING", "STRING"),
]


@pytest.mark.parametrize("merged_after", [(0, 1, 2), (0, 2), (1, 2), (2,)], ids=str)
@pytest.mark.parametrize("kinds", WIDENINGS, ids="-".join)
def test_reporting_that_was_right_stays_right_through_any_widening(tmp_path, kinds, merged_after):
    shop = LakeShop(lake=tmp_path / "lake")
    shop.rules = EntityRules(("number",), version_order(("revision",), None))
    chosen = random.Random(f"{kinds} {merged_after}")
    newest: dict[int, tuple[int, str]] = {}
    messages = itertools.count(1)
    for step, kind in enumerate(kinds):
        fields = tuple(Field("revision", kind) if f.name == "revision" else f for f in SCHEMA.fields)
        shop.schema = RowSchema(fields, "orders")
        if shop.staged:
            shop.widen_staging()
        rows = []
        # Some entities have one version, some many, and some none before the column is wider.
        for _ in range(20):
            number, revision, message = chosen.randrange(16), chosen.randint(-12, 12), f"{next(messages):05}"
            cell = None if revision == -12 else _CELLS[kind](revision)
            rows.append(order(number, revision=cell, message=message))
            newest[number] = max(newest.get(number, (-99, "")), (revision, message))
        if kind == "STRING":
            # Another entity each time: it can be ordered, as it is alone.
            rows.append(order(100 + step, revision="2026-01-01", message="odd"))
        moment = START + step * 3 * HOUR
        shop.stage(rows, moment)
        found = [shop.view(moment)]
        if step in merged_after:
            shop.merge(moment + HOUR)
            found.append(shop.reporting())
        wanted = {number: message for number, (_, message) in newest.items()}
        for seen in found:
            assert {row["number"]: row["_message_id"] for row in seen.values() if row["number"] < 100} == wanted
