"""What a pipeline's task does with messages: a file for each table, one small result for the driver."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.ipc

from connectors.lake.files import WrittenFile
from connectors.lake.rows import RowWriter
from connectors.pubsub.pull import PulledBatch
from connectors.pubsub.source import PullSource
from jobs.stream.journal import TABLE_IDS_SCHEMA
from model import failpoint
from pipeline.dead_letters import dead_letter_rows
from pipeline.decode import DecodedBatch, Decoder, Refusal
from pipeline.inferred import InferredDecoder, Variation
from pipeline.plan import GroupPlan, SourcePlan, sources_by_subscription
from pipeline.registry import Source

# The messages of a source without a schema are of many types, a few of each in a Pull; decoding has a fixed cost a
# type, so that they wait for each other.
_DECODED_AT_ONCE: Final = 10_000


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file that waits for its commit, the table it belongs to, and how its rows came to be."""

    table: str
    file: WrittenFile


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """What one task wrote: files, the ids of their rows (in the files' order, table by table), and counts.

    ``counts`` has what was found, by the source's name: ``unknown`` and ``missing`` by path, ``refused`` by
    code. ``unfit`` are ids of messages that have to come again when their tables have become wide enough for
    ``variations``.
    """

    files: tuple[TableFile, ...]
    ids: pa.Table
    counts: dict[str, dict[str, dict[str, int]]]
    unfit: pa.Table
    variations: tuple[Variation, ...] = ()

    def encode(self) -> bytes:
        """Return the bytes that a Spark row carries to the driver."""
        head = {
            "files": [[part.table, part.file.as_json()] for part in self.files],
            "counts": self.counts,
            "variations": [variation.to_json() for variation in self.variations],
        }
        sink = pa.BufferOutputStream()
        for table, text in ((self.ids, json.dumps(head)), (self.unfit, "")):
            with pa.ipc.new_stream(sink, table.schema.with_metadata({"head": text.encode()})) as writer:
                writer.write_table(table)
        return bytes(sink.getvalue())

    @classmethod
    def decode(cls, encoded: bytes) -> Self:
        """Return what :meth:`encode` made bytes of."""
        reader = pa.BufferReader(encoded)
        ids, unfit = (pa.ipc.open_stream(reader).read_all() for _ in range(2))
        head = json.loads(ids.schema.metadata[b"head"])
        files = tuple(TableFile(table, WrittenFile.from_json(file)) for table, file in head["files"])
        variations = tuple(Variation.from_json(found) for found in head["variations"])
        own = [table.replace_schema_metadata(None) for table in (ids, unfit)]
        return cls(files, own[0], head["counts"], own[1], variations)


@dataclass(frozen=True, slots=True)
class StagingTask:
    """Makes rows of what a task pulls, as the plan of the batch says; ``secret`` is the deployment's."""

    secret: str

    def with_plan(self, plan: str) -> "PlannedStaging":
        """Return what a task does with the messages of one batch."""
        return PlannedStaging(_open_plan(plan, self.secret))


@dataclass(frozen=True, slots=True)
class OpenPlan:
    """A plan with its decoders, built once a worker and plan."""

    plan: GroupPlan
    sources: dict[str, SourcePlan]
    decoders: dict[str, Decoder]
    inferred: dict[str, InferredDecoder]


@dataclass(slots=True)
class _Rows:
    """The rows of one table, and the ids of their messages."""

    writer: RowWriter
    batches: list[pa.RecordBatch] = field(default_factory=list)
    ids: list[pa.Table] = field(default_factory=list)


