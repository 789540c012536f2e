"""The task of a pipeline: from pulled messages to a part for each table, and one small result for the driver."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import Any, Final, Self

import pyarrow as pa
import structlog

from connectors.pubsub.pull import PulledBatch
from connectors.pubsub.replays import count_forged
from connectors.pubsub.source import PullSource
from connectors.worker import WorkerMarks, process_marks
from model import failpoint
from model.errors import TableNotReadyError, WarehouseError
from model.message import replay_token
from model.schema import RowSchema
from pipeline.dead_letters import dead_letter_rows
from pipeline.decode import DecodedBatch, Decoder, Refusal
from pipeline.inferred import InferredDecoder, Variation
from pipeline.originals import read_originals, replay_ids
from pipeline.paths import MAX_COUNTED, OTHERS
from pipeline.plan import GroupPlan, SourcePlan
from pipeline.published import PUBLISH_REFUSED, find_unpublishable, render_messages
from pipeline.registry import Source
from streams.ids import (
    PULLED_IDS_SCHEMA,
    TAKEN_COLUMNS,
    concat_ids,
    constant,
    make_ids,
    pack_tables,
    unpack_tables,
)
from streams.targets import TargetPart, topic_target
from streams.topics import TOPIC_SCHEMA, TopicPart
from warehouse.rows import RowPart, RowWriter

_log = structlog.get_logger(__name__)

# A Pull has few messages, and decoding has a fixed cost for each call and each type of event. So messages wait
# until there are this many in all, and this many for each type on average, or this many bytes.
_DECODED_AT_ONCE: Final = 5_000
_DECODED_BYTES: Final = 64 << 20
_DECODED_OF_TYPE: Final = 200
_WRITES_AT_ONCE: Final = 8
# What messages are counted as that carry the replay token though no backfill published them, by the tag they lack.
FORGED_REPLAY: Final = "forged_replay"


@dataclass(frozen=True, slots=True)
class StagedParts:
    """The parts that one task wrote, and counts.

    ``counts`` has what was found, by the source's name: ``unknown`` and ``missing`` by path, ``forged_replay`` by
    the tag that is missing. Rows are not among them: only the driver knows which are new. For it ``names`` has the
    source of each subscription with rows, and ``codes`` the error code of each dead letter, in the order of its
    part, by the table of the dead letters. ``unfit`` are ids of messages that have to come again when their tables
    have become wide enough for ``variations``, which has those of messages that fit too.
    """

    parts: tuple[TargetPart, ...]
    counts: dict[str, dict[str, dict[str, int]]]
    unfit: pa.Table
    variations: tuple[Variation, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    codes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the bytes that a Spark row carries to the driver."""
        of_tables = [one for one in self.parts if not isinstance(one.part, TopicPart)]
        of_topics = [one for one in self.parts if isinstance(one.part, TopicPart)]
        head = {
            "parts": [[one.table, one.part.as_json()] for one in of_tables],
            "topics": [[one.table, one.part.topic, one.part.by_key, one.part.rows] for one in of_topics],
            "counts": self.counts,
            "variations": [variation.to_json() for variation in self.variations],
            "names": dict(self.names),
            "codes": {
                name: [[code, len(list(run))] for code, run in groupby(own)] for name, own in self.codes.items()
            },
        }
        ids = concat_ids([one.ids for one in (*of_tables, *of_topics)], PULLED_IDS_SCHEMA)
        messages = pa.concat_tables([TOPIC_SCHEMA.empty_table(), *(one.part.messages for one in of_topics)])
        return pack_tables(head, (ids, None), (self.unfit, None), (messages, "zstd"))

    @classmethod
    def decode(cls, encoded: bytes, parse_part: Callable[[Mapping[str, Any]], RowPart]) -> Self:
        """Return what :meth:`encode` made bytes of; ``parse_part`` is the tables'."""
        head, (ids, unfit, messages) = unpack_tables(encoded, 3)
        variations = tuple(Variation.from_json(found) for found in head["variations"])
        parts: list[TargetPart] = []
        at = 0
        for table, fields in head["parts"]:
            part = parse_part(fields)
            parts.append(TargetPart(table, part, ids.slice(at, part.rows)))
            at += part.rows
        taken = 0
        for table, topic, by_key, rows in head["topics"]:
            own = TopicPart(topic, by_key, messages.slice(taken, rows))
            parts.append(TargetPart(table, own, ids.slice(at + taken, rows)))
            taken += rows
        codes = {
            name: [code for code, count in runs for _ in range(count)] for name, runs in head["codes"].items()
        }
        return cls(tuple(parts), head["counts"], unfit, variations, head["names"], codes)


