"""The rules a bound query has to keep, one function a rule; each returns every fault it finds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from model.table import REPLAY_COLUMNS
from model.window import Window
from sql.binder import Policy
from sql.bounds import BEGINNING, END, NOTHING, Reach, Span, prove, prove_times
from sql.datatypes import ATTRIBUTES, BYTES, NULL, STRING, TIMESTAMP, SqlType
from sql.query_binder import QueryBinder
from sql.relation import Relation
from sql.syntax import Query
from sql.values import Value
from sql.violation import Fault

WANTED: dict[str, SqlType] = {"data": BYTES, "attributes": ATTRIBUTES, "message_id": STRING}
# What is used when a query gives it, under these types.
_KEPT: dict[str, SqlType] = {"topic": STRING, "publish_time": TIMESTAMP, "ordering_key": STRING}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EXAMPLE = "WHERE _PARTITIONTIME >= TIMESTAMP '2026-01-01' AND _PARTITIONTIME < TIMESTAMP '2026-01-02'"


@dataclass(slots=True)
class Bound:
    """A query whose names are known."""

    query: Query
    relation: Relation
    binder: QueryBinder
    policy: Policy


def check_window(bound: Bound) -> tuple[dict[str, Window], list[Fault]]:
    """Return, by table, the window that holds every partition the query reads; each scan is bounded by itself."""
    faults: list[Fault] = []
    windows: dict[str, list[Window]] = {}
    for scan in bound.binder.scans:
        reach = prove(scan.filters, scan.numbers, bound.binder.values)
        spans = (reach | Reach(reach.buffered, NOTHING)).partitions
        if any(span.start == BEGINNING for span in spans):
            faults.append(_missing_bound(reach, scan.at))
        elif not spans:
            faults.append(
                Fault(
                    "window_empty",
                    "The bounds of this scan contradict each other: no partition lies between them.",
                    scan.at,
                )
            )
        else:
            if spans[-1].end == END:
                bound.binder.open_ended.add(scan.lake_name)
            window = _window(spans, bound.policy)
            faults += _too_wide(window, "The window is", scan.at, bound.policy)
            windows.setdefault(scan.table, []).append(window)
    hulls = {table: Window.hull(parts) for table, parts in windows.items()}
    if not faults:
        for hull in hulls.values():
            faults += _too_wide(hull, "The scans together span", bound.query.at, bound.policy)
    return hulls, faults


def _missing_bound(reach: Reach, at: int) -> Fault:
    if any(span.start == BEGINNING for span in reach.partitions):
        message = "This scan has no constant lower bound on _PARTITIONTIME or _PARTITIONDATE."
        return Fault("window_missing", message, at, _EXAMPLE)
    message = (
        "This scan also reads rows that have no partition yet (_PARTITIONTIME IS NULL). For these rows, the "
        "query needs a constant lower bound on ingest_time."
    )
    return Fault(
        "window_missing", message, at, "(_PARTITIONTIME IS NOT NULL OR ingest_time >= TIMESTAMP '2026-01-01')"
    )


def _too_wide(window: Window, what: str, at: int, policy: Policy) -> list[Fault]:
    if window.width <= timedelta(days=policy.max_window_days):
        return []
    days = window.width / timedelta(days=1)
    message = f"{what} {days:.1f} days wide. At most {policy.max_window_days} days are allowed."
    return [Fault("window_too_wide", message, at, "Replay the window in parts.")]


def replay_window(bound: Bound, windows: Mapping[str, Window]) -> Window:
    """Return the ingestion times that a replay can touch, ``windows`` being known by table.

    They are the archive's. Where the query does not read it, they are those of the other tables; a table that is
    not partitioned by ingestion time is read whole, from 1970 until the plan.
    """
    archive = bound.policy.archive_table
    if archive in windows:
        return windows[archive]
    if set(windows) == set(bound.binder.tables):
        return Window.hull(windows.values())
    return Window(_EPOCH, max(bound.policy.now, _EPOCH))


def replayed_times(bound: Bound) -> tuple[str, Window] | None:
    """Return the column and the times between which every message of the archive lies that the query lets through.

    None where it bounds neither the ingestion nor the publication from both sides; of both the narrower one.
    """
    scans = [scan for scan in bound.binder.scans if scan.table == bound.policy.archive_table]
    found = []
    for column in ("ingest_time", "publish_time"):
        spans = [
            span
            for scan in scans
            for span in prove_times(scan.filters, scan.numbers, bound.binder.values, column) or (Span(END, END),)
        ]
        if spans and all(span.start > BEGINNING and span.end < END for span in spans):
            found.append((column, Window.hull([Window(span.start, span.end) for span in spans])))
    return min(found, key=lambda one: one[1].width, default=None)


def _window(spans: Iterable[Span], policy: Policy) -> Window:
    """Return the hull of ``spans``; a missing upper end means "until the plan"."""
    ordered = list(spans)
    start = ordered[0].start
    end = max(policy.now if span.end == END else span.end for span in ordered)
    return Window(start, max(start, end))


def check_reads_table(bound: Bound) -> list[Fault]:
    """A replay reads the archive, or another table that the deployment allows."""
    if bound.binder.tables or bound.binder.faults:
        return []
    archive = bound.policy.archive_table
    return [
        Fault(
            "archive_not_read",
            f"A replay must read {archive}. This query does not read that table.",
            bound.query.at,
            f"FROM `{archive}`",
        )
    ]


def check_output(bound: Bound) -> list[Fault]:
    """The result has exactly one column each of data, attributes and message_id, of the archive's types."""
    relation, at = bound.relation, bound.query.at
    if relation.is_value_table:
        return [
            Fault("output_value_table", "SELECT AS STRUCT and AS VALUE give no columns.", at, "Name the columns.")
        ]
    if relation.has_open_star:
        return [
            Fault(
                "output_unprovable", "The query must name the columns of each table that is not the archive.", at
            )
        ]
    faults: list[Fault] = []
    keys = [column.key for column in relation.columns]
    for number, key in enumerate(keys, 1):
        if key is None:
            faults.append(
                Fault("column_unnamed", f"Column {number} of the result has no name.", at, "Add AS name.")
            )
        elif keys.count(key) > 1 and keys.index(key) == number - 1:
            faults.append(Fault("column_duplicate", f"The result has the column {key[:60]} more than once.", at))
        elif key.startswith(_RESERVED):
            faults.append(
                Fault(
                    "column_reserved",
                    f"BigQuery reserves names such as {key[:60]}.",
                    at,
                    f"{key} AS partition_time",
                )
            )
    for column in relation.columns:
        want = _KEPT.get(column.key or "")
        if want is not None and column.value.type.is_known and column.value.type not in {want, NULL}:
            message = f"{column.key} must be {want}, because it becomes a tag. It is {column.value.type}."
            faults.append(
                Fault("column_type", message, at, "Give the column another name, or leave out the column.")
            )
    for name in REPLAY_COLUMNS:
        found = [column for column in relation.columns if column.key == name]
        if not found:
            faults.append(
                Fault(
                    "column_missing",
                    f"The result has no column {name} {WANTED[name]}.",
                    at,
                    f"Add {name} to the SELECT list.",
                )
            )
        elif len(found) == 1 and found[0].value.type.is_known and not _is_same(found[0].value.type, WANTED[name]):
            faults.append(
                Fault(
                    "column_type", f"{name} must be {WANTED[name]}. It is {found[0].value.type}.", at, _cure(name)
                )
            )
        elif (
            name == "message_id"
            and len(found) == 1
            and bound.binder.tables
            and not _is_read(found[0].value, bound)
        ):
            faults.append(
                Fault(
                    "message_id_computed",
                    "message_id must be an unchanged message_id column of a table, because it "
                    "identifies the message.",
                    at,
                    "m.message_id AS message_id",
                )
            )
    return faults


def _is_read(value: Value, bound: Bound) -> bool:
    # Of a part that is broken nothing is known, and the query is refused for that.
    return value.type.is_message_id or (not value.type.is_known and bool(bound.binder.faults))


_RESERVED = ("_table_", "_file_", "_partition", "_row_timestamp", "__root__", "_colidentifier", "_changetype")


def _is_same(have: SqlType, want: SqlType) -> bool:
    if want.element is None or have.element is None:
        return have == want
    # A reader of the rows finds the fields by exactly these names.
    return have.element.fields == want.element.fields


def _cure(name: str) -> str | None:
    return {
        "data": "CAST(... AS BYTES) AS data",
        "attributes": "ARRAY(SELECT AS STRUCT key, value FROM UNNEST(attributes)) AS attributes",
        "message_id": "m.message_id AS message_id",
    }.get(name)
