"""What a pipeline's task does with messages: a file for each table, one small result for the driver."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa
import pyarrow.ipc

from connectors.lake.files import WrittenFile
from connectors.lake.rows import RowWriter
from connectors.pubsub.pull import PulledBatch
from connectors.pubsub.source import PullSource
from jobs.stream.journal import TABLE_IDS_SCHEMA
from model import failpoint
from pipeline.dead_letters import dead_letter_rows
from pipeline.decode import Decoder
from pipeline.plan import GroupPlan, SourcePlan, sources_by_subscription


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file that waits for its commit, the table it belongs to, and how its rows came to be."""

    table: str
    file: WrittenFile


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """What one task wrote: files, the ids of their rows (in the files' order, table by table), and counts.

    ``counts`` has what was found, by the source's name: ``unknown`` and ``missing`` by path, ``refused`` by
    code.
    """

    files: tuple[TableFile, ...]
    ids: pa.Table
    counts: dict[str, dict[str, dict[str, int]]]

    def encode(self) -> bytes:
        """Return the bytes that a Spark row carries to the driver."""
        head = {"files": [[part.table, part.file.as_json()] for part in self.files], "counts": self.counts}
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.ids.schema.with_metadata({"head": json.dumps(head).encode()})) as writer:
            writer.write_table(self.ids)
        return bytes(sink.getvalue())

    @classmethod
    def decode(cls, encoded: bytes) -> Self:
        """Return what :meth:`encode` made bytes of."""
        ids = pa.ipc.open_stream(pa.BufferReader(encoded)).read_all()
        head = json.loads(ids.schema.metadata[b"head"])
        files = tuple(TableFile(table, WrittenFile.from_json(file)) for table, file in head["files"])
        return cls(files, ids.replace_schema_metadata(None), head["counts"])


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

    def __call__(self, batches: Iterator[PulledBatch], plan: str | None = None) -> bytes | None:  # noqa: ARG002
        """Write the files and return encoded :class:`StagedFiles`.

        A message of a subscription that the plan does not have, because its source was taken away, is let go:
        its lease runs out.
        """
        for batch in batches:
            self._take(batch)
        if not self._tables:
            return None
        failpoint.hit("file.before_write")
        tables = sorted(self._tables.items())
        files = tuple(TableFile(name, rows.writer.write_rows(rows.batches)) for name, rows in tables)
        failpoint.hit("file.written")
        ids = pa.concat_tables([part for _, rows in tables for part in rows.ids]).unify_dictionaries()
        counts = {
            source: {kind: dict(counter) for kind, counter in kinds.items()}
            for source, kinds in self._counts.items()
        }
        return StagedFiles(files, ids, counts).encode()

    def _take(self, batch: PulledBatch) -> None:
        opened = self._opened
        found = opened.sources.get(batch.target.subscription)
        if found is None:
            return
        source = found.source
        decoded = opened.decoders[source.subscription].decode(batch.rows)
        if decoded.rows.num_rows:
            self._add(source.staging, found.writer, decoded.rows, batch, decoded.indices)
        if decoded.refused:
            refused = dead_letter_rows(
                batch.rows, decoded.refused, topic=source.topic, source=source.name, version=source.version
            )
            places = [refusal.index for refusal in decoded.refused]
            self._add(opened.plan.dead_letter_table, opened.plan.dead_letter_writer, refused, batch, places)
        counts = self._counts[source.name]
        counts["rows"]["staged"] += decoded.rows.num_rows
        counts["unknown"].update(decoded.unknown)
        counts["missing"].update(decoded.missing)
        counts["refused"].update(refusal.code for refusal in decoded.refused)

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
        decoders = {name: found.open_decoder(secret, plan.max_bytes) for name, found in sources.items()}
        _OPENED.clear()
        _OPENED[text, secret] = OpenPlan(plan, sources, decoders)
    return _OPENED[text, secret]


_OPENED: dict[tuple[str, str], OpenPlan] = {}
