"""A third warehouse, in the memory of this process: the proof that the port is one.

It keeps what the contract asks of an archive and of tables of rows. Queries, merges and staging have no third
implementation: unit tests of their use cases say what a warehouse answers.
"""

import uuid
from dataclasses import dataclass
from typing import Any, Self

from model.settings import Settings
from tests.memory.tables import Archive, ArchiveWriter, Memory, RowTables, RowWriter
from warehouse.open import KINDS

_MEMORIES: dict[str, Memory] = {}


@dataclass(frozen=True)
class MemoryWarehouse:
    """Tables in the memory ``key``, which every object of this process with that key shares."""

    key: str
    archive_table: str

    @classmethod
    def new(cls, settings: Settings) -> Self:
        found = cls(uuid.uuid4().hex, settings.archive_table)
        _MEMORIES[found.key] = Memory()
        return found

    @classmethod
    def from_json(cls, fields: Any) -> Self:
        return cls(fields["key"], fields["archive_table"])

    @property
    def memory(self) -> Memory:
        return _MEMORIES[self.key]

    @classmethod
    def formats(cls) -> dict[str, Any]:
        return {}

    @property
    def name(self) -> str:
        return "memory"

    def to_json(self) -> dict[str, Any]:
        return {"warehouse": "memory", "key": self.key, "archive_table": self.archive_table}

    def open_archive(self) -> Archive:
        return Archive(self.memory, self.archive_table)

    def archive_writer(self, fields: Any) -> ArchiveWriter:
        return ArchiveWriter(self.memory)

    def open_row_tables(self, *, stream: str, lease: str) -> RowTables:
        return RowTables(self.memory, stream=stream, lease=lease)

    def row_writer(self, fields: Any) -> RowWriter:
        return RowWriter(self.memory)


KINDS["memory"] = lambda: MemoryWarehouse
