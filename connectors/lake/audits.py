"""The audits of merges in a lake: a table of rows, to which each merge appends."""

import itertools
import json
import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from connectors.columns import arrow_schema
from connectors.lake.rows import LakeRowTable
from connectors.lake.tables import our_errors
from model.archive import Attempt
from model.audit import AUDIT_SCHEMA, Audit
from model.errors import LeaseLostError

_TRIES: Final = 5
_SMALL_FILES: Final = 100


class LakeAudits:
    """The table ``table`` (``dataset.table``) of the lake at ``root``; one object per thread."""

    def __init__(self, root: str, table: str) -> None:
        self._table = LakeRowTable(root, table)

    def append(self, source: str, until: datetime, audits: Sequence[Audit]) -> None:
        """Add a row a check, durably, all in one commit; the table is created when it is not there.

        Raises:
            WarehouseError: the lake failed; none was added.
        """
        self._table.evolve(AUDIT_SCHEMA)
        merge = uuid.uuid4().hex
        rows = [audit.to_row(source, merge, until) for audit in audits]
        batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(AUDIT_SCHEMA))
        stream = f"audits:{source}"
        for left in reversed(range(_TRIES)):
            try:
                epoch = self._table.take_lease(stream)
                number = self._table.committed_attempt(stream) + 1
                file = self._table.writer().write_rows([batch])
                self._table.commit([file], Attempt(stream, number, stream, epoch))
                break
            except LeaseLostError:
                # Another merge of the same source wrote at this moment.
                if not left:
                    raise
        self._table.compact(max_small_files=_SMALL_FILES)

    def read(self, source: str | None, limit: int) -> list[dict[str, Any]]:
        """Return the newest audits, of one source or all, the newest first."""
        if not self._table.exists():
            return []
        found: list[pa.Table] = []
        newest_day = itertools.groupby(reversed(self._table.data_files()), lambda file: file.partition)
        for _, files in newest_day:
            for file in files:
                wanted = None if source is None else pc.field("source") == source
                with our_errors(f"reading {file.path}"):
                    found.append(pq.read_table(file.path, filters=wanted).select(AUDIT_SCHEMA.names()))
            if sum(part.num_rows for part in found) >= limit:
                break
        if not found:
            return []
        rows = pa.concat_tables(found).sort_by([("ingest_time", "descending"), ("name", "ascending")])
        return [{**row, "details": json.loads(row["details"])} for row in rows.slice(0, limit).to_pylist()]
