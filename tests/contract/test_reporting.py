"""The merge and the view, by one suite on both warehouses, against an oracle in plain Python."""

import itertools
import json
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest

from connectors.lake.merge_statements import MergeStatements
from model.entity import EntityRules
from model.errors import EvolutionRefusedError, MergeOvertakenError, RulesUnfitError, WarehouseError
from model.schema import Field, RowSchema
from sql.merge import MergeQueries
from tests.reporting.shops import RULES, SCHEMA, START, LakeShop, Shop, order, repaired
from tests.worlds.tables import at_failpoint
from warehouse.bigquery import changes

# A merge is a dozen jobs of a stand-in that runs them beside everything else on the machine.
pytestmark = pytest.mark.timeout(600)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
PLACES = {
    "lake": ("merge.compared", "merge.rewritten", "merge.indexed", "merge.committed"),
    "bigquery": ("bigquery.merge.changes", "merge.compared", "bigquery.merge.started", "merge.committed"),
}


def test_the_newest_version_of_each_key_wins_and_keys_that_move_leave_their_partition(shop: Shop) -> None:
    assert shop.merge(START).changed == 0
    assert shop.view(START) == {}
    shop.stage([order(1, day=1), order(2, day=1), order(1, day=1, minute=5, note="2")], START)
    report = shop.merge(START + HOUR)
    assert (report.changed, report.newer, report.partitions) == (2, 2, ("2026-03-01",))
    assert (report.rows_before, report.rows_after) == (0, 2)
    assert shop.reporting() == shop.oracle()
    shop.stage([order(1, day=9, minute=7), order(2, day=1, minute=-5, note='"late"')], START + 2 * DAY)
    report = shop.merge(START + 2 * DAY + HOUR)
    assert (report.changed, report.newer) == (2, 1)
    assert report.partitions == ("2026-03-01", "2026-03-09")
    assert shop.reporting() == shop.oracle()
    again = shop.merge(START + 2 * DAY + 2 * HOUR)
    assert (again.newer, again.partitions) == (0, ())
    assert shop.reporting() == shop.oracle() == shop.view(START + 2 * DAY)


def test_nan_is_older_than_every_number_and_newer_than_null(shop: Shop) -> None:
    """As GoogleSQL sorts: NULL, NaN, -inf and so on, wherever two versions meet."""
    fields = tuple(Field("revision", "FLOAT64") if each.name == "revision" else each for each in SCHEMA.fields)
    shop.schema = RowSchema(fields, SCHEMA.description)
    oldest_first = (None, float("nan"), float("-inf"), -1.5)
    pairs = list(itertools.permutations(enumerate(oldest_first), 2))
    wanted = {number: str(max(one, other)) for number, ((one, _), (other, _)) in enumerate(pairs)}

    def versions(place: int, first: int) -> list[dict[str, Any]]:
        return [
            order(first + number, revision=pair[place][1], note=str(pair[place][0]))
            for number, pair in enumerate(pairs)
        ]

    def found(rows: dict[Any, dict[str, Any]]) -> dict[int, dict[int, str]]:
        notes = {key[1]: str(row["note"]) for key, row in rows.items()}
        return {first: {number: notes[first + number] for number in wanted} for first in (0, 100)}

    # The versions of the first keys meet in one merge, those of the others in two.
    shop.stage([*versions(0, 0), *versions(1, 0), *versions(0, 100)], START)
    shop.merge(START + HOUR)
    shop.stage(versions(1, 100), START + 2 * HOUR)
    assert found(shop.view(START + 2 * HOUR)) == {0: wanted, 100: wanted}
    shop.merge(START + 3 * HOUR)
    assert found(shop.reporting()) == {0: wanted, 100: wanted}
    assert shop.merge(START + 4 * HOUR, since=START).newer == 0


def test_a_replay_through_repaired_code_beats_the_row_that_it_repairs_and_nothing_newer(shop: Shop) -> None:
    shop.stage(
        [order(1, note='"broken"'), order(2, note='"broken"'), order(2, minute=9, note='"newer"', message=9)],
        START,
    )
    shop.merge(START + HOUR)
    shop.stage([order(n, note='"repaired"', _backfill_id="bf_1") for n in (1, 2)], START + 2 * DAY)
    shop.merge(START + 2 * DAY + HOUR)
    assert {key[1]: row["note"] for key, row in shop.reporting().items()} == {1: "repaired", 2: "newer"}
    assert shop.reporting() == shop.oracle()


