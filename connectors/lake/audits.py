"""The audits of merges in a lake: a table of rows, to which each merge appends."""

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import pyarrow as pa

from connectors.columns import arrow_schema
from connectors.lake.rows import LakeRowTable
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
