"""Questions to BigQuery that its documentation leaves open, asked in a dataset that exists for nothing else."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Final

import pyarrow as pa
from google.api_core import exceptions as api
from google.cloud import bigquery
from google.cloud.bigquery_storage_v1 import types

from connectors.bigquery.client import ONCE, Clients, Connection
from connectors.bigquery.errors import our_errors
from connectors.bigquery.queries.job import QueryJob
from connectors.bigquery.table_id import TableId
from connectors.bigquery.tables.schema import to_bigquery
from connectors.bigquery.writes.appender import StreamAppender
from connectors.bigquery.writes.row_writer import BigQueryRowWriter
from connectors.bigquery.writes.write_streams import PENDING, finalize_stream
from connectors.columns import arrow_schema
from model.schema import Field, RowSchema

# What a killed process leaves behind goes by itself.
_KEPT: Final = timedelta(days=1)
_LOOK_SECONDS: Final = 1.0
_QUERY_SECONDS: Final = 60.0
_LARGE_BYTES: Final = 12_000_000
_NOT_YET: Final = (api.NotFound, api.FailedPrecondition)

_EVERY_TYPE: Final = RowSchema(
    (
        Field("text", "STRING"),
        Field("raw", "BYTES"),
        Field("whole", "INT64"),
        Field("real", "FLOAT64"),
        Field("exact", "NUMERIC"),
        Field("truth", "BOOL"),
        Field("moment", "TIMESTAMP"),
        Field("day", "DATE"),
        Field("clock", "TIME"),
        Field("local", "DATETIME"),
        Field("place", "GEOGRAPHY"),
        Field("document", "JSON"),
        Field("lines", "RECORD", "REPEATED", fields=(Field("sku", "STRING"), Field("count", "INT64"))),
        Field("ingest_time", "TIMESTAMP"),
    ),
    "Every type that the pipeline writes.",
)


class BigQueryProbes:
    """Asks one question a method, in a scratch dataset that :meth:`open` makes and takes away again.

    Each method returns the answer in words, with seconds and counts as they were measured. ``patience_seconds`` is
    how long a question waits for something that may take minutes.
    """

    def __init__(self, connection: Connection, dataset: str, *, patience_seconds: float) -> None:
        self._clients = Clients(connection)
        self._project = connection.project
        self._dataset = dataset
        self._patience_seconds = patience_seconds

    @contextmanager
    def open(self) -> Iterator[None]:
        """Make the dataset for the length of the block, whose end takes it away with all that is in it.

        Raises:
            WarehouseError: it can't be made, or not be taken away.
        """
        dataset = bigquery.Dataset(f"{self._project}.{self._dataset}")
        dataset.location = self._clients.connection.location
        dataset.default_table_expiration_ms = int(_KEPT.total_seconds() * 1000)
        dataset.labels = self._clients.connection.labels_for("doctor")
        try:
            with our_errors(f"creating the scratch dataset {self._dataset}"):
                self._clients.rest().create_dataset(dataset, **ONCE)
            yield
        finally:
            with our_errors(f"deleting the scratch dataset {self._dataset}"):
                self._clients.rest().delete_dataset(dataset, delete_contents=True, not_found_ok=True, **ONCE)

    def questions(self) -> list[tuple[str, Callable[[], str]]]:
        """Return every question with what asks it."""
        asked = (
            ("CreateWriteStream right after tables.insert", BigQueryProbes.stream_after_create),
            ("Arrow append of every type to a PENDING stream", BigQueryProbes.every_type),
            ("a commit of a stream that is committed", BigQueryProbes.double_commit),
            ("an append request of 12 MB", BigQueryProbes.large_append),
            ("FOR SYSTEM_TIME AS OF right after a commit", BigQueryProbes.travel_after_commit),
            ("_PARTITIONTIME and streamingBuffer after a commit", BigQueryProbes.partition_time),
        )
        return [(text, partial(self.ask, question)) for text, question in asked]

    def ask(self, question: Callable[["BigQueryProbes"], str]) -> str:
        """Return the answer to one of the methods below.

        Raises:
            WarehouseError: BigQuery refuses what the question needs.
        """
        with our_errors(f"asking in {self._dataset}"):
            return question(self)

    def stream_after_create(self) -> str:
        """How soon CreateWriteStream works after tables.insert."""
        table = self._create("fresh", [bigquery.SchemaField("text", "STRING")])
        refusals: list[str] = []

        def create() -> bool:
            try:
                self._create_stream(table)
            except _NOT_YET as exc:
                refusals.append(type(exc).__name__)
                return False
            return True

        seconds = self._wait(create)
        tries = f"refused {len(refusals)} times ({', '.join(sorted(set(refusals)))})" if refusals else "at once"
        return f"{tries}, {_seconds(seconds)} after the create"

    def every_type(self) -> str:
        """Whether one Arrow append to a PENDING stream takes every type that the pipeline writes."""
        table = self._create("types", to_bigquery(_EVERY_TYPE))
        writer = BigQueryRowWriter(self._clients.connection, str(table), 9_500_000, ("clock",))
        part = writer.write_rows([_row_of_every_type()])
        streams = [one.stream for one in part.tables if one.stream]
        self._commit(table, streams)
        (found,) = self._query(f"SELECT * FROM `{table}`")  # noqa: S608  a name of our own
        missing = sorted(name for name, value in found.items() if value is None)
        return f"{len(found)} columns; " + (
            f"null came back: {', '.join(missing)}" if missing else "all came back"
        )

    def double_commit(self) -> str:
        """What BatchCommitWriteStreams answers when a stream is committed already."""
        table = self._create("twice", [bigquery.SchemaField("text", "STRING")])
        stream = self._append(table, pa.RecordBatch.from_pydict({"text": ["a"]}))
        self._commit(table, [stream])
        try:
            again = self._commit(table, [stream])
        except api.GoogleAPICallError as exc:
            answer = f"refused: {type(exc).__name__}"
        else:
            codes = [types.StorageError.StorageErrorCode(error.code).name for error in again.stream_errors]
            answer = f"stream errors {', '.join(codes)}" if codes else "accepted"
        rows = self._query(f"SELECT COUNT(*) AS n FROM `{table}`")[0]["n"]  # noqa: S608
        return f"{answer}; {rows} of 1 rows"

    def large_append(self) -> str:
        """Whether one append request of 12 MB is taken."""
        table = self._create("large", [bigquery.SchemaField("raw", "BYTES")])
        began = time.monotonic()
        stream = self._append(table, pa.RecordBatch.from_pydict({"raw": [b"x" * _LARGE_BYTES]}))
        taken = time.monotonic() - began
        self._commit(table, [stream])
        return f"taken in {_seconds(taken)}"

    def travel_after_commit(self) -> str:
        """How soon FOR SYSTEM_TIME AS OF CURRENT_TIMESTAMP() sees what was committed."""
        table = self._create("travel", [bigquery.SchemaField("text", "STRING")])
        self._commit(table, [self._append(table, pa.RecordBatch.from_pydict({"text": ["a"]}))])
        text = f"SELECT COUNT(*) AS n FROM `{table}` FOR SYSTEM_TIME AS OF CURRENT_TIMESTAMP()"  # noqa: S608
        failures: list[str] = []

        def is_seen() -> bool:
            try:
                return bool(self._query(text)[0]["n"])
            except api.GoogleAPICallError as exc:
                failures.append(type(exc).__name__)
                return False

        seconds = self._wait(is_seen)
        refused = f", refused before ({', '.join(sorted(set(failures)))})" if failures else ""
        return f"seen {_seconds(seconds)} after the commit{refused}"

    def partition_time(self) -> str:
        """How long _PARTITIONTIME stays NULL after a commit, and what streamingBuffer says meanwhile."""
        table = self._create("buffered", [bigquery.SchemaField("text", "STRING")])
        self._commit(table, [self._append(table, pa.RecordBatch.from_pydict({"text": ["a", "b", "c"]}))])
        buffered = self._clients.rest().get_table(str(table), **ONCE).streaming_buffer
        said = "no streamingBuffer" if buffered is None else f"streamingBuffer of {buffered.estimated_rows} rows"
        text = f"SELECT COUNTIF(_PARTITIONTIME IS NULL) AS n FROM `{table}`"  # noqa: S608
        first = self._query(text)[0]["n"]
        seconds = self._wait(lambda: not self._query(text)[0]["n"])
        return f"{first} of 3 rows NULL at first, none after {_seconds(seconds)}; {said} right after the commit"

    def _create(self, name: str, columns: list[Any]) -> TableId:
        table = TableId(self._project, self._dataset, name)
        wanted = bigquery.Table(str(table), schema=columns)
        wanted.time_partitioning = bigquery.TimePartitioning(type_="DAY")
        self._clients.rest().create_table(wanted, **ONCE)
        return table

    def _create_stream(self, table: TableId) -> str:
        stream = types.WriteStream(type_=PENDING)
        made = self._clients.write().create_write_stream(parent=table.path, write_stream=stream, **ONCE)
        return str(made.name)

    def _append(self, table: TableId, rows: pa.RecordBatch) -> str:
        names: list[str] = []

        def create() -> bool:
            with suppress(*_NOT_YET):
                names.append(self._create_stream(table))
            return bool(names)

        self._wait(create)
        (name,) = names
        appender = StreamAppender(self._clients, name)
        appender.append([rows])
        if appender.refusals:
            raise api.InvalidArgument(appender.refusals[0].reason)  # type: ignore[no-untyped-call]
        finalize_stream(self._clients, name)
        return name

    def _commit(self, table: TableId, streams: list[str]) -> Any:
        request = types.BatchCommitWriteStreamsRequest(parent=table.path, write_streams=streams)
        return self._clients.write().batch_commit_write_streams(request, **ONCE)

    def _query(self, text: str) -> list[Any]:
        job = QueryJob(self._clients, text, "doctor").begin()
        return list(job.result(retry=None, timeout=_QUERY_SECONDS))

    def _wait(self, is_so: Callable[[], bool]) -> float | None:
        """Return the seconds until it is so, None when it is not within the patience."""
        began = time.monotonic()
        while not is_so():
            if time.monotonic() - began > self._patience_seconds:
                return None
            time.sleep(_LOOK_SECONDS)
        return time.monotonic() - began


def _seconds(found: float | None) -> str:
    return "not within the time" if found is None else f"{found:.1f} s"


def _row_of_every_type() -> pa.RecordBatch:
    now = datetime.now(UTC)
    row = {
        "text": "ключ",
        "raw": b"\x00\xff",
        "whole": -(2**63),
        "real": 0.1,
        "exact": Decimal("1.000000001"),
        "truth": True,
        "moment": now,
        "day": date(2026, 1, 2),
        "clock": "12:30:00.500000",
        "local": now.replace(tzinfo=None),
        "place": "POINT(18.1 59.3)",
        "document": '{"a": [1, null]}',
        "lines": [{"sku": "a", "count": 1}, {"sku": "b", "count": 2}],
        "ingest_time": now,
    }
    return pa.RecordBatch.from_pylist([row], schema=arrow_schema(_EVERY_TYPE))