def test_a_removed_key_stays_as_a_tombstone_that_the_view_hides_and_a_late_insert_does_not_raise(shop):
    shop.stage([order(1), order(1, minute=5, _operation="REMOVE"), order(2)], START)
    assert shop.view(START) == shop.visible()
    shop.merge(START + HOUR)
    shop.stage([order(1, minute=3, _operation="INSERT")], START + 2 * DAY)
    assert list(shop.view(START + 2 * DAY)) == [("se", 2)]
    shop.merge(START + 2 * DAY + HOUR)
    row = shop.reporting()["se", 1]
    assert (row["_deleted"], row["note"], row["lines"]) == (True, None, [])
    shop.stage([order(1, minute=8, _operation="INSERT", message=7)], START + 4 * DAY)
    assert shop.view(START + 4 * DAY) == shop.visible()
    shop.merge(START + 4 * DAY + HOUR)
    assert shop.reporting() == shop.oracle() == shop.view(START + 4 * DAY)


def test_a_soft_delete_keeps_the_last_values_and_is_shown(shop: Shop) -> None:
    shop.rules = EntityRules(
        RULES.key, RULES.order, RULES.partition_field, has_operation=True, is_soft_delete=True
    )
    shop.stage([order(1, _operation="REMOVE")], START)
    shop.merge(START + HOUR)
    (row,) = shop.reporting().values()
    assert (row["_deleted"], row["note"]) == (True, {"a": 1})
    assert shop.view(START + HOUR) == shop.reporting()


def test_a_key_or_a_day_that_is_null_is_a_key_and_a_partition(shop: Shop) -> None:
    rows = [order(1, shop=None, ordered_on=None), order(1, shop=None, ordered_on=None, minute=1), order(2)]
    shop.stage(rows, START)
    assert shop.merge(START + HOUR).partitions == (None, "2026-03-01")
    assert shop.reporting() == shop.oracle()
    shop.stage([order(1, shop=None, day=3, minute=2)], START + 2 * DAY)
    assert shop.merge(START + 2 * DAY + HOUR).partitions == (None, "2026-03-03")
    assert shop.reporting() == shop.oracle() == shop.view(START + 2 * DAY)


def unkeyed(message: int, minute: int = 0, **more: Any) -> dict[str, Any]:
    return order(None, shop=None, message=message, minute=minute, **more)


def test_rows_without_a_key_are_kept_each_and_counted(shop: Shop) -> None:
    shop.stage(
        [unkeyed(1), unkeyed(2, minute=5), unkeyed(3, day=2), order(None, day=2, message=9), order(8)], START
    )
    report = shop.merge(START + HOUR)
    assert (report.changed, report.newer, report.without_key) == (5, 5, 3)
    assert shop.reporting() == shop.oracle() == shop.view(START + HOUR)
    # One comes again, one is repaired and has a key now, and a key is repaired into none.
    again = [
        unkeyed(1),
        repaired(unkeyed(2, minute=5), shop="se", number=7),
        repaired(order(8), shop=None, number=None),
    ]
    shop.stage(again, START + 2 * DAY)
    assert shop.view(START + 2 * DAY) == shop.visible()
    shop.merge(START + 2 * DAY + HOUR)
    assert shop.reporting() == shop.oracle() == shop.view(START + 2 * DAY + HOUR)
    assert len(shop.reporting()) == 5
    assert shop.merge(START + 2 * DAY + 2 * HOUR, since=START).newer == 0
    assert shop.reporting() == shop.oracle()


def test_the_parts_of_a_message_that_a_replay_splits_are_kept_without_a_key_too(shop: Shop) -> None:
    shop.stage([unkeyed(1)], START)
    shop.merge(START + HOUR)
    shop.stage([repaired(unkeyed(1), note=str(n), _backfill_row=n) for n in (0, 1)], START + 2 * DAY)
    shop.merge(START + 2 * DAY + HOUR)
    assert sorted(row["note"] for row in shop.reporting().values()) == [0, 1]
    assert shop.reporting() == shop.oracle()


def test_rows_that_were_merged_as_one_entity_without_a_key_are_not_doubled(shop, monkeypatch):
    """As a Refeed did that took null for a key."""
    shop.stage([unkeyed(1), unkeyed(2, minute=5), order(8)], START)
    with monkeypatch.context() as earlier:
        for statements in (MergeStatements, MergeQueries):
            earlier.setattr(statements, "has_replays", property(lambda _: False))
        assert shop.merge(START + HOUR).newer == 2
    assert {row["_message_id"] for row in shop.reporting().values()} == {"2", "8"}
    shop.stage([repaired(unkeyed(2, minute=5), ordered_on=date(2026, 3, 4))], START + 2 * DAY)
    shop.merge(START + 2 * DAY + HOUR)
    # BigQuery's merge has read the first one again.
    assert [row["_message_id"] for row in shop.read()].count("2") == 1
    shop.merge(START + 2 * DAY + 2 * HOUR, since=START - HOUR)
    assert shop.reporting() == shop.oracle()


