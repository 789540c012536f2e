"""google.cloud.bigquery.storage.v1.BigQueryRead: sessions of several streams, Arrow batches, offsets."""

import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import duckdb
import grpc
import pyarrow as pa
import sqlglot
from google.cloud.bigquery_storage_v1 import types
from google.protobuf import timestamp_pb2
from sqlglot.errors import SqlglotError

from tests.standin.catalog import Catalog, Piece, TableEntry, TableKey, now_us
from tests.standin.problems import Problem
from tests.standin.rows import slice_pieces
from tests.standin.schemas import arrow_schema, conform
from tests.standin.storage_errors import Calls, StorageProblem

SERVICE: Final = "google.cloud.bigquery.storage.v1.BigQueryRead"
# Reference of CreateReadSession: a session expires six hours after it was made; "Quotas and limits", Storage Read
# API: a row restriction has at most 1 MB; reference of CreateReadSessionRequest: at most 1,000 streams.
_SESSION_SECONDS: Final = 6 * 3600
_RESTRICTION_BYTES: Final = 1024 * 1024
_MOST_STREAMS: Final = 1000
_DEFAULT_STREAMS: Final = 4
_RESPONSE_BYTES: Final = 4 * 1024 * 1024
_PSEUDO: Final = (
    {"name": "_PARTITIONTIME", "type": "TIMESTAMP", "mode": "NULLABLE"},
    {"name": "_PARTITIONDATE", "type": "DATE", "mode": "NULLABLE"},
)
_TABLE: Final = re.compile(r"projects/([^/]+)/datasets/([^/]+)/tables/([^/]+)")
_STREAM: Final = re.compile(r"(projects/[^/]+/locations/[^/]+/sessions/[0-9a-f]+)/streams/(\d+)")


