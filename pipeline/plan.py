"""The plan of a group's sources for its tasks: a text that goes along with every batch."""

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from connectors.columns import arrow_schema
from model.disk import replacing
from model.errors import CheckpointCorruptError
from model.format import Format
from model.message import replay_token
from model.schema import RowSchema
from pipeline.decode import Decoder
from pipeline.descriptors import DescriptorSet
from pipeline.inferred import EventType
from pipeline.mapping import map_message
from pipeline.registry import Source
from warehouse.open import warehouse_from_json
from warehouse.port import Warehouse
from warehouse.rows import RowWriter

# Of the text that GroupPlan.to_text makes.
PLAN_FORMAT: Final = Format(2, reads=(1, 2))


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """One source as it is used now: the schema that its table was given, which may be an older one.

    A source without a schema has the types of its events, each with the writer of its table. ``attached_at`` is
    when the stream created the source's subscription, in Unix seconds by its own clock; None where it was there.
    No message from before that reaches the stream.
    """

    source: Source
    writer: RowWriter
    types: tuple[EventType, ...] = ()
    type_writers: tuple[RowWriter, ...] = ()
    attached_at: float | None = None

    def open_decoder(self, secret: str, max_bytes: int) -> Decoder:
        """Return the decoder of a source with a schema."""
        source = self.source
        assert source.schema is not None
        plans = map_message(DescriptorSet([source.descriptor]).message(source.message))
        keys = [name for plan in plans if plan.column in source.key for name in plan.names]
        return Decoder(
            plans,
            arrow_schema(source.schema),
            version=source.version,
            topic=source.topic,
            token=replay_token(secret, source.topic),
            variant=source.variant,
            keys=keys,
            max_bytes=max_bytes,
            scalars_as_text=source.scalars_as_text,
        )


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The sources of one group, where their dead letters go, and how large a message may be.

    ``refused`` are messages of which Pub/Sub did not take the row, by staging table and id, with the reason.
    """

    sources: tuple[SourcePlan, ...]
    dead_letter_table: str
    dead_letter_writer: RowWriter
    max_bytes: int
    refused: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def to_text(self, warehouse: Warehouse) -> str:
        """Return what :meth:`from_text` takes, for tables of ``warehouse``."""
        return json.dumps(
            {
                "warehouse": warehouse.to_json(),
                "subscriptions": [plan.source.subscription for plan in self.sources],
                "sources": [
                    {
                        "source": source_to_json(plan.source),
                        "writer": plan.writer.as_json(),
                        "types": [found.to_json() for found in plan.types],
                        "type_writers": [writer.as_json() for writer in plan.type_writers],
                        "attached_at": plan.attached_at,
                    }
                    for plan in self.sources
                ],
                "dead_letter_table": self.dead_letter_table,
                "dead_letter_writer": self.dead_letter_writer.as_json(),
                "max_bytes": self.max_bytes,
                "refused": self.refused,
            }
        )

    @classmethod
    def from_text(cls, text: str, warehouse: Warehouse | None = None) -> Self:
        """Return the plan that :meth:`to_text` described, for ``warehouse`` or the one that the text names."""
        found = json.loads(text)
        open_writer = (warehouse or warehouse_from_json(found["warehouse"])).row_writer
        return cls(
            tuple(
                SourcePlan(
                    source_from_json(entry["source"]),
                    open_writer(entry["writer"]),
                    tuple(EventType.from_json(kind) for kind in entry["types"]),
                    tuple(open_writer(writer) for writer in entry["type_writers"]),
                    # An earlier Refeed did not write it.
                    entry.get("attached_at"),
                )
                for entry in found["sources"]
            ),
            found["dead_letter_table"],
            open_writer(found["dead_letter_writer"]),
            found["max_bytes"],
            found.get("refused", {}),
        )


class PlanFile:
    """The plan on the driver's disk: tasks follow it, and a restart finds the schemas that were in use."""

    def __init__(self, path: Path, warehouse: Warehouse) -> None:
        self.path = path
        self._warehouse = warehouse

    def write(self, plan: GroupPlan) -> None:
        """Replace the plan, all at once and durably.

        Raises:
            StorageFullError: there is no room; the plan is as it was.
        """
        with replacing(self.path) as file:
            file.write(plan.to_text(self._warehouse).encode())

    def read(self) -> GroupPlan | None:
        """Return the plan that was written last, None when there was none.

        Raises:
            CheckpointCorruptError: the file can't be read.
        """
        if not self.path.exists():
            return None
        try:
            return GroupPlan.from_text(self.path.read_text(), self._warehouse)
        except (ValueError, KeyError, TypeError, OSError) as exc:
            raise CheckpointCorruptError(
                f"The plan {self.path} can't be read ({exc}). Delete the file and start the stream "
                "again. No message is lost. If the new schema of a source is refused, the source then waits "
                "until its schema fits its table.",
                file=str(self.path),
            ) from exc


def source_to_json(source: Source) -> dict[str, Any]:
    """Return what :func:`source_from_json` takes."""
    found = asdict(source)
    found["descriptor"] = base64.b64encode(source.descriptor).decode()
    found["schema"] = None if source.schema is None else source.schema.to_json()
    return found


def source_from_json(fields: Mapping[str, Any]) -> Source:
    """Return the source that :func:`source_to_json` described."""
    found = dict(fields)
    found["descriptor"] = base64.b64decode(found["descriptor"])
    found["schema"] = None if found["schema"] is None else RowSchema.from_json(found["schema"])
    for name in ("key", "dedup_order"):
        found[name] = tuple(found[name])
    return Source(**found)


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """The facts of a plan's file, read without a warehouse: its subscriptions, each table's columns or version.

    ``tables`` are the staging tables of each source, by its name.
    """

    subscriptions: tuple[str, ...]
    columns: Mapping[str, list[str]]
    versions: Mapping[str, int]
    tables: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    topics: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the facts of the plan that :meth:`GroupPlan.to_text` wrote to ``path``; none without a file.

        Raises:
            CheckpointCorruptError: it can't be read.
        """
        try:
            found = json.loads(path.read_text())
            sources = found["sources"]
            return cls(
                tuple(found["subscriptions"]),
                {
                    one["source"]["staging"]: [field["name"] for field in one["source"]["schema"]["fields"]]
                    for one in sources
                    if one["source"]["schema"] is not None
                },
                {kind["table"]: kind["number"] for one in sources for kind in one["types"]},
                {
                    one["source"]["name"]: (one["source"]["staging"],)
                    if one["source"]["schema"] is not None
                    else tuple(kind["table"] for kind in one["types"])
                    for one in sources
                },
                tuple(sorted({one["source"]["topic"] for one in sources})),
            )
        except FileNotFoundError:
            return cls((), {}, {})
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise CheckpointCorruptError(f"The plan {path} can't be read: {exc}", file=str(path)) from exc