def test_columns_that_staging_gains_come_to_reporting_and_none_goes(shop: Shop) -> None:
    shop.stage([order(1), order(2, day=2)], START)
    shop.merge(START + HOUR)
    shop.schema = RowSchema((*SCHEMA.fields, Field("currency", "STRING")), "orders")
    shop.staged = [{**row, "currency": None} for row in shop.staged]
    shop.stage([order(1, minute=1, currency="SEK")], START + 2 * DAY)
    shop.merge(START + 2 * DAY + HOUR)
    assert {key[1]: row["currency"] for key, row in shop.reporting().items()} == {1: "SEK", 2: None}
    assert shop.reporting() == shop.oracle() == shop.view(START + 2 * DAY)


def test_reporting_that_can_not_become_what_staging_is_stays_as_it_is(shop: Shop) -> None:
    shop.stage([order(1)], START)
    shop.merge(START + HOUR)
    before = shop.reporting()
    other = make_like(shop)
    other.schema = RowSchema((*SCHEMA.fields[:5], Field("note", "STRING"), *SCHEMA.fields[6:]), "orders")
    other.stage([order(2, note="text")], START + 2 * DAY)
    with pytest.raises(EvolutionRefusedError):
        other.merge(START + 3 * DAY)
    assert shop.reporting() == before


WIDENED = (
    Field("price", "INT64"),
    Field("code", "INT64"),
    Field("extra", "RECORD", fields=(Field("a", "INT64"),)),
)
WIDER = (Field("price", "FLOAT64"), Field("code", "STRING"), Field("extra", "JSON"))


def widen(shop: Shop, fields: tuple[Field, ...]) -> None:
    """Let staging have become wider, as the pipeline makes it when a message fits no column."""
    shop.schema = RowSchema((*SCHEMA.fields, *fields), "orders")
    shop.drop_staging()


def test_reporting_becomes_wider_with_staging_and_merges_go_on(shop: Shop) -> None:
    shop.schema = RowSchema((*SCHEMA.fields, *WIDENED), "orders")
    shop.stage([order(n, day=n, price=n, code=n, extra={"a": n}) for n in (1, 2)], START)
    shop.merge(START + HOUR)
    widen(shop, WIDER)
    shop.stage([order(3, day=2, price=0.5, code="x", extra='{"a":"y"}')], START + 2 * DAY)
    seen = shop.view(START + 2 * DAY)
    for hours in (1, 2):
        shop.merge(START + 2 * DAY + hours * HOUR)
        found = {key[1]: (row["price"], row["code"], value(row["extra"])) for key, row in shop.reporting().items()}
        assert found == {1: (1.0, "1", {"a": 1}), 2: (2.0, "2", {"a": 2}), 3: (0.5, "x", {"a": "y"})}
    assert {key: row["code"] for key, row in seen.items()} == {("se", 1): "1", ("se", 2): "2", ("se", 3): "x"}


def test_staging_that_became_wider_with_its_rows_is_merged_and_seen_as_if_it_had_always_been(shop: Shop) -> None:
    shop.schema = RowSchema((*SCHEMA.fields, *WIDENED), "orders")
    shop.stage([order(n, day=n, price=n, code=n, extra={"a": n}) for n in (1, 2)], START)
    shop.merge(START + HOUR)
    shop.stage([order(n, day=n, price=n, code=n, extra={"a": n}) for n in (3, 4)], START + DAY)
    key = [replace(f, type="STRING") if f.name == "number" else f for f in SCHEMA.fields]
    shop.schema = RowSchema((*key, *WIDER), "orders")
    shop.widen_staging()
    repaired_row = {**order(4, day=4, _backfill_id="bf_1"), "number": "4", "price": 4.5, "code": "four"}
    new = {**order(5, day=2), "number": "x", "price": 0.5, "code": "x", "extra": '{"a":"y"}'}
    later = {**order(1, day=1, minute=5), "number": "1", "code": "later"}
    shop.stage([repaired_row, new, later], START + 2 * DAY)
    expected = {
        "1": (None, "later", None),
        "2": (2.0, "2", {"a": 2}),
        "3": (3.0, "3", {"a": 3}),
        "4": (4.5, "four", None),
        "x": (0.5, "x", {"a": "y"}),
    }
    seen = shop.view(START + 2 * DAY)
    shop.merge(START + 2 * DAY + HOUR)
    for rows in (seen, shop.reporting(), shop.view(START + 2 * DAY + HOUR)):
        assert {key[1]: (row["price"], row["code"], value(row["extra"])) for key, row in rows.items()} == expected