@dataclass(frozen=True, slots=True)
class StagingTask:
    """Makes rows of pulled messages by the plan of the batch; ``secret`` is the deployment's."""

    secret: str

    def with_plan(self, plan: str) -> "PlannedStaging":
        """Return the task of one batch."""
        return PlannedStaging(_open_plan(plan, self.secret), process_marks())


@dataclass(frozen=True, slots=True)
class OpenPlan:
    """A plan with its decoders, built once a worker and plan."""

    plan: GroupPlan
    secret: str
    sources: dict[str, SourcePlan]
    decoders: dict[str, Decoder]
    inferred: dict[str, InferredDecoder]

    def read_one_by_one(self, subscriptions: Iterable[str]) -> None:
        """Have the messages of these subscriptions read one by one from now on."""
        for name in subscriptions:
            decoder = self.decoders.get(name) or self.inferred.get(name)
            if decoder is not None and decoder.read_one_by_one():
                _log.error("fast_reading_off", source=self.sources[name].source.name)


@dataclass(slots=True)
class _Rows:
    """The rows of one table, the ids of their messages, and the messages themselves, by their batches.

    ``codes`` has the error code of each row where they are dead letters.
    """

    writer: RowWriter
    batches: list[pa.RecordBatch] = field(default_factory=list)
    ids: list[pa.Table] = field(default_factory=list)
    messages: list[tuple[Source, PulledBatch, Sequence[int]]] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)

    def message(self, place: int) -> tuple[Source, PulledBatch, int]:
        """Return the message that the row at ``place`` was made of."""
        for source, batch, places in self.messages:
            if place < len(places):
                return source, batch, places[place]
            place -= len(places)
        raise IndexError(place)


