"""google.cloud.bigquery.storage.v1.BigQueryWrite: streams of all three types."""

import re
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import grpc
from google.cloud.bigquery_storage_v1 import types
from google.protobuf import timestamp_pb2

from tests.standin.append_connection import Connection
from tests.standin.catalog import Catalog, TableEntry, TableKey, now_us
from tests.standin.frames import FrameLog
from tests.standin.problems import Problem
from tests.standin.row_checks import bad_rows
from tests.standin.storage_errors import Calls, StorageProblem, fault_problem

SERVICE: Final = "google.cloud.bigquery.storage.v1.BigQueryWrite"
# "The size of a single AppendRowsRequest must be less than 20 MB in size. Requests larger than this return an
# error, typically INVALID_ARGUMENT" (AppendRowsRequest,
# https://cloud.google.com/bigquery/docs/reference/storage/rpc/google.cloud.bigquery.storage.v1).
# Until 2025 it was 10 MB.
APPEND_LIMIT_BYTES: Final = 20_000_000 - 1
# "You can call CreateWriteStream up to 10,000 times per hour per project per region" ("Quotas and limits", Storage
# Write API). Above it: RESOURCE_EXHAUSTED "Exceeds 'CreateWriteStream requests' quota, user_id: ... (status:
# INSUFFICIENT_TOKENS), you can issue a raise quota request through Google Cloud Console"
# (https://github.com/broadinstitute/gatk/pull/8649).
STREAMS_PER_HOUR: Final = 10_000
# "Storage Write API best practices": a project has a quota of concurrent connections, above it AppendRows fails.
# It differs by location ("Quotas and limits"); 1,000 is assumed here.
CONNECTIONS: Final = 1_000
_TABLE: Final = re.compile(r"projects/([^/]+)/datasets/([^/]+)/tables/([^/]+)")
_STREAM: Final = re.compile(rf"({_TABLE.pattern})/streams/([^/]+)")
_Type = types.WriteStream.Type
_Request = types.AppendRowsRequest.pb()
_Response = types.AppendRowsResponse.pb()