def test_an_entity_is_found_by_its_key_when_the_key_has_become_wider(shop: Shop) -> None:
    shop.stage([order(1), order(2)], START)
    shop.merge(START + HOUR)
    wider = tuple(replace(f, type="STRING") if f.name == "number" else f for f in SCHEMA.fields)
    shop.schema = RowSchema(wider, "orders")
    shop.drop_staging()
    later = {**order(1, minute=5, day=9), "number": "1"}
    shop.stage([later, {**order(7), "number": "x"}], START + 2 * DAY)
    shop.merge(START + 2 * DAY + HOUR)
    assert {key[1]: row["ordered_on"].day for key, row in shop.reporting().items()} == {"1": 9, "2": 1, "x": 1}


def test_a_merge_under_way_while_reporting_becomes_wider_changes_nothing(shop, monkeypatch):
    shop.schema = RowSchema((*SCHEMA.fields, *WIDENED), "orders")
    shop.stage([order(1, price=1)], START)
    shop.merge(START + HOUR)
    shop.stage([order(2, price=2)], START + DAY)

    def widen_meanwhile() -> None:
        if not others:
            others.append(make_like(shop))
            others[0].schema = RowSchema((*SCHEMA.fields, *WIDER), "orders")
            others[0].stage([order(3, price=0.5)], START + DAY)
            others[0].merge(START + DAY + HOUR)

    others: list[Shop] = []
    with at_failpoint(monkeypatch, "merge.compared", widen_meanwhile), pytest.raises(WarehouseError):
        shop.merge(START + DAY + HOUR)
    shop.schema = RowSchema((*SCHEMA.fields, *WIDER), "orders")
    assert {key[1]: row["price"] for key, row in shop.reporting().items()} == {1: 1.0, 3: 0.5}


def value(cell: Any) -> Any:
    """Return the value of a JSON column, which is a text in a lake."""
    return json.loads(cell) if isinstance(cell, str) else cell


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        (EntityRules(("nobody",), RULES.order), "key 'nobody' is not a column"),
        (EntityRules(("price",), RULES.order), "key 'price' is FLOAT64"),
        (EntityRules(("note",), RULES.order), "key 'note' is JSON"),
        (EntityRules(("number",), ("missing", *RULES.order)), "order 'missing' is not a column"),
        (EntityRules(("number",), ("lines", *RULES.order)), "order 'lines' is not a column with a single value"),
        (EntityRules(("number",), RULES.order, "shop"), "partition 'shop' is STRING"),
    ],
)
def test_rules_that_name_what_staging_has_not_are_a_fault_of_the_source(shop, rules, says):
    shop.rules = rules
    shop.schema = RowSchema((*SCHEMA.fields, Field("price", "FLOAT64")), "orders")
    shop.stage([order(1, price=1.5)], START)
    for options in ({}, {"is_dry_run": True}):
        with pytest.raises(RulesUnfitError, match=says):
            shop.merge(START + HOUR, **options)
    assert shop.audits() == []


def make_like(shop: Shop) -> Shop:
    """Another source with the same reporting table."""

    class Other(type(shop)):  # type: ignore[misc]
        @property
        def source(self) -> Any:
            return replace(super().source, staging=f"{shop.dataset}.other")

    fields = {name: value for name, value in vars(shop).items() if name not in {"staged", "merger"}}
    return Other(**fields)


def test_a_dry_run_says_what_would_change_and_changes_nothing(shop: Shop) -> None:
    shop.stage([order(1), order(2, day=2)], START)
    report = shop.merge(START, is_dry_run=True)
    assert (report.changed, report.newer, report.partitions) == (2, 2, ("2026-03-01", "2026-03-02"))
    assert (report.is_dry_run, report.audits) == (True, ())
    assert shop.audits() == []
    shop.merge(START + 2 * DAY)
    before = shop.reporting()
    shop.stage([order(1, minute=4, day=5)], START + 3 * DAY)
    report = shop.merge(START + 4 * DAY, is_dry_run=True)
    assert (report.newer, report.partitions) == (1, ("2026-03-01", "2026-03-05"))
    assert shop.reporting() == before
    assert shop.merge(START + 4 * DAY).newer == 1


