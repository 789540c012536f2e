"""A connection of AppendRows: it remembers its stream and its writer's schema, and reads rows with them."""

import uuid
from typing import Any

import pyarrow as pa

from tests.standin.catalog import TableEntry
from tests.standin.row_checks import check_writer_schema
from tests.standin.storage_errors import StorageProblem


class Connection:
    """What the requests of one AppendRows call share: the stream's name and the writer's schema."""

    def __init__(self) -> None:
        self.number = uuid.uuid4().hex
        self.name = ""
        self.schema_bytes = b""
        self._schema: pa.Schema | None = None

    def read_rows(self, request: Any, entry: TableEntry) -> tuple[bytes, bytes, pa.RecordBatch]:
        """Return the writer's schema and the batch, serialized, and the batch itself over the same bytes."""
        if request.WhichOneof("rows") != "arrow_rows":
            raise StorageProblem(
                "INVALID_ARGUMENT", "The request has no rows in Arrow, which are kept here alone."
            )
        given = request.arrow_rows.writer_schema.serialized_schema
        if given and given != self.schema_bytes:
            self._take_schema(given, entry)
        if not self.schema_bytes or self._schema is None:
            raise StorageProblem("INVALID_ARGUMENT", "Arrow writer schema is missing in the first request.")
        batch = request.arrow_rows.rows.serialized_record_batch
        try:
            return self.schema_bytes, batch, pa.ipc.read_record_batch(pa.py_buffer(batch), self._schema)
        except (pa.ArrowException, OSError) as exc:
            raise StorageProblem("INVALID_ARGUMENT", f"Can't read the record batch: {exc}") from exc

    def _take_schema(self, given: bytes, entry: TableEntry) -> None:
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(given))
        except (pa.ArrowException, OSError) as exc:
            raise StorageProblem("INVALID_ARGUMENT", f"Can't read the writer schema: {exc}") from exc
        check_writer_schema(schema, entry.fields, str(entry.key))
        self.schema_bytes, self._schema = given, schema
