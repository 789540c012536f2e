"""The sources of a running stream as another release reads their messages; nothing of theirs is written."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from model.schema import RowSchema
from pipeline.decode import Refusal
from pipeline.inferred import EventType, InferredDecoder, learn
from pipeline.plan import GroupPlan, SourcePlan
from pipeline.registry import RegistrySnapshot, Source
from pipeline.repository import repository_table
from warehouse.rows import RowTables

# Each look at messages that did not fit makes their types wider, so that the second one takes them.
_LOOKS: Final = 3


@dataclass(slots=True)
class Converted:
    """A batch as a release converts it: rows by table, and the messages that it refuses."""

    tables: dict[str, pa.Table] = field(default_factory=dict)
    refused: list[Refusal] = field(default_factory=list)


class ShadowSource:
    """One source: its staging tables, and the new release's way to convert its messages.

    ``running`` is how the running release has it; ``source`` how the new one does. Types that messages teach stay
    in memory. ``taken`` are tables that no new type may get.
    """

    def __init__(
        self, running: SourcePlan, source: Source, *, secret: str, max_bytes: int, taken: set[str]
    ) -> None:
        self.running = running.source
        self.attached_at = running.attached_at
        self.source = source
        self._secret = secret
        self._max_bytes = max_bytes
        self._taken = taken
        self._types: tuple[EventType, ...] = running.types
        plan = replace(running, source=source)
        self._decoder = None if source.is_inferred else plan.open_decoder(secret, max_bytes)

    @property
    def names(self) -> frozenset[str]:
        """The names under which dead letters have the source."""
        return frozenset({self.source.name, self.running.name})

    @property
    def version(self) -> str | None:
        """The schema version of the rows that can be compared; None where rows of every version can."""
        return None if self.source.is_inferred else self.running.version

    def tables(self) -> list[str]:
        """Return the staging tables that its rows may be in."""
        return [kind.table for kind in self._types] if self.source.is_inferred else [self.source.staging]

    def schema(self, table: str) -> RowSchema:
        """Return the columns that the new release gives ``table``."""
        if not self.source.is_inferred:
            return self.source.row_schema
        return next(kind.schema for kind in self._types if kind.table == table)

    def convert(self, messages: pa.RecordBatch) -> Converted:
        """Return ``messages``, which have the columns of a Pull, as the new release converts them."""
        if self._decoder is None:
            return self._convert_inferred(messages)
        decoded = self._decoder.decode(messages)
        rows = pa.Table.from_batches([decoded.rows])
        return Converted({self.source.staging: rows} if rows.num_rows else {}, decoded.refused)

    def _convert_inferred(self, messages: pa.RecordBatch) -> Converted:
        found: dict[str, list[pa.Table]] = {}
        refused: list[Refusal] = []
        places = list(range(messages.num_rows))
        for _ in range(_LOOKS):
            if not places:
                break
            decoder = InferredDecoder(self.source, self._types, secret=self._secret, max_bytes=self._max_bytes)
            batch = decoder.decode(messages.take(pa.array(places, pa.int32())))
            for kind, decoded in batch.tables:
                found.setdefault(kind.table, []).append(pa.Table.from_batches([decoded.rows]))
            refused += [replace(refusal, index=places[refusal.index]) for refusal in batch.refused]
            places = [places[at] for at in batch.unfit]
            if places:
                variations = list(batch.variations.values())
                self._types = tuple(learn(self.source, self._types, variations, taken=self._taken))
        tables = {name: pa.concat_tables(parts, promote_options="default") for name, parts in found.items()}
        return Converted(tables, refused)


def open_sources(
    plan: GroupPlan,
    registry: RegistrySnapshot,
    tables: RowTables,
    *,
    secret: str,
    mapping: Mapping[str, str],
) -> Iterator[ShadowSource]:
    """Yield the sources of ``plan``, which is the running release's, as ``registry`` has them for the new one.

    ``mapping`` leads from their old names to those in the registry. A source that the registry lacks, or whose
    table would refuse its schema, goes on as the plan has it; it would in an update, too.
    """
    wanted = {source.name: source for source in registry.sources}
    letters = plan.dead_letter_table
    every = {letters, repository_table(letters)}
    by_source = {
        each.source.name: {each.source.staging, *(kind.table for kind in each.types)} for each in plan.sources
    }
    for each in plan.sources:
        running = each.source
        name = mapping.get(running.name, running.name)
        found = wanted.get(name, replace(running, name=name))
        found = replace(found, staging=running.staging)
        if found.is_inferred != running.is_inferred or not _is_taken(found, tables):
            found = replace(running, name=name)
        beside = {table for other, own in by_source.items() if other != running.name for table in own}
        yield ShadowSource(each, found, secret=secret, max_bytes=plan.max_bytes, taken=every | beside)


def _is_taken(source: Source, tables: RowTables) -> bool:
    """Return whether the source's table takes its schema; nothing is changed."""
    return source.is_inferred or not tables.open(source.staging).plan(source.row_schema).refused