def test_a_merge_by_a_clock_that_is_ahead_hides_nothing_from_the_merges_behind_it(shop: Shop) -> None:
    shop.stage([order(1)], START)
    shop.merge(START + 30 * HOUR)
    for number in (2, 3):
        shop.stage([order(number)], START + number * HOUR)
        assert shop.view(START + number * HOUR) == shop.visible()
        shop.merge(START + number * HOUR + HOUR / 2)
    assert shop.reporting() == shop.oracle()


def test_rows_of_a_worker_whose_clock_is_behind_are_merged_and_seen(shop: Shop) -> None:
    shop.stage([order(1)], START + 9 * DAY)
    shop.merge(START + 9 * DAY + HOUR)
    shop.stage([order(2), order(1, minute=1)], START)
    assert shop.view(START + 9 * DAY + 2 * HOUR) == shop.visible()
    shop.merge(START + 9 * DAY + 2 * HOUR)
    assert shop.reporting() == shop.oracle() == shop.view(START + 20 * DAY)


def test_staging_that_is_made_anew_is_merged_from_its_beginning(shop: Shop) -> None:
    shop.stage([order(1)], START + 9 * DAY)
    shop.merge(START + 9 * DAY + HOUR)
    shop.drop_staging()
    shop.stage([order(2)], START)
    assert shop.view(START + 10 * DAY) == shop.visible()
    shop.merge(START + 10 * DAY)
    assert shop.reporting() == shop.oracle()


def test_a_merge_from_an_earlier_moment_reads_more_and_changes_nothing_that_is_right(shop: Shop) -> None:
    shop.stage([order(1), order(2)], START)
    shop.merge(START + HOUR)
    shop.stage([order(2, minute=1)], START + 2 * DAY)
    report = shop.merge(START + 3 * DAY, since=START - HOUR)
    assert (report.since, report.changed, report.newer) == (START - HOUR, 2, 1)
    assert shop.reporting() == shop.oracle()
    # A later moment than the last merge's would leave a gap for ever.
    last = report.until
    shop.stage([order(3)], START + 4 * DAY)
    report = shop.merge(START + 5 * DAY, since=last + 2 * DAY)
    assert (report.since, report.newer) == (last, 1)
    assert shop.reporting() == shop.oracle()


def test_each_merge_leaves_a_row_a_check(shop: Shop) -> None:
    shop.stage([order(1), order(2, day=2)], START)
    report = shop.merge(START + HOUR)
    assert [(audit.name, audit.is_passed) for audit in sorted(report.audits, key=lambda each: each.name)] == [
        ("counts_reconciled", True),
        ("freshness", True),
        ("keys_unique", True),
    ]
    until = shop.merge(START + 2 * HOUR).until
    rows = shop.audits()
    assert len(rows) == 6
    assert {row["source"] for row in rows} == {"orders"}
    assert len({row["merge"] for row in rows}) == 2
    assert {row["until"] for row in rows[:3]} == {until}
    by_name = {row["name"]: row for row in rows[3:]}
    assert (by_name["keys_unique"]["expected"], by_name["keys_unique"]["found"]) == (2, 2)
    assert by_name["counts_reconciled"]["details"]["changed"] == 2
    assert by_name["freshness"]["found"] == START.timestamp() * 1_000_000


def test_a_merge_that_another_one_overtakes_changes_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.stage([order(1)], START)
    shop.merge(START + HOUR)
    shop.stage([order(1, minute=2), order(2)], START + 2 * DAY)
    reports = []

    def overtake() -> None:
        if not reports:
            reports.append(None)
            reports.append(shop.merge(START + 2 * DAY + 2 * HOUR))

    # Else it takes up the jobs of the other one, which then has nothing against it.
    monkeypatch.setattr(changes, "_TAKEN_UP", timedelta(0))
    with at_failpoint(monkeypatch, "merge.compared", overtake), pytest.raises(MergeOvertakenError):
        shop.merge(START + 2 * DAY + HOUR)
    monkeypatch.undo()
    assert reports[1].newer == 2
    assert shop.reporting() == shop.oracle()
    assert not isinstance(shop, LakeShop) or list((shop.folder / "merges").iterdir()) == []