@dataclass(slots=True)
class Stream:
    """A write stream; rows are in its file, the rest in the catalog. ``lock`` is held by whoever changes it."""

    name: str
    table_id: int
    type: str
    log: FrameLog
    created_us: int
    finalised: bool
    committed_us: int | None
    # Of a BUFFERED stream: the rows before it are visible.
    flushed: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class StreamQuota:
    """The streams that may be created: a bucket that holds an hour's, and fills in an hour."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.set(STREAMS_PER_HOUR)

    def set(self, per_hour: int) -> None:
        """Allow ``per_hour``, from a full bucket on."""
        with self._lock:
            self._per_hour, self._left, self._at = per_hour, float(per_hour), time.monotonic()

    def take(self) -> bool:
        with self._lock:
            now = time.monotonic()
            gained = (now - self._at) * self._per_hour / 3600
            self._left, self._at = min(self._left + gained, float(self._per_hour)), now
            if self._left < 1:
                return False
            self._left -= 1
            return True


class StorageWrite:
    """The service over one catalog."""

    def __init__(self, catalog: Catalog, calls: Calls) -> None:
        self._catalog = catalog
        self._calls = calls
        self._streams: dict[str, Stream] = {}
        # The columns that are known of a table, and since when it has others.
        self._known_fields: dict[int, tuple[list[dict[str, Any]], int]] = {}
        self._lock = threading.RLock()
        self.quota = StreamQuota()
        self._connections = threading.BoundedSemaphore(CONNECTIONS)

    def handler(self) -> grpc.GenericRpcHandler:
        unary, t = self._calls.unary, types
        methods = {
            "CreateWriteStream": unary(
                "CreateWriteStream", t.CreateWriteStreamRequest, t.WriteStream, self.create, lambda m: m.parent
            ),
            "GetWriteStream": unary(
                "GetWriteStream", t.GetWriteStreamRequest, t.WriteStream, self.get, lambda m: m.name
            ),
            "FinalizeWriteStream": unary(
                "FinalizeWriteStream",
                t.FinalizeWriteStreamRequest,
                t.FinalizeWriteStreamResponse,
                self.finalise,
                lambda m: m.name,
            ),
            "BatchCommitWriteStreams": unary(
                "BatchCommitWriteStreams",
                t.BatchCommitWriteStreamsRequest,
                t.BatchCommitWriteStreamsResponse,
                self.commit,
                lambda m: m.parent,
            ),
            "FlushRows": unary(
                "FlushRows", t.FlushRowsRequest, t.FlushRowsResponse, self.flush, lambda m: m.write_stream
            ),
            "AppendRows": grpc.stream_stream_rpc_method_handler(self.append_rows),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    # Streams

    def create(self, request: Any) -> types.WriteStream:
        entry = self._find_table(request.parent)
        kind = _Type(request.write_stream.type_)
        if kind is _Type.TYPE_UNSPECIFIED:
            raise StorageProblem("INVALID_ARGUMENT", "The type of the stream has to be given.")
        if not self.quota.take():
            raise StorageProblem(
                "RESOURCE_EXHAUSTED",
                "Exceeds 'CreateWriteStream requests' quota, user_id: project_us (status: INSUFFICIENT_TOKENS), "
                f"you can issue a raise quota request through Google Cloud Console. Entity: {request.parent}",
            )
        name = f"{request.parent}/streams/{uuid.uuid4().hex}"
        return self._answer(self._add_stream(name, entry, kind.name), entry)

    def get(self, request: Any) -> types.WriteStream:
        """Return a stream, without its table's schema."""
        return self._answer(*self._find_stream(request.name))

    def finalise(self, request: Any) -> types.FinalizeWriteStreamResponse:
        """Let nothing more be appended; calling it again answers the same."""
        stream, _ = self._find_stream(request.name)
        with stream.lock, self._catalog.transaction() as db:
            db.execute("UPDATE streams SET finalised = 1 WHERE name = ?", (stream.name,))
            stream.finalised = True
            stream.log.close()
        return types.FinalizeWriteStreamResponse(row_count=stream.log.rows)

    def commit(self, request: Any) -> types.BatchCommitWriteStreamsResponse:
        """Make the rows of every stream visible at one moment, or of none (stream_errors)."""
        if not request.write_streams:
            raise StorageProblem("INVALID_ARGUMENT", "write_streams is empty.")
        entry = self._find_table(request.parent)
        with self._lock, self._catalog.transaction() as db:
            errors, streams = [], []
            for name in dict.fromkeys(request.write_streams):
                try:
                    streams.append(self._committable(name, entry))
                except StorageProblem as exc:
                    errors.append(exc.storage_error())
            if errors:
                return types.BatchCommitWriteStreamsResponse(stream_errors=errors)
            moment = now_us()
            for stream in streams:
                path = str(stream.log.path.relative_to(self._catalog.folder))
                part = {"path": path, "last_row": stream.log.rows, "arrival_us": moment, "partition_us": None}
                if not self._catalog.loses_streams(entry.id):
                    self._catalog.add_part(entry, part)
                db.execute("UPDATE streams SET committed_us = ? WHERE name = ?", (moment, stream.name))
        for stream in streams:
            stream.committed_us = moment
        return types.BatchCommitWriteStreamsResponse(commit_time=_timestamp(moment))

    def flush(self, request: Any) -> types.FlushRowsResponse:
        """Make the rows of a BUFFERED stream visible, up to ``offset`` and with it.

        BigQueryWrite.FlushRows: "A Flush operation flushes up to any previously flushed offset in a BUFFERED
        stream, to the offset specified in the request. Flush is not supported on the _default stream".
        FlushRowsRequest.offset: "Rows before this offset (including this offset) will be flushed"
        (https://github.com/googleapis/googleapis/blob/master/google/cloud/bigquery/storage/v1/storage.proto).
        How it refuses stands in no reference, but in Apache Beam, whose exactly-once sink uses it
        (StorageApiFlushAndFinalizeDoFn, https://github.com/apache/beam): ALREADY_EXISTS "implies that we have
        already flushed up to this point", INVALID_ARGUMENT "that the stream has already been finalized",
        OUT_OF_RANGE "is beyond the end of the stream", which "typically means the stream was finalized or
        truncated by BQ". So nothing of a finalized stream is flushed here any more.
        """
        stream, entry = self._find_stream(request.write_stream)
        if stream.type != "BUFFERED":
            raise StorageProblem(
                "INVALID_ARGUMENT", f"{stream.name} is not BUFFERED.", "INVALID_STREAM_TYPE", stream.name
            )
        offset = request.offset
        if offset is None or offset < 0:
            raise StorageProblem("INVALID_ARGUMENT", "The offset to flush to has to be given.")
        with stream.lock, self._catalog.transaction() as db:
            if stream.finalised:
                raise StorageProblem(
                    "INVALID_ARGUMENT", f"Stream is finalized: {stream.name}", "STREAM_FINALIZED", stream.name
                )
            if offset < stream.flushed:
                raise StorageProblem(
                    "ALREADY_EXISTS", f"The stream is flushed up to {stream.flushed - 1} already, got {offset}"
                )
            if offset >= stream.log.rows:
                raise StorageProblem(
                    "OUT_OF_RANGE", f"Offset {offset} is beyond the end of the stream, {stream.log.rows} rows"
                )
            path = str(stream.log.path.relative_to(self._catalog.folder))
            part = {"path": path, "first_row": stream.flushed, "last_row": offset + 1, "partition_us": None}
            self._catalog.add_part(entry, {**part, "arrival_us": now_us()})
            db.execute("UPDATE streams SET flushed = ? WHERE name = ?", (offset + 1, stream.name))
            stream.flushed = offset + 1
        return types.FlushRowsResponse(offset=offset)

    def _committable(self, name: str, entry: TableEntry) -> Stream:
        stream, owner = self._find_stream(name)
        if owner.id != entry.id:
            raise StorageProblem("INVALID_ARGUMENT", f"{name} is not of {entry.key}.", "STREAM_NOT_FOUND", name)
        if stream.type != "PENDING":
            raise StorageProblem("INVALID_ARGUMENT", f"{name} is not PENDING.", "INVALID_STREAM_TYPE", name)
        if stream.committed_us is not None:
            raise StorageProblem(
                "INVALID_ARGUMENT", f"Stream is already committed: {name}", "STREAM_ALREADY_COMMITTED", name
            )
        if not stream.finalised:
            raise StorageProblem(
                "INVALID_ARGUMENT", f"Stream is not finalized: {name}", "INVALID_STREAM_STATE", name
            )
        return stream

    # Appends

    def append_rows(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Append what comes, one answer a request, in order.

        An offset that is taken or too far, a finalised stream and bad rows are answers ("error" of
        AppendRowsResponse, see "Batch load data using the Storage Write API" and the reference of
        AppendRowsResponse); anything else ends the connection with its status.
        """
        connection = Connection()
        if not self._connections.acquire(blocking=False):
            StorageProblem("RESOURCE_EXHAUSTED", "Exceeds 'Concurrent connections' quota").abort(context)
        try:
            for raw in requests:
                try:
                    answer = self._append(raw, connection)
                except StorageProblem as exc:
                    self._calls.log.add("AppendRows", connection.name, exc.storage_code or exc.code)
                    exc.abort(context)
                yield answer.SerializeToString()
        finally:
            self._connections.release()

    def _append(self, raw: bytes, connection: Connection) -> Any:
        request = _Request.FromString(raw)
        if request.write_stream and request.write_stream != connection.name:
            connection.name, connection.schema_bytes = request.write_stream, b""
        fault = self._calls.faults.take("AppendRows", "before", connection.name)
        if fault is not None and fault.kind == "row_errors":
            return self._refuse_rows(connection, dict.fromkeys(fault.rows, fault.message))
        if fault is not None and self._calls.act(fault):
            if fault.in_band:
                return self._refuse(connection, fault_problem(fault))
            raise fault_problem(fault)
        if not connection.name:
            raise StorageProblem("INVALID_ARGUMENT", "The first request has to name its write_stream.")
        if len(raw) > APPEND_LIMIT_BYTES:
            raise StorageProblem(
                "INVALID_ARGUMENT", f"AppendRows request too large: {len(raw)} limit {APPEND_LIMIT_BYTES}"
            )
        return self._store(request, connection, len(raw))

    def _store(self, request: Any, connection: Connection, size: int) -> Any:
        stream, entry = self._find_stream(connection.name)
        schema, batch, parsed = connection.read_rows(request, entry)
        bad = bad_rows(parsed, entry.fields)
        if bad:
            return self._refuse_rows(connection, bad)
        try:
            first = self._write(stream, request, schema, batch, parsed.num_rows)
        except StorageProblem as exc:
            return self._refuse(connection, exc)
        self._calls.meet("AppendRows", "after", connection.name)
        self._calls.log.add(
            "AppendRows", connection.name, "ok", rows=parsed.num_rows, bytes=size, connection=connection.number
        )
        answer = _Response(write_stream=stream.name)
        answer.append_result.offset.value = first
        return answer

    def _write(self, stream: Stream, request: Any, schema: bytes, batch: bytes, rows: int) -> int:
        with stream.lock:
            if stream.finalised:
                raise StorageProblem(
                    "INVALID_ARGUMENT", f"Stream is finalized: {stream.name}", "STREAM_FINALIZED", stream.name
                )
            if request.HasField("offset"):
                _check_offset(stream, request.offset.value)
            return stream.log.append(schema, batch, rows, now_us())

    def _refuse(self, connection: Connection, problem: StorageProblem) -> Any:
        self._calls.log.add("AppendRows", connection.name, problem.storage_code or problem.code)
        return _Response(error=problem.status(), write_stream=connection.name)

    def _refuse_rows(self, connection: Connection, bad: dict[int, str]) -> Any:
        message = "Errors found while processing rows. Please refer to the row_errors field for details."
        answer = self._refuse(connection, StorageProblem("INVALID_ARGUMENT", message))
        for index, reason in sorted(bad.items()):
            answer.row_errors.add(index=index, code=types.RowError.RowErrorCode.FIELDS_ERROR, message=reason)
        return answer

    # What is where

    def _find_table(self, path: str) -> TableEntry:
        match = _TABLE.fullmatch(path)
        if match is None:
            raise StorageProblem("INVALID_ARGUMENT", f"Not a table: {path}")
        try:
            entry = self._catalog.find_table(TableKey(*match.groups()))
        except Problem as exc:
            raise StorageProblem("NOT_FOUND", exc.message, "TABLE_NOT_FOUND", path) from exc
        if entry.is_view:
            raise StorageProblem("INVALID_ARGUMENT", f"{entry.key} is a view.")
        return self._as_known(entry)

    def _as_known(self, entry: TableEntry) -> TableEntry:
        """Return the table as this API knows it: a new one not at all, new columns not yet.

        After a tables.insert, CreateWriteStream and AppendRows may answer NOT_FOUND without a StorageError though
        tables.get has the table (https://github.com/googleapis/google-cloud-go/issues/12449,
        https://github.com/supabase/etl/pull/862). After a tables.patch they may refuse the new columns as
        SCHEMA_MISMATCH_EXTRA_FIELDS ("it takes on the order of minutes",
        https://cloud.google.com/bigquery/docs/write-api, "Working with schemas").
        """
        now = now_us()
        if self._catalog.delayed not in str(entry.key):
            return entry
        if now - int(entry.body["creationTime"]) * 1000 < self._catalog.new_tables_us:
            raise StorageProblem("NOT_FOUND", "Requested entity was not found.")
        with self._lock:
            known, met = self._known_fields.get(entry.id, (entry.fields, 0))
            if known != entry.fields:
                met = met or now
                if now - met >= self._catalog.new_columns_us:
                    known, met = entry.fields, 0
            self._known_fields[entry.id] = (known, met)
        return replace(entry, body={**entry.body, "schema": {"fields": known}}) if met else entry

    def _find_stream(self, name: str) -> tuple[Stream, TableEntry]:
        match = _STREAM.fullmatch(name)
        if match is None:
            raise StorageProblem("INVALID_ARGUMENT", f"Not a stream: {name}")
        entry = self._find_table(match.group(1))
        with self._lock:
            stream = self._streams.get(name)
            if stream is None or stream.table_id != entry.id:
                stream = self._load_stream(name, entry)
        return stream, entry

    def _load_stream(self, name: str, entry: TableEntry) -> Stream:
        rows = self._catalog.query("SELECT * FROM streams WHERE name = ? AND table_id = ?", name, entry.id)
        if not rows:
            raise StorageProblem("NOT_FOUND", f"Requested entity was not found: {name}", "STREAM_NOT_FOUND", name)
        row = rows[0]
        log = self._catalog.log(row["path"])
        stream = Stream(
            name,
            entry.id,
            row["type"],
            log,
            row["created_us"],
            bool(row["finalised"]),
            row["committed_us"],
            row["flushed"],
        )
        self._streams[name] = stream
        return stream

    def _add_stream(self, name: str, entry: TableEntry, kind: str) -> Stream:
        moment, path = now_us(), self._catalog.new_path(entry)
        with self._lock, self._catalog.transaction() as db:
            db.execute(
                "INSERT INTO streams (name, table_id, type, path, created_us) VALUES (?, ?, ?, ?, ?)",
                (name, entry.id, kind, path, moment),
            )
            if kind == "COMMITTED":
                db.execute("INSERT INTO parts (table_id, path, first_row) VALUES (?, ?, 0)", (entry.id, path))
            committed = moment if kind == "COMMITTED" else None
            stream = Stream(name, entry.id, kind, self._catalog.log(path), moment, False, committed)
            self._streams[name] = stream
        return stream

    def _answer(self, stream: Stream, entry: TableEntry) -> types.WriteStream:
        answer = types.WriteStream(
            name=stream.name,
            type_=_Type[stream.type],
            create_time=_timestamp(stream.created_us),
            write_mode=types.WriteStream.WriteMode.INSERT,
            location=entry.body.get("location", ""),
        )
        if stream.committed_us is not None:
            answer.commit_time = _timestamp(stream.committed_us)
        return answer


def _check_offset(stream: Stream, offset: int) -> None:
    if offset < stream.log.rows:
        raise StorageProblem(
            "ALREADY_EXISTS",
            f"The offset is within stream, expected offset {stream.log.rows}, received {offset}",
            "OFFSET_ALREADY_EXISTS",
            stream.name,
        )
    if offset > stream.log.rows:
        raise StorageProblem(
            "OUT_OF_RANGE",
            f"The offset is beyond stream, expected offset {stream.log.rows}, received {offset}",
            "OFFSET_OUT_OF_RANGE",
            stream.name,
        )


def _timestamp(micros: int) -> timestamp_pb2.Timestamp:
    return timestamp_pb2.Timestamp(seconds=micros // 1_000_000, nanos=micros % 1_000_000 * 1000)
