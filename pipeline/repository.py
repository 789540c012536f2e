"""The schema repository: every variation of every type of event, and the shape that holds all of them."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from structlog import get_logger

from connectors.lake.columns import arrow_schema
from model.schema import Field, RowSchema
from pipeline.inferred import EventType, Variation
from pipeline.shapes import Shape
from pipeline.warehouse import RowTables

_log = get_logger(__name__)

# Beside the dead letters.
REPOSITORY_TABLE: Final = "schemas"

REPOSITORY_SCHEMA: Final = RowSchema(
    (
        Field("source", "STRING", description="The data source."),
        Field("event_type", "STRING", description="The type of the event; empty where a source has one type."),
        Field("hash", "STRING", description="Hash over the sorted attributes of the variation."),
        Field("version", "INT64", description="One more each time the table of the type became wider."),
        Field("prototype", "JSON", description="The variation's sorted attributes."),
        Field("schema", "JSON", description="The table's schema from then on; it holds all variations so far."),
        Field("shape", "JSON", description="The same, by the names in the messages."),
        Field("table_name", "STRING", description="The table of the type."),
        Field("ingest_time", "TIMESTAMP", description="When the variation was first met."),
    ),
    "Schemas that were inferred from messages.",
)


def repository_table(dead_letters: str) -> str:
    """Return the name of the repository's table, which lies beside the table of dead letters.

    Example:
        >>> repository_table("backup.dead_letters")
        'backup.schemas'
    """
    return f"{dead_letters.rpartition('.')[0]}.{REPOSITORY_TABLE}"


class SchemaRepository:
    """What has been inferred, noted before tables are changed: a crash in between is mended at the next start."""

    def __init__(self, tables: RowTables, name: str) -> None:
        self._tables = tables
        self._table = tables.open(name)
        self._table.evolve(REPOSITORY_SCHEMA)
        tables.take(name)
        self._noted: set[tuple[str, str, str]] = set()

    def read(self, source: str) -> list[EventType]:
        """Return the newest version of each type of event of ``source``, in the order in which they were met."""
        found: dict[str, EventType] = {}
        for row in sorted(self._table.read_rows(), key=lambda row: (row["ingest_time"], row["version"])):
            self._noted.add((row["source"], row["event_type"], row["hash"]))
            known = found.get(row["event_type"])
            if row["source"] == source and (known is None or row["version"] >= known.number):
                shape = Shape.from_json(json.loads(row["shape"]))
                found[row["event_type"]] = EventType(row["event_type"], row["table_name"], row["version"], shape)
        return list(found.values())

    def append(self, types: Sequence[EventType], variations: Sequence[Variation]) -> None:
        """Note ``variations`` of one source with the ``types`` as they are with them; each is noted once.

        Raises:
            LeaseLostError: another stream of the group took over.
            WarehouseError: nothing was noted.
        """
        by_name = {found.name: found for found in types}
        # A type that is one too many for the source has no table.
        variations = [variation for variation in variations if variation.event_type in by_name]
        met = {variation.event_type for variation in variations}
        schemas = {name: json.dumps(by_name[name].schema.to_json()) for name in met}
        shapes = {name: json.dumps(by_name[name].shape.to_json()) for name in met}
        now = datetime.now(UTC)
        rows: list[dict[str, Any]] = [
            {
                "source": variation.source,
                "event_type": variation.event_type,
                "hash": variation.hash,
                "version": by_name[variation.event_type].number,
                "prototype": json.dumps(variation.prototype),
                "schema": schemas[variation.event_type],
                "shape": shapes[variation.event_type],
                "table_name": by_name[variation.event_type].table,
                "ingest_time": now,
            }
            for variation in variations
            if (variation.source, variation.event_type, variation.hash) not in self._noted
        ]
        if not rows:
            return
        batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(REPOSITORY_SCHEMA))
        self._tables.append(self._table.name, batch)
        for row in rows:
            self._noted.add((row["source"], row["event_type"], row["hash"]))
            _log.info("variation_met", source=row["source"], event_type=row["event_type"], hash=row["hash"])