@pytest.mark.parametrize(
    "repair",
    [{"changed_at": START - DAY}, {"revision": 1}, {"number": 7}, {"number": 2, "changed_at": START - DAY}],
    ids=["event time", "order", "key", "key and event time"],
)
@pytest.mark.parametrize("is_merged", [False, True], ids=["one merge", "two merges"])
def test_a_replay_through_repaired_code_takes_the_place_of_the_row_that_it_repairs(shop, repair, is_merged):
    wrong = order(1, minute=5, message=11, revision=2, day=2)
    shop.stage([order(1, minute=1, message=10, revision=2), wrong, order(2, minute=3, message=12)], START)
    if is_merged:
        shop.merge(START + HOUR)
    shop.stage([repaired(wrong, **repair)], START + 2 * DAY)
    assert shop.view(START + 2 * DAY) == shop.visible()
    report = shop.merge(START + 2 * DAY + HOUR)
    assert all(audit.is_passed for audit in report.audits)
    assert shop.reporting() == shop.oracle() == shop.view(START + 2 * DAY)
    assert shop.merge(START + 9 * DAY, since=START - DAY).newer == 0
    assert shop.reporting() == shop.oracle()


def test_a_repaired_key_leaves_nothing_under_the_wrong_one(shop: Shop) -> None:
    wrong = order(1, _operation="INSERT")
    shop.stage([wrong, order(3, day=3)], START)
    shop.merge(START + HOUR)
    shop.stage([repaired(wrong, number=2, changed_at=START - DAY), order(2, minute=1, message=5)], START + DAY)
    assert set(shop.view(START + DAY)) == {("se", 2), ("se", 3)}
    assert shop.merge(START + DAY + HOUR, is_dry_run=True).partitions == ("2026-03-01",)
    assert shop.merge(START + DAY + HOUR).partitions == ("2026-03-01",)
    assert shop.reporting() == shop.oracle()


def test_a_replay_that_splits_a_message_keeps_all_of_its_parts(shop: Shop) -> None:
    shop.stage([order(1)], START)
    shop.merge(START + HOUR)
    for part in (2, 3):
        shop.stage([repaired(order(1), number=part, _backfill_row=part)], START + part * HOUR)
        shop.merge(START + part * HOUR + HOUR / 2)
    assert set(shop.reporting()) == {("se", 2), ("se", 3)}
    assert shop.reporting() == shop.oracle()


@pytest.mark.parametrize("place", range(4))
def test_a_merge_that_dies_anywhere_is_taken_up_by_the_next(shop, monkeypatch, place):
    shop.stage([order(n, day=1 + n % 3) for n in range(9)], START)
    shop.merge(START + HOUR)
    shop.stage([order(n, day=4, minute=1) for n in range(4)], START + 2 * DAY)
    where = PLACES["lake" if isinstance(shop, LakeShop) else "bigquery"][place]
    with at_failpoint(monkeypatch, where):
        shop.merge(START + 2 * DAY + HOUR)
    assert shop.view(START + 2 * DAY) == shop.oracle()
    shop.merge(START + 2 * DAY + 2 * HOUR)
    assert shop.reporting() == shop.oracle()


def test_a_key_of_other_columns_finds_the_rows_that_were_merged_by_the_one_before(shop: Shop) -> None:
    shop.rules = replace(RULES, key=("number",))
    shop.stage([order(1, note='"old"'), order(2)], START)
    shop.merge(START + HOUR)
    shop.rules = RULES
    shop.stage([order(1, day=9, minute=5, note='"new"', message=9)], START + 2 * DAY)
    report = shop.merge(START + 2 * DAY + HOUR)
    assert (report.newer, report.rows_before, report.rows_after) == (1, 2, 2)
    assert shop.reporting() == shop.oracle() == shop.view(START + 2 * DAY)


@pytest.mark.parametrize("year", [1, 9999])
def test_the_first_and_the_last_day_of_the_calendar_are_partitions(shop: Shop, year: int) -> None:
    """What has no end in sight is often given the last day there is."""
    last = date(year, 12, 31) if year > 1 else date(year, 1, 1)
    shop.stage([order(1, ordered_on=last), order(2)], START)
    report = shop.merge(START + HOUR)
    assert set(report.partitions) == {last.isoformat(), "2026-03-01"}
    shop.stage([order(1, ordered_on=last, minute=5, message=9)], START + 2 * DAY)
    assert shop.merge(START + 2 * DAY + HOUR).newer == 1
    assert shop.reporting() == shop.oracle() == shop.view(START + 2 * DAY)
