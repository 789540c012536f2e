"""The figures of a query in BigQuery: of a dry run the bytes, of its rows all that reading them gives."""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from connectors.bigquery.queries.selections import SelectedTable
from sql.validate import ValidatedQuery
from warehouse.bigquery.runs import QueryRuns
from warehouse.figures import MAX_GROUPS, MAX_SAMPLES, QueryFigures, QueryNote

_COUNTED: Final = {"topic": "STRING", "publish_time": "TIMESTAMP"}
_SAMPLED: Final = ("message_id", "publish_time", "topic", "attributes", "data")


def dry_figures(query: ValidatedQuery, bytes_scanned: int) -> QueryFigures:
    """Return the figures of a dry run, which reads nothing."""
    message = (
        "A dry run reads no data, so the plan can't show the number of rows, their topics and hours, or "
        "samples. With exact=true, the plan shows these figures, and Google bills the query."
    )
    notes = [*_notes(query), QueryNote("not_exact", message)]
    return QueryFigures(bytes_scanned=bytes_scanned, bytes_billed=bytes_scanned, notes=notes)


def read_figures(
    query: ValidatedQuery, bytes_scanned: int, selected: SelectedTable, runs: QueryRuns | None
) -> QueryFigures:
    """Return the figures of the rows that were selected; without ``runs`` they are not read."""
    counts = _Counts()
    if runs is not None and selected.rows:
        _count(counts, selected, query, runs)
    return QueryFigures(
        bytes_scanned=bytes_scanned,
        bytes_billed=bytes_scanned,
        rows=selected.rows,
        message_bytes=selected.bytes,
        selection_bytes=selected.bytes,
        rows_by_topic=dict(counts.topics.most_common(MAX_GROUPS)),
        rows_by_hour=dict(counts.hours.most_common(MAX_GROUPS)),
        first_publish_time=counts.first,
        last_publish_time=counts.last,
        is_cut=max(len(counts.topics), len(counts.hours)) > MAX_GROUPS,
        samples=counts.samples,
        is_kept=True,
        notes=_notes(query),
    )


def _notes(query: ValidatedQuery) -> list[QueryNote]:
    if not query.missing_columns:
        return []
    message = (
        f"The query does not return {', '.join(query.missing_columns)}: Refeed then publishes "
        "the messages without the tags of these columns. If you need the tags, add the columns to the query."
    )
    return [QueryNote("columns_missing", message)]


def _count(found: "_Counts", selected: SelectedTable, query: ValidatedQuery, runs: QueryRuns) -> None:
    names = {column.name.lower(): column for column in query.output}
    counted = [names[name].name for name, kind in _COUNTED.items() if name in names and names[name].type == kind]
    if counted:
        _, batches = runs.read(selected.table, counted)
        for batch in batches:
            found.add(batch.rename_columns([name.lower() for name in batch.schema.names]))
    sampled = [
        column.name
        for name, column in names.items()
        if name in _SAMPLED and (name not in _COUNTED or column.name in counted)
    ]
    _, batches = runs.read(selected.table, sampled)
    found.samples = [{**dict.fromkeys(_SAMPLED), **row} for row in _first(batches)]


class _Counts:
    """What the rows of one read after the other add up to."""

    def __init__(self) -> None:
        self.topics: Counter[str] = Counter()
        self.hours: Counter[datetime] = Counter()
        self.first: datetime | None = None
        self.last: datetime | None = None
        self.samples: list[Mapping[str, Any]] = []

    def add(self, rows: pa.RecordBatch) -> None:
        if "topic" in rows.schema.names:
            self.topics.update(_count_values(rows.column("topic")))
        if "publish_time" not in rows.schema.names:
            return
        times = rows.column("publish_time")
        self.hours.update(_count_values(pc.floor_temporal(times, unit="hour")))
        ends = pc.min_max(times).as_py()
        if ends["min"] is not None:
            self.first = ends["min"] if self.first is None else min(self.first, ends["min"])
            self.last = ends["max"] if self.last is None else max(self.last, ends["max"])


def _count_values(values: pa.Array) -> dict[Any, int]:
    found = pc.value_counts(values.drop_null()).to_pylist()
    return {entry["values"]: entry["counts"] for entry in found}


def _first(batches: Iterator[pa.RecordBatch]) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = []
    for batch in batches:
        named = batch.rename_columns([name.lower() for name in batch.schema.names])
        rows += named.slice(0, MAX_SAMPLES - len(rows)).to_pylist()
        if len(rows) == MAX_SAMPLES:
            break
    return rows