class StorageRead:
    """The service over one catalog; sessions survive a killed server."""

    def __init__(self, catalog: Catalog, calls: Calls) -> None:
        self._catalog = catalog
        self._calls = calls

    def handler(self) -> grpc.GenericRpcHandler:
        t = types
        methods = {
            "CreateReadSession": self._calls.unary(
                "CreateReadSession",
                t.CreateReadSessionRequest,
                t.ReadSession,
                self.create,
                lambda m: m.read_session.table,
            ),
            "ReadRows": grpc.unary_stream_rpc_method_handler(
                self.read_rows,
                request_deserializer=t.ReadRowsRequest.deserialize,
                response_serializer=t.ReadRowsResponse.serialize,
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def create(self, request: Any) -> types.ReadSession:
        """Return a session over the table's rows of this moment, its streams disjoint and of about equal size."""
        asked = request.read_session
        entry = self._find_table(asked.table)
        if asked.data_format != types.DataFormat.ARROW:
            raise StorageProblem("INVALID_ARGUMENT", "The data format is ARROW here.")
        options = asked.read_options
        fields = _selected(entry, list(options.selected_fields))
        _check_restriction(entry, options.row_restriction)
        snapshot = self._catalog.snapshot(entry)
        most = min(request.max_stream_count or _DEFAULT_STREAMS, _MOST_STREAMS, snapshot.rows)
        name = f"{request.parent}/locations/us/sessions/{uuid.uuid4().hex}"
        expires = now_us() + _SESSION_SECONDS * 1_000_000
        body = {
            "table": entry.id,
            "fields": fields,
            "restriction": options.row_restriction,
            "pieces": [[p.path, p.first_row, p.last_row, p.partition_us] for p in snapshot.pieces],
            "bounds": [snapshot.rows * number // most for number in range(most + 1)] if most else [],
        }
        with self._catalog.transaction() as db:
            db.execute("INSERT INTO sessions VALUES (?, ?, ?)", (name, json.dumps(body), expires))
        return types.ReadSession(
            name=name,
            expire_time=timestamp_pb2.Timestamp(seconds=expires // 1_000_000),
            data_format=types.DataFormat.ARROW,
            arrow_schema={"serialized_schema": _schema(fields).serialize().to_pybytes()},
            table=asked.table,
            read_options=options,
            # An empty table has no stream; Google's client ("Avoid reading rows from an empty table") knows it.
            streams=[types.ReadStream(name=f"{name}/streams/{number}") for number in range(most)],
            estimated_row_count=snapshot.rows,
            estimated_total_bytes_scanned=self._catalog.stored_bytes(snapshot),
        )

    def read_rows(self, request: Any, context: grpc.ServicerContext) -> Iterator[types.ReadRowsResponse]:
        """Yield a stream's rows from the offset on; the same offset gives the same rows, over a restart too."""
        try:
            self._calls.meet("ReadRows", "before", request.read_stream)
            session, pieces = self._find_stream(request.read_stream)
            rows = 0
            for number, batch in enumerate(self._batches(session, pieces, request.offset)):
                answer = types.ReadRowsResponse(
                    arrow_record_batch={"serialized_record_batch": batch.serialize().to_pybytes()},
                    row_count=batch.num_rows,
                )
                if number == 0:
                    answer.arrow_schema.serialized_schema = batch.schema.serialize().to_pybytes()
                yield answer
                rows += batch.num_rows
                self._calls.meet("ReadRows", "after", request.read_stream)
        except StorageProblem as exc:
            self._calls.log.add("ReadRows", request.read_stream, exc.code, offset=request.offset)
            exc.abort(context)
        self._calls.log.add("ReadRows", request.read_stream, "ok", offset=request.offset, rows=rows)

    def _batches(
        self, session: Mapping[str, Any], pieces: Sequence[Piece], offset: int
    ) -> Iterator[pa.RecordBatch]:
        entry = self._catalog.table_by_id(session["table"])
        if entry is None:
            raise StorageProblem("NOT_FOUND", "The session's table is gone.")
        schema, skip = _schema(session["fields"]), offset
        for batch in self._catalog.read(entry, pieces):
            kept = _filter(batch, session["restriction"])
            if kept.num_rows <= skip:
                skip -= kept.num_rows
                continue
            shaped = conform(kept.slice(skip), schema)
            skip = 0
            step = max(1, _RESPONSE_BYTES * shaped.num_rows // max(1, shaped.nbytes))
            for start in range(0, shaped.num_rows, step):
                yield shaped.slice(start, step)

    def _find_table(self, path: str) -> TableEntry:
        match = _TABLE.fullmatch(path)
        if match is None:
            raise StorageProblem("INVALID_ARGUMENT", f"Not a table: {path}")
        try:
            entry = self._catalog.find_table(TableKey(*match.groups()))
        except Problem as exc:
            raise StorageProblem("NOT_FOUND", exc.message) from exc
        if entry.is_view:
            raise StorageProblem(
                "INVALID_ARGUMENT", f"non-table entities cannot be read with the storage API: {path}"
            )
        return entry

    def _find_stream(self, name: str) -> tuple[dict[str, Any], list[Piece]]:
        match = _STREAM.fullmatch(name)
        rows = self._catalog.query("SELECT * FROM sessions WHERE name = ?", match[1]) if match else []
        if not rows or not match or rows[0]["expires_us"] < now_us():
            raise StorageProblem("NOT_FOUND", f"Requested entity was not found: {name}")
        session = json.loads(rows[0]["body"])
        bounds, number = session["bounds"], int(match[2])
        if number + 1 >= len(bounds):
            raise StorageProblem("NOT_FOUND", f"Requested entity was not found: {name}")
        pieces = tuple(Piece(*piece) for piece in session["pieces"])
        return session, slice_pieces(pieces, bounds[number], bounds[number + 1])


def _selected(entry: TableEntry, names: list[str]) -> list[dict[str, Any]]:
    """Return the fields that are asked for, in the table's order; pseudo columns only when they are named."""
    known = [*entry.fields, *(_PSEUDO if entry.ingestion_step_us else ())]
    if not names:
        return list(entry.fields)
    chosen = _chosen(known, [name.split(".") for name in names])
    found = {name.split(".")[0].lower() for name in names} - {field["name"].lower() for field in chosen}
    if found:
        raise StorageProblem("INVALID_ARGUMENT", f"The following selected fields do not exist: {', '.join(found)}")
    return chosen


def _chosen(fields: Sequence[Mapping[str, Any]], paths: list[list[str]]) -> list[dict[str, Any]]:
    chosen = []
    for field in fields:
        below = [path[1:] for path in paths if path[0].lower() == field["name"].lower()]
        if not below:
            continue
        if field["type"] == "RECORD" and all(below):
            field = {**field, "fields": _chosen(field["fields"], below)}  # noqa: PLW2901
        chosen.append(dict(field))
    return chosen


def _schema(fields: Sequence[Mapping[str, Any]]) -> pa.Schema:
    # A reader is told that anything may be null, as the rows of older columns are.
    return pa.schema([field.with_nullable(True) for field in arrow_schema(fields)])


def _check_restriction(entry: TableEntry, restriction: str) -> None:
    if len(restriction.encode()) > _RESTRICTION_BYTES:
        raise StorageProblem("INVALID_ARGUMENT", "The row restriction is longer than 1 MB.")
    schema = entry.arrow_schema(pseudo=True)
    _filter(pa.RecordBatch.from_pylist([], schema=schema), restriction)
    column = (entry.body.get("timePartitioning") or {}).get("field")
    wanted = {column} if column else {"_PARTITIONTIME", "_PARTITIONDATE"}
    if entry.body.get("requirePartitionFilter") and not any(name in restriction for name in wanted):
        raise StorageProblem(
            "INVALID_ARGUMENT",
            f"Cannot query over table '{entry.key}' without a filter over column(s) "
            f"{', '.join(repr(name) for name in sorted(wanted))} that can be used for partition elimination",
        )


def _filter(batch: pa.RecordBatch, restriction: str) -> pa.RecordBatch:
    """Return the rows that meet the restriction, in their order.

    Raises:
        StorageProblem: INVALID_ARGUMENT; it is no condition on these columns.
    """
    if not restriction:
        return batch
    try:
        condition = sqlglot.parse_one(restriction, read="bigquery", into=sqlglot.exp.Condition)
        text = condition.sql("duckdb", unsupported_level=sqlglot.ErrorLevel.RAISE)
        with duckdb.cursor() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            numbered = batch.append_column("standin_row", pa.array(range(batch.num_rows), pa.int64()))
            connection.register("rows_of_batch", pa.Table.from_batches([numbered]))
            kept = connection.sql(
                f"SELECT standin_row FROM rows_of_batch WHERE {text} ORDER BY 1"
            ).to_arrow_table()
    except (SqlglotError, duckdb.Error) as exc:
        raise StorageProblem("INVALID_ARGUMENT", f"Row filter for the table is invalid: {exc}") from exc
    return batch.take(kept.column(0).combine_chunks())