class PlannedStaging:
    """One batch's work: decode as messages arrive, then write a part for each table that has rows.

    The worker ``marks`` each subscription while it decodes its messages. If it dies there, the other workers read
    the messages of this subscription one by one, until the stream starts again.
    """

    def __init__(self, opened: OpenPlan, marks: WorkerMarks | None = None) -> None:
        self._opened = opened
        self._marks = marks
        if marks is not None:
            opened.read_one_by_one(marks.lethal())
        self._tables: dict[str, _Rows] = {}
        self._counts: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
        self._unfit: list[pa.Table] = []
        self._waiting: dict[str, list[PulledBatch]] = defaultdict(list)
        self._waiting_bytes: Counter[str] = Counter()
        self._variations: dict[tuple[str, str, str], Variation] = {}

    @property
    def tables(self) -> int:
        """How many tables the plan has, but the one of dead letters."""
        return sum(len(found.types) or 1 for found in self._opened.plan.sources)

    def __call__(self, batches: Iterator[PulledBatch]) -> bytes | None:
        """Write the parts and return encoded :class:`StagedParts`.

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
        parts = self._write()
        failpoint.hit("file.written")
        counts = {
            source: {kind: dict(counter) for kind, counter in kinds.items()}
            for source, kinds in self._counts.items()
        }
        return StagedParts(
            tuple(parts),
            counts,
            concat_ids(self._unfit, PULLED_IDS_SCHEMA),
            tuple(self._variations.values()),
            {own.subscription: own.name for rows in self._tables.values() for own, _, _ in rows.messages},
            {name: rows.codes for name, rows in self._tables.items() if rows.codes},
        ).encode()

    def _write(self) -> list[TargetPart]:
        """Write a part a table; rows that a warehouse refuses for good become dead letters, which come last."""
        letters = self._opened.plan.dead_letter_table
        names = sorted(self._tables.keys() - {letters})
        parts: list[TargetPart] = []
        # A table's write waits for a disk or for answers most of its time.
        with ThreadPoolExecutor(_WRITES_AT_ONCE) as pool:
            written = pool.map(self._write_rows, names)
            for name, part in zip(names, list(written), strict=True):
                if part is None:
                    continue
                own = pa.concat_tables(self._tables[name].ids)
                if part.refused:
                    self._refuse_rows(self._tables[name], part.refused)
                    refused = {place for place, _ in part.refused}
                    own = own.filter(pa.array([place not in refused for place in range(own.num_rows)]))
                if part.rows:
                    parts.append(TargetPart(name, part, own))
                    parts += self._publish(name, {place for place, _ in part.refused})
        if letters in self._tables:
            letter = self._write_rows(letters)
            if letter is not None and letter.refused:
                # There is no third place for a message: nothing is acknowledged, and a person has to look.
                raise WarehouseError(f"Dead letters are refused too: {letter.refused[0][1]}")
            if letter is not None:
                parts.append(TargetPart(letters, letter, pa.concat_tables(self._tables[letters].ids)))
        return parts

    def _publish(self, name: str, left_out: Collection[int]) -> list[TargetPart]:
        """Return the rows of the table ``name`` as messages, where they are published, but those ``left_out``.

        The message of a row that Pub/Sub does not take is a dead letter beside its row.
        """
        rows, opened = self._tables[name], self._opened
        source = rows.messages[0][0]
        if not source.publish:
            return []
        found = opened.sources[source.subscription]
        schemas = {kind.table: kind.schema for kind in found.types} if source.is_inferred else {}
        fields = schemas.get(name, source.schema or RowSchema(())).fields
        token = replay_token(opened.secret, source.topic)
        messages = pa.Table.from_batches(
            [
                render_messages(source, fields, own, pulled.rows.take(pa.array(places, pa.int32())), token=token)
                for own, (_, pulled, places) in zip(rows.batches, rows.messages, strict=True)
            ]
        )
        refused = find_unpublishable(messages, opened.plan.refused.get(name, {}))
        for place, reason in refused.items():
            if place not in left_out:
                _, batch, index = rows.message(place)
                self._refuse(source, [Refusal(index, PUBLISH_REFUSED, reason)], batch)
        target = topic_target(name)
        ids = pa.concat_tables(rows.ids)
        ids = ids.set_column(ids.schema.get_field_index("table"), "table", constant(target, ids.num_rows))
        kept = pa.array([place not in left_out and place not in refused for place in range(ids.num_rows)])
        part = TopicPart(source.publish, source.is_published_by_key, messages.filter(kept))
        return [TargetPart(target, part, ids.filter(kept))] if part.rows else []

    def _write_rows(self, name: str) -> RowPart | None:
        """Write a table's part; None when it is too new: its messages come again when their leases run out."""
        rows = self._tables[name]
        try:
            return rows.writer.write_rows(rows.batches)
        except TableNotReadyError as exc:
            _log.warning("table_not_ready", table=name, error=exc.message)
        for source, _, places in rows.messages:
            self._counts[source.name]["postponed"][name] += len(places)
        return None

    def _refuse_rows(self, rows: _Rows, refused: Sequence[tuple[int, str]]) -> None:
        """Make dead letters of the messages of rows that the warehouse refuses."""
        for place, reason in refused:
            source, batch, index = rows.message(place)
            self._refuse(source, [Refusal(index, "row_refused", reason)], batch)

    def _take(self, batch: PulledBatch) -> None:
        opened = self._opened
        found = opened.sources.get(batch.target.subscription)
        if found is None:
            return
        if forged := count_forged(batch.rows, replay_token(opened.secret, found.source.topic)):
            self._counts[found.source.name][FORGED_REPLAY].update(forged)
        waiting = self._waiting[batch.target.subscription]
        waiting.append(batch)
        enough = max(_DECODED_AT_ONCE, _DECODED_OF_TYPE * len(found.types))
        self._waiting_bytes[batch.target.subscription] += batch.rows.nbytes
        is_large = self._waiting_bytes[batch.target.subscription] >= _DECODED_BYTES
        if is_large or sum(part.rows.num_rows for part in waiting) >= enough:
            self._take_waiting(batch.target.subscription)

    def _take_waiting(self, subscription: str) -> None:
        waiting, found = self._waiting.pop(subscription), self._opened.sources[subscription]
        del self._waiting_bytes[subscription]
        take = self._take_inferred if found.source.is_inferred else self._take_described
        for rows in pa.Table.from_batches([part.rows for part in waiting]).combine_chunks().to_batches():
            take(found, PulledBatch(waiting[0].target, rows))

    def _take_described(self, found: SourcePlan, batch: PulledBatch) -> None:
        source = found.source
        with self._mark(found):
            decoded = self._opened.decoders[source.subscription].decode(batch.rows)
        if decoded.rows.num_rows:
            self._add(source.staging, found.writer, decoded.rows, batch, decoded.indices, source=source)
        self._count(source, decoded)
        self._refuse(source, decoded.refused, batch)

    def _take_inferred(self, found: SourcePlan, batch: PulledBatch) -> None:
        with self._mark(found):
            decoded = self._opened.inferred[found.source.subscription].decode(batch.rows)
        writers = {kind.name: writer for kind, writer in zip(found.types, found.type_writers, strict=True)}
        for kind, part in decoded.tables:
            self._add(kind.table, writers[kind.name], part.rows, batch, part.indices, source=found.source)
            self._count(found.source, part)
        self._refuse(found.source, decoded.refused, batch)
        if decoded.unfit:
            none = pa.repeat("", len(decoded.unfit))
            self._unfit.append(_make_ids(found.source.staging, found.source, batch, decoded.unfit, none))
        for (name, digest), variation in decoded.variations.items():
            self._variations.setdefault((found.source.name, name, digest), variation)

    @contextmanager
    def _mark(self, found: SourcePlan) -> Iterator[None]:
        """Mark the source while its messages are decoded."""
        with nullcontext() if self._marks is None else self._marks.mark(found.source.subscription):
            failpoint.hit("decode.begun")
            yield

    def _refuse(self, source: Source, refused: Sequence[Refusal], batch: PulledBatch) -> None:
        if not refused:
            return
        rows = dead_letter_rows(
            batch.rows,
            refused,
            topic=source.topic,
            token=replay_token(self._opened.secret, source.topic),
            source=source.name,
            version=source.version or None,
        )
        plan = self._opened.plan
        places = [refusal.index for refusal in refused]
        self._add(plan.dead_letter_table, plan.dead_letter_writer, rows, batch, places, source=source)
        self._tables[plan.dead_letter_table].codes += [refusal.code for refusal in refused]

    def _count(self, source: Source, decoded: DecodedBatch) -> None:
        counts = self._counts[source.name]
        for kind, found in (("unknown", decoded.unknown), ("missing", decoded.missing)):
            own = counts[kind]
            for path, count in found.items():
                own[path if path in own or len(own) < MAX_COUNTED else OTHERS] += count

    def _add(
        self,
        table: str,
        writer: RowWriter,
        rows: pa.RecordBatch,
        batch: PulledBatch,
        places: Sequence[int],
        *,
        source: Source,
    ) -> None:
        found = self._tables.setdefault(table, _Rows(writer))
        found.batches.append(rows)
        found.ids.append(_make_ids(table, source, batch, places, self._replay_ids(rows, source)))
        found.messages.append((source, batch, places))

    def _replay_ids(self, rows: pa.RecordBatch, source: Source) -> pa.Array:
        """Return which replays the rows of a table, or of the dead letters, are of."""
        originals = rows
        if "_backfill_id" not in rows.schema.names:
            token = replay_token(self._opened.secret, source.topic)
            originals = read_originals(rows, topic=source.topic, token=token)
        return replay_ids(originals["_backfill_id"], originals["_backfill_row"])