class PlannedStaging:
    """One batch's work: decode as messages arrive, then write a file for each table that has rows."""

    def __init__(self, opened: OpenPlan) -> None:
        self._opened = opened
        self._tables: dict[str, _Rows] = {}
        self._counts: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
        self._unfit: list[pa.Table] = []
        self._waiting: dict[str, list[PulledBatch]] = defaultdict(list)
        self._variations: dict[tuple[str, str, str], Variation] = {}

    def __call__(self, batches: Iterator[PulledBatch], plan: str | None = None) -> bytes | None:  # noqa: ARG002
        """Write the files and return encoded :class:`StagedFiles`.

        A message of a subscription that the plan does not have, because its source was taken away, is let go:
        its lease runs out.
        """
        for batch in batches:
            self._take(batch)
        for subscription in list(self._waiting):
            self._take_waiting(subscription)
        if not self._tables and not self._unfit:
            return None
        failpoint.hit("file.before_write")
        tables = sorted(self._tables.items())
        files = tuple(TableFile(name, rows.writer.write_rows(rows.batches)) for name, rows in tables)
        failpoint.hit("file.written")
        ids = _concat([part for _, rows in tables for part in rows.ids])
        counts = {
            source: {kind: dict(counter) for kind, counter in kinds.items()}
            for source, kinds in self._counts.items()
        }
        return StagedFiles(files, ids, counts, _concat(self._unfit), tuple(self._variations.values())).encode()

    def _take(self, batch: PulledBatch) -> None:
        opened = self._opened
        found = opened.sources.get(batch.target.subscription)
        if found is None:
            return
        if found.source.is_inferred:
            waiting = self._waiting[batch.target.subscription]
            waiting.append(batch)
            if sum(part.rows.num_rows for part in waiting) >= _DECODED_AT_ONCE:
                self._take_waiting(batch.target.subscription)
            return
        decoded = opened.decoders[found.source.subscription].decode(batch.rows)
        if decoded.rows.num_rows:
            self._add(found.source.staging, found.writer, decoded.rows, batch, decoded.indices)
        self._count(found.source, decoded)
        self._refuse(found.source, decoded.refused, batch)

    def _take_waiting(self, subscription: str) -> None:
        waiting = self._waiting.pop(subscription)
        rows = pa.Table.from_batches([part.rows for part in waiting]).combine_chunks().to_batches()
        for part in rows:
            self._take_inferred(self._opened.sources[subscription], PulledBatch(waiting[0].target, part))

    def _take_inferred(self, found: SourcePlan, batch: PulledBatch) -> None:
        decoded = self._opened.inferred[found.source.subscription].decode(batch.rows)
        writers = {kind.name: writer for kind, writer in zip(found.types, found.type_writers, strict=True)}
        for kind, part in decoded.tables:
            self._add(kind.table, writers[kind.name], part.rows, batch, part.indices)
            self._count(found.source, part)
        self._refuse(found.source, decoded.refused, batch)
        if decoded.unfit:
            self._unfit.append(_ids(found.source.staging, batch, decoded.unfit))
            for (name, digest), variation in decoded.variations.items():
                self._variations[found.source.name, name, digest] = variation

    def _refuse(self, source: Source, refused: Sequence[Refusal], batch: PulledBatch) -> None:
        if not refused:
            return
        rows = dead_letter_rows(
            batch.rows, refused, topic=source.topic, source=source.name, version=source.version or None
        )
        plan = self._opened.plan
        places = [refusal.index for refusal in refused]
        self._add(plan.dead_letter_table, plan.dead_letter_writer, rows, batch, places)
        self._counts[source.name]["refused"].update(refusal.code for refusal in refused)

    def _count(self, source: Source, decoded: DecodedBatch) -> None:
        counts = self._counts[source.name]
        counts["rows"]["staged"] += decoded.rows.num_rows
        counts["unknown"].update(decoded.unknown)
        counts["missing"].update(decoded.missing)

    def _add(
        self, table: str, writer: RowWriter, rows: pa.RecordBatch, batch: PulledBatch, places: Sequence[int]
    ) -> None:
        found = self._tables.setdefault(table, _Rows(writer))
        found.batches.append(rows)
        found.ids.append(_ids(table, batch, places))


class StagingSource(PullSource):
    """The stream of files that wait for their commits; the option ``secret`` is redacted by Spark."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name in ``readStream.format``."""
        return "refeed_staging"

    def open_task(self) -> StagingTask:
        """Return what a task does with the messages."""
        return StagingTask(self.options["secret"])


def _concat(parts: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(parts).unify_dictionaries() if parts else TABLE_IDS_SCHEMA.empty_table()


def _ids(table: str, batch: PulledBatch, places: Sequence[int]) -> pa.Table:
    taken = batch.rows.take(pa.array(places, pa.int32()))

    def constant(value: str) -> pa.DictionaryArray:
        return pa.DictionaryArray.from_arrays(
            pa.repeat(pa.scalar(0, pa.int32()), taken.num_rows), pa.array([value])
        )

    found: dict[str, Any] = {name: taken.column(name) for name in ("message_id", "publish_time", "ack_id")}
    found |= {"topic": constant(batch.target.topic), "subscription": constant(batch.target.subscription)}
    found["table"] = constant(table)
    return pa.Table.from_arrays([found[name] for name in TABLE_IDS_SCHEMA.names], schema=TABLE_IDS_SCHEMA)


def _open_plan(text: str, secret: str) -> OpenPlan:
    """Return the plan of this batch; decoders are built again only when it changed."""
    if (text, secret) not in _OPENED:
        plan = GroupPlan.from_text(text)
        sources = sources_by_subscription(plan.sources)
        described = {name: found for name, found in sources.items() if not found.source.is_inferred}
        decoders = {name: found.open_decoder(secret, plan.max_bytes) for name, found in described.items()}
        inferred = {
            name: found.open_inferred(secret, plan.max_bytes)
            for name, found in sources.items()
            if found.source.is_inferred
        }
        _OPENED.clear()
        _OPENED[text, secret] = OpenPlan(plan, sources, decoders, inferred)
    return _OPENED[text, secret]


_OPENED: dict[tuple[str, str], OpenPlan] = {}
