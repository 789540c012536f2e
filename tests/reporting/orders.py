"""Orders of a shop: a registry with their source, versions of them in staging, and what reporting has."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from connectors.columns import arrow_schema
from connectors.lake.entities import EntityTable
from connectors.lake.rows import LakeRowTable
from model.archive import Attempt
from pipeline.registry import Registry
from tests.pipeline.conftest import compile_protos

# Sources with a key, and one that nothing can be merged of.
SOURCES = """
sources:
  orders:
    topic: orders
    message: shop.Order
    key: id
    event_time: updated_at
    partition: created_at
  returns:
    topic: returns
    message: shop.Order
    key: id
    event_time: updated_at
  logs:
    topic: logs
    message: shop.Order
"""
_MESSAGE = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order {
  int64 id = 1;
  google.protobuf.Timestamp updated_at = 2;
  google.protobuf.Timestamp created_at = 3;
}
"""
_NOW = datetime.now(UTC)


class Orders:
    """The orders of one home; nothing is there before :meth:`publish`."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._registry = Registry(str(home / "registry"))

    def publish(self, folder: Path, sources: str = SOURCES) -> None:
        (folder / "shop.proto").write_text(_MESSAGE)
        self._registry.publish(
            {"shop.desc": compile_protos(folder, "shop.proto"), "sources.yaml": sources.encode()}
        )

    def stage(self, *versions: tuple[int, int], source: str = "orders") -> None:
        """Write versions (id, seconds), the later ones newer, to a source's staging table in one commit."""
        (found,) = [each for each in self._registry.read().sources if each.name == source]
        schema = arrow_schema(found.row_schema)
        table = LakeRowTable(str(self._home / "lake"), found.staging)
        table.evolve(found.row_schema)
        rows = [
            {
                **dict.fromkeys(schema.names),
                "id": number,
                "updated_at": _NOW + timedelta(seconds=seconds),
                "created_at": datetime(2026, 3, 1 + number % 28, tzinfo=UTC),
                "_message_id": f"{number}-{seconds}",
                "ingest_time": datetime.now(UTC),
            }
            for number, seconds in versions
        ]
        file = table.writer().write_rows([pa.RecordBatch.from_pylist(rows, schema=schema)])
        attempt = Attempt("s", table.committed_attempt("s") + 1, "l", table.take_lease("l"))
        table.commit([file], attempt)

    def reported(self, source: str = "orders") -> dict[int, str]:
        """Return the message that each order in reporting is of; an order that is there twice fails."""
        files = EntityTable(str(self._home / "lake"), f"reporting.{source}").snapshot().files
        rows: list[dict[str, Any]] = [
            row for file in files for row in pq.ParquetFile(file.path).read().to_pylist()
        ]
        found = {row["id"]: row["_message_id"] for row in rows}
        assert len(found) == len(rows), "every key is there once"
        return found