class StagingSource(PullSource):
    """The stream of parts that wait for their commits; the option ``secret`` is redacted by Spark."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name in ``readStream.format``."""
        return "refeed_staging"

    def open_task(self) -> StagingTask:
        """Return the task, which takes the plan of each batch."""
        return StagingTask(self.options["secret"])


def _make_ids(
    table: str, source: Source, batch: PulledBatch, places: Sequence[int], replays: pa.Array
) -> pa.Table:
    taken = batch.rows.select(TAKEN_COLUMNS).take(pa.array(places, pa.int32()))
    return make_ids(
        PULLED_IDS_SCHEMA,
        taken,
        # As its row has it: Pub/Sub does not name the topic of a subscription any more that outlived it.
        topic=source.topic,
        subscription=batch.target.subscription,
        table=table,
        replay=replays,
    )


@lru_cache(maxsize=1)
def _open_plan(text: str, secret: str) -> OpenPlan:
    """Return the plan of this batch; decoders are built again only when it changed."""
    plan = GroupPlan.from_text(text)
    sources = {found.source.subscription: found for found in plan.sources}
    decoders, inferred = {}, {}
    for name, found in sources.items():
        if found.source.is_inferred:
            inferred[name] = InferredDecoder(found.source, found.types, secret=secret, max_bytes=plan.max_bytes)
        else:
            decoders[name] = found.open_decoder(secret, plan.max_bytes)
    return OpenPlan(plan, secret, sources, decoders, inferred)
