"""The schema repository: every variation of every type of event, and the shape that holds all of them."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from structlog import get_logger

from connectors.columns import arrow_schema
from model.errors import WarehouseError
from model.format import Format
from model.schema import Field, RowSchema
from pipeline.inferred import MAX_VARIATIONS, EventType, Variation, is_table_of
from pipeline.registry import Source
from pipeline.shapes import Shape
from warehouse.rows import RowTable, RowTables

_log = get_logger(__name__)

# Of the rows of the table, and of the shapes in them.
REPOSITORY_FORMAT: Final = Format(1)
# Beside the dead letters.
REPOSITORY_TABLE: Final = "schemas"
_READ: Final = ["source", "event_type", "hash", "version", "shape", "table_name", "ingest_time"]
_VERSIONS: Final = ["source", "event_type", "version", "schema", "table_name", "ingest_time"]

REPOSITORY_SCHEMA: Final = RowSchema(
    (
        Field("source", "STRING", description="The data source."),
        Field("event_type", "STRING", description="The event type. Empty if the source has only one type."),
        Field("hash", "STRING", description="The hash of the variation's sorted attributes."),
        Field(
            "version",
            "INT64",
            description="The table's version. Each new column or wider type increases the version by one.",
        ),
        Field("prototype", "JSON", description="The variation's first message."),
        Field("schema", "JSON", description="The table's new schema. Null if the schema did not change."),
        Field("shape", "JSON", description="The same schema, with the names of the fields in the messages."),
        Field("table_name", "STRING", description="The event type's table."),
        Field("ingest_time", "TIMESTAMP", description="When the variation's first message was read."),
        Field("attributes", "JSON", description="The variation's sorted attributes."),
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


def tables_of(source: Source, repository: RowTable) -> list[str]:
    """Return the tables of every type of event of ``source`` that ``repository`` has, sorted."""
    rows = repository.read_rows(["source", "table_name"]) if repository.exists() else []
    found = {row["table_name"] for row in rows if row["source"] == source.name}
    # Its name may have been another source's.
    return sorted(table for table in found if is_table_of(source.staging, table))


@dataclass(frozen=True, slots=True)
class TypeVersion:
    """One version of the table of a type of event: its columns, and when the message came that they are for."""

    event_type: str
    number: int
    table: str
    noted_at: datetime
    schema: RowSchema


def read_versions(repository: RowTable) -> dict[str, list[TypeVersion]]:
    """Return by source every version that ``repository`` has, by type and number.

    Those of another source that had the name before are among them: they are of other tables.
    """
    rows = repository.read_rows(_VERSIONS) if repository.exists() else []
    found: dict[tuple[str, str, str, int], TypeVersion] = {}
    # A version is noted with each variation that made it; the first one counts.
    for row in sorted(rows, key=lambda row: row["ingest_time"]):
        key = (row["source"], row["event_type"], row["table_name"], row["version"])
        if row["schema"] is not None and key not in found:
            schema = RowSchema.from_json(json.loads(row["schema"]))
            found[key] = TypeVersion(
                row["event_type"], row["version"], row["table_name"], row["ingest_time"], schema
            )
    versions: dict[str, list[TypeVersion]] = {}
    for key in sorted(found):
        versions.setdefault(key[0], []).append(found[key])
    return versions


class SchemaRepository:
    """The inferred types, noted before tables are changed: a crash in between is mended at the next start."""

    def __init__(self, tables: RowTables, name: str) -> None:
        self._tables = tables
        self._table = tables.open(name)
        self._table.evolve(REPOSITORY_SCHEMA)
        tables.take(name)
        self._noted: set[tuple[str, str, str, str]] = set()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._waiting: dict[str, list[Variation]] = {}

    def read(self, source: str, staging: str | None = None) -> list[EventType]:
        """Return the newest version of each type of event of ``source``, in the order in which they were met.

        With ``staging``, the source's, only types with a table of its own: its name may have been another's.
        """
        found: dict[str, EventType] = {}
        rows = self._table.read_rows(_READ)
        for row in sorted(rows, key=lambda row: (row["ingest_time"], row["version"])):
            self._remember(row)
            known = found.get(row["event_type"])
            is_newest = known is None or row["version"] >= known.number
            is_own = row["source"] == source and (staging is None or is_table_of(staging, row["table_name"]))
            if is_own and row["shape"] is not None and is_newest:
                shape = Shape.from_json(json.loads(row["shape"]))
                found[row["event_type"]] = EventType(row["event_type"], row["table_name"], row["version"], shape)
        return list(found.values())

    def adopt(self, old: str, source: Source) -> None:
        """Note durably as types of ``source`` those that it had under the name ``old``.

        A type is taken over whole, in one commit with the others, and only where it is newer than the source's own
        and its table is one of the source's: so a second call does nothing, nor does one after another source has
        got the old name.

        Raises:
            LeaseLostError: another stream of the group took over.
            WarehouseError: nothing was noted.
        """
        own = {found.name: found.number for found in self.read(source.name, source.staging)}
        before = self.read(old, source.staging)
        newer = {found.name for found in before if found.number > own.get(found.name, 0)}
        rows = [row for row in self._table.read_rows() if row["source"] == old and row["event_type"] in newer]
        if rows:
            renamed = [
                row | {"source": source.name} for row in rows if is_table_of(source.staging, row["table_name"])
            ]
            batch = pa.RecordBatch.from_pylist(renamed, schema=arrow_schema(REPOSITORY_SCHEMA))
            self._tables.append(self._table.name, batch)
            _log.info("types_adopted", source=source.name, before=old, types=sorted(newer))

    def note(self, types: Sequence[EventType], variations: Sequence[Variation]) -> None:
        """Note ``variations`` of one source that its tables are wide enough for, MAX_VARIATIONS of a type at most.

        What can't be noted now is noted with the next: no message waits for that.
        """
        source = variations[0].source
        waiting = [*self._waiting.pop(source, ()), *variations]
        try:
            self._append(types, waiting, is_wider=False)
        except WarehouseError as exc:
            _log.warning("variations_not_noted", source=source, error=exc.message)
            self._waiting[source] = waiting[:MAX_VARIATIONS]

    def append(self, types: Sequence[EventType], variations: Sequence[Variation]) -> None:
        """Note ``variations`` of one source with the ``types`` as they are with them; each is noted once.

        Raises:
            LeaseLostError: another stream of the group took over.
            WarehouseError: nothing was noted.
        """
        self._append(types, variations, is_wider=True)

    def _remember(self, row: Mapping[str, Any]) -> None:
        key = (row["source"], row["event_type"], row["table_name"], row["hash"])
        if key not in self._noted:
            self._noted.add(key)
            self._counts[key[:2]] += 1

    def _choose(
        self, types: Mapping[str, EventType], variations: Sequence[Variation], *, is_wider: bool
    ) -> list[Variation]:
        """Return those that are new, within MAX_VARIATIONS; a type that became wider has one at least."""
        chosen: dict[tuple[str, str, str, str], Variation] = {}
        counts = Counter(self._counts)
        met: set[str] = set()
        for variation in variations:
            if variation.event_type not in types:
                # One that is too many for the source has no table.
                continue
            key = (variation.source, variation.event_type, types[variation.event_type].table, variation.hash)
            has_room = counts[key[:2]] < MAX_VARIATIONS or (is_wider and variation.event_type not in met)
            if key not in self._noted and key not in chosen and has_room:
                chosen[key] = variation
                counts[key[:2]] += 1
                met.add(variation.event_type)
        return list(chosen.values())

    def _append(self, types: Sequence[EventType], variations: Sequence[Variation], *, is_wider: bool) -> None:
        by_name = {found.name: found for found in types}
        variations = self._choose(by_name, variations, is_wider=is_wider)
        met = {variation.event_type for variation in variations}
        wider = met if is_wider else set()
        schemas = {name: json.dumps(by_name[name].schema.to_json()) for name in wider}
        shapes = {name: json.dumps(by_name[name].shape.to_json()) for name in wider}
        now = datetime.now(UTC)
        rows: list[dict[str, Any]] = [
            {
                "source": variation.source,
                "event_type": variation.event_type,
                "hash": variation.hash,
                "version": by_name[variation.event_type].number,
                "prototype": variation.prototype,
                "schema": schemas.get(variation.event_type),
                "shape": shapes.get(variation.event_type),
                "attributes": json.dumps(variation.attributes),
                "table_name": by_name[variation.event_type].table,
                "ingest_time": now,
            }
            for variation in variations
        ]
        if not rows:
            return
        batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(REPOSITORY_SCHEMA))
        self._tables.append(self._table.name, batch)
        for row in rows:
            self._remember(row)
            _log.info("variation_met", source=row["source"], event_type=row["event_type"], hash=row["hash"])
