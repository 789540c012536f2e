"""Plans of backfills whose archive is in BigQuery: from a dry run, or exactly from the rows themselves."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backfill.bigquery import BigQueryPlace, BigQueryQueries, cap_of
from backfill.creation import check_bytes
from backfill.options import SelectionBounds
from backfill.plan import (
    MAX_GROUPS,
    MAX_SAMPLES,
    Plan,
    PlanTarget,
    price_of,
    render_bounds,
    render_groups_warning,
    render_nothing_warning,
    render_sample,
    render_subscriptions,
    text_warnings,
    warn_of_size,
    warn_of_target,
)
from backfill.request import BackfillRequest, ValidRequest
from backfill.selection import render_time
from backfill.write_buffer import with_write_buffer
from connectors.bigquery.selection import SelectedTable
from model.errors import QueryStoppedError, QueryTooLargeError
from sql.validate import ValidatedQuery

# Somebody waits for the answer.
_EXACT_SECONDS: Final = 45.0
_ANSWER_ROWS: Final = 10_000
_COUNTED: Final = {"topic": "STRING", "publish_time": "TIMESTAMP"}
_SAMPLED: Final = ("message_id", "publish_time", "topic", "attributes", "data")


class BigQueryPlanner:
    """Says what backfills over one archive would do, and what their drivers have to know of it."""

    def __init__(
        self, place: BigQueryPlace, *, memory: str, bounds: SelectionBounds, price_usd_per_tib: float | None
    ) -> None:
        self._place = place
        self._queries = BigQueryQueries(place)
        self._memory = memory
        self._bounds = bounds
        self._price = price_usd_per_tib

    def close(self) -> None:
        """End the connections."""
        self._queries.close()

    def has_table(self, name: str) -> bool:
        """Return whether BigQuery has the table.

        Raises:
            WarehouseError: it does not say.
        """
        return self._queries.has_table(name)

    def answer(self, query: ValidatedQuery) -> list[dict[str, Any]]:
        """Return the rows of a query.

        Raises:
            QueryError: BigQuery refuses it, or it takes too long.
        """
        table, _ = self._queries.answer(query, max_rows=_ANSWER_ROWS, seconds=_EXACT_SECONDS)
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows

    def plan(
        self,
        plan_id: str,
        request: BackfillRequest,
        valid: ValidRequest,
        target: PlanTarget,
        *,
        overlapping: Sequence[str] = (),
        exact: bool = False,
    ) -> Plan:
        """Try the query dry, and return the plan; ``exact`` runs it, and keeps its rows under ``plan_id``.

        Raises:
            QueryError: BigQuery refuses the query, or understands it otherwise than the gate.
            QueryTooLargeError: the exact one would be billed more than its cap, or does not end within a minute.
            RequestInvalidError: it would read more bytes than the exact one may.
        """
        query, buffer_warnings = self._with_buffer(valid)
        bytes_scanned = self._queries.measure(query)
        counts = _Counts()
        sizes: list[dict[str, str]] = []
        if exact:
            check_bytes(bytes_scanned, request)
            selected = self._materialise(plan_id, request, query, bytes_scanned)
            sizes = warn_of_size(selected.rows, selected.bytes, self._bounds)
            # What no backfill may publish is not read to be counted either.
            counts = _Counts(selected.rows) if sizes else self._count(selected, valid.query)
        return Plan(
            window={"from": render_time(valid.window.start), "to": render_time(valid.window.end)},
            topic=target.topic,
            rows=counts.rows,
            bytes=None,
            bytes_scanned=bytes_scanned,
            price_usd=price_of(bytes_scanned, self._price),
            rows_by_topic=dict(counts.topics.most_common(MAX_GROUPS)),
            rows_by_hour=[
                {"hour": f"{hour:%Y-%m-%dT%H}:00:00Z", "rows": rows}
                for hour, rows in sorted(counts.hours.most_common(MAX_GROUPS))
            ],
            first_publish_time=render_time(counts.first),
            last_publish_time=render_time(counts.last),
            messages_without_room=None,
            messages_with_refused_attributes=None,
            bounds=render_bounds(self._bounds),
            samples=counts.samples,
            subscriptions=render_subscriptions(target),
            warnings=[
                *text_warnings(valid.query),
                *_warnings(valid.query, counts),
                *buffer_warnings,
                *sizes,
                *warn_of_target(target, overlapping),
            ],
        )

    def source(self, request: BackfillRequest, valid: ValidRequest, materialised: str | None) -> dict[str, Any]:
        """Return what the driver needs to know to get the rows; ``materialised`` is a plan that has them already.

        Raises:
            QueryError: BigQuery refuses the query, or understands it otherwise than the gate.
            RequestInvalidError: it would read more than ``max_bytes_billed``.
        """
        query, _ = self._with_buffer(valid)
        bytes_scanned = self._queries.measure(query)
        if materialised is None:
            check_bytes(bytes_scanned, request)
        return {
            "query": {
                "sql": query.text,
                "parameters": dict(request.parameters),
                "maximum_bytes_billed": cap_of(bytes_scanned, request.max_bytes_billed),
                "plan": materialised,
                "memory": self._memory,
            },
            "archive": {"warehouse": "bigquery", **self._place.as_json()},
        }

    def _with_buffer(self, valid: ValidRequest) -> tuple[ValidatedQuery, list[dict[str, str]]]:
        if not valid.query.leaves_out_buffer:
            return valid.query, []
        return with_write_buffer(valid.query, valid.window, self._queries.describe_archive(), datetime.now(UTC))

    def _materialise(
        self, plan_id: str, request: BackfillRequest, query: ValidatedQuery, bytes_scanned: int
    ) -> SelectedTable:
        ends_at = time.monotonic() + _EXACT_SECONDS
        cap = cap_of(bytes_scanned, request.max_bytes_billed)
        self._queries.start(plan_id, query.text, request.parameters, maximum_bytes_billed=cap)
        try:
            return self._queries.wait(plan_id, lambda: time.monotonic() > ends_at)
        except QueryStoppedError as exc:
            raise QueryTooLargeError(
                f"The query took longer than {_EXACT_SECONDS:.0f} s; plan it without exact."
            ) from exc

    def _count(self, selected: SelectedTable, query: ValidatedQuery) -> "_Counts":
        found = _Counts(rows=selected.rows)
        if not selected.rows:
            return found
        names = {column.name.lower(): column for column in query.output}
        counted = [
            names[name].name for name, kind in _COUNTED.items() if name in names and names[name].type == kind
        ]
        if counted:
            _, batches = self._queries.read(selected.table, counted)
            for batch in batches:
                found.add(batch.rename_columns([name.lower() for name in batch.schema.names]))
        sampled = [
            column.name
            for name, column in names.items()
            if name in _SAMPLED and (name not in _COUNTED or column.name in counted)
        ]
        _, batches = self._queries.read(selected.table, sampled)
        found.samples = [render_sample({**dict.fromkeys(_SAMPLED), **row}) for row in _first(batches)]
        return found


class _Counts:
    """What is known of the rows; None is what nobody knows."""

    def __init__(self, rows: int | None = None) -> None:
        self.rows = rows
        self.topics: Counter[str] = Counter()
        self.hours: Counter[datetime] = Counter()
        self.first: datetime | None = None
        self.last: datetime | None = None
        self.samples: list[dict[str, Any]] = []

    @property
    def is_cut(self) -> bool:
        return max(len(self.topics), len(self.hours)) > MAX_GROUPS

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


def _warnings(query: ValidatedQuery, counts: _Counts) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    if query.missing_columns and query.reads_archive:
        message = (
            f"The query does not give {', '.join(query.missing_columns)}: BigQuery runs it as it is written, so "
            "that messages go out without them. Select them, if they matter."
        )
        found.append({"code": "columns_missing", "message": message})
    if counts.rows is None:
        message = (
            "A dry run reads nothing: how many rows there are, of which topics and hours, and what they look "
            "like, is known with exact=true, which runs the query and bills it."
        )
        found.append({"code": "not_exact", "message": message})
    if counts.rows == 0:
        found.append(render_nothing_warning())
    if counts.is_cut:
        found.append(render_groups_warning())
    return found
