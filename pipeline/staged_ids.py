"""The ids of the messages that a group's tables have, for a stream that learns them or goes back to a snapshot."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from connectors.pubsub.replays import find_replays
from model.archive import ID_COLUMNS, IdSpan
from model.message import replay_token
from model.moment import CLOCK_SKEW
from pipeline.originals import read_originals, replay_ids
from pipeline.registry import Source
from streams.ids import TABLE_IDS_SCHEMA
from streams.journal import REPLAYS, Journal
from streams.targets import is_topic
from warehouse.rows import RowTables

_ORIGINALS: Final = ("_topic", "_message_id", "_publish_time")
_STAGED: Final = (*_ORIGINALS, "_backfill_id", "_backfill_row", "ingest_time")
_DISCARDED: Final = (*_ORIGINALS, "_backfill_id", "ingest_time")
_NEVER: Final = datetime.max.replace(tzinfo=UTC)
_REFUSED: Final = (*ID_COLUMNS, "source", "attributes", "ingest_time")


def open_journal(folder: Path, *, keep_seconds: int, dead_letter_table: str) -> Journal:
    """Return the journal of a group: its sources share the table of dead letters, and no other."""
    return Journal(folder, keep_seconds=keep_seconds, schema=TABLE_IDS_SCHEMA, shared_table=dead_letter_table)


class StagedIds:
    """Reads the ids of messages from staging tables, and those of ``sources`` from the dead letters.

    A row of a replay names its original, which may not have come yet itself: the replay is known by its backfill
    and row, and by the time of its row, which is later than its own. The dead letters are other groups' too, whose
    sources may have refused a message that a source of this group has still to take. ``mapping`` leads from the
    old names of sources to their names now.
    """

    def __init__(
        self,
        tables: RowTables,
        dead_letter_table: str,
        sources: Callable[[], Sequence[Source]],
        secret: str,
        mapping: Mapping[str, str] | None = None,
    ) -> None:
        self._tables = tables
        self._dead_letter_table = dead_letter_table
        self._sources = sources
        self._secret = secret
        self._mapping = mapping or {}

    def read(self, table: str, span: IdSpan) -> Iterator[pa.RecordBatch]:
        """Yield topic, message_id, publish_time, subscription and table of the messages in ``span`` that it has.

        A dead letter's subscription is its source's. That of a staged row is empty: no other one has its table.
        A topic has none: it can't be read, and a row that may not be in it is published again.

        Raises:
            RegistryError: the registry can't be read: it is not known which dead letters are the group's.
            WarehouseError: the table can't be read.
        """
        if is_topic(table):
            return
        # A replay was published before its row was written, and its row does not have that time: those that may
        # come again are among the rows that were written since the oldest message.
        written_since = min(span.published_since, span.ingested_since)
        read = self._read_refused if table == self._dead_letter_table else self._read_staged
        for subscription, ids in read(table, IdSpan(span.published_since, written_since), span):
            constants = [pa.repeat(value, ids.num_rows) for value in (subscription, table)]
            yield pa.record_batch([*ids.columns, *constants], names=[*ID_COLUMNS, "subscription", "table"])

    def _read_staged(self, table: str, span: IdSpan, live: IdSpan) -> Iterator[tuple[str, pa.RecordBatch]]:
        for batch in self._tables.read_since(table, _STAGED, "_publish_time", span):
            rows = batch.select(list(_ORIGINALS)).rename_columns(list(ID_COLUMNS))
            yield "", rows.filter(pc.and_(pc.is_null(batch["_backfill_id"]), _is_in(rows, batch, live)))
            yield "", _replays(batch["_backfill_id"], batch["_backfill_row"], batch["ingest_time"])

    def _read_refused(self, table: str, span: IdSpan, live: IdSpan) -> Iterator[tuple[str, pa.RecordBatch]]:
        sources = [
            (source, replay_token(self._secret, source.topic), self._names(source)) for source in self._sources()
        ]
        for batch in self._tables.read_since(table, _REFUSED, "publish_time", span):
            for source, token, names in sources:
                rows = batch.filter(pc.is_in(batch.column("source").cast(pa.string()), value_set=names))
                is_replay = find_replays(rows, token) if rows.num_rows else None
                is_live = _is_in(rows, rows, live)
                if is_replay is not None:
                    is_live = pc.and_(is_live, pc.invert(is_replay))
                    tried = rows.filter(is_replay)
                    tags = read_originals(tried, topic=source.topic, token=token)
                    found = _replays(tags["_backfill_id"], tags["_backfill_row"], tried["ingest_time"])
                    yield source.subscription, found
                yield source.subscription, rows.filter(is_live).select(list(ID_COLUMNS))

    def _names(self, source: Source) -> pa.Array:
        """Return the name of the source, and those that it had before."""
        old = [old for old, new in self._mapping.items() if new == source.name]
        return pa.array([source.name, *old], pa.string())


def discard_staged(tables: RowTables, name: str, journal: Journal, since: datetime) -> int:
    """Delete the rows of the staging table ``name`` that came in since the snapshot; return how many there were.

    The caller holds the lease, and the subscriptions are back at the snapshot, so that every message of these
    rows comes again. ``journal`` is the snapshot's, and ``since`` is when it was taken: a row whose message it
    knows was there before and does not come again, so that with a task's clock ahead of the agent's rows stay
    rather than go. A second call goes on where a crash ended the first.

    Raises:
        WarehouseError: the warehouse failed; the rows are all there still.
    """
    if not tables.open(name).exists():
        return 0
    tables.take(name)
    return tables.delete_since(name, _find_start(tables, name, journal, since))


def _find_start(tables: RowTables, name: str, journal: Journal, since: datetime) -> datetime:
    """Return ``since``, or a moment after the last row from then on that the snapshot knows."""
    start = since
    for batch in tables.read_since(name, _DISCARDED, "_publish_time", IdSpan(_NEVER, since)):
        is_later = pc.greater_equal(batch.column("ingest_time"), since)
        rows = batch.filter(pc.and_(is_later, pc.is_null(batch.column("_backfill_id"))))
        if not rows.num_rows:
            continue
        ids = rows.select(list(_ORIGINALS)).rename_columns(list(ID_COLUMNS))
        is_known = journal.find_known(pa.table(ids.append_column("table", pa.repeat(name, rows.num_rows))))
        before = rows.column("ingest_time").filter(is_known)
        if len(before):
            start = max(start, pc.max(before).as_py() + timedelta(microseconds=1))
    return start


def _is_in(ids: pa.RecordBatch, rows: pa.RecordBatch, span: IdSpan) -> pa.BooleanArray:
    """Return for each id whether it was published, or its row written, since the times of ``span``."""
    is_young = pc.greater_equal(ids["publish_time"], span.published_since)
    is_in = pc.or_kleene(is_young, pc.greater_equal(rows["ingest_time"], span.ingested_since))
    return pc.fill_null(is_in, fill_value=False)


def _replays(backfill_ids: pa.Array, rows: pa.Array, ingest_times: pa.Array) -> pa.RecordBatch:
    """Return the ids of those rows that are of a replay, as the journal learns them."""
    names = replay_ids(backfill_ids, rows)
    is_replay = pc.not_equal(names, "")
    latest = pc.add(ingest_times.filter(is_replay), pa.scalar(CLOCK_SKEW))
    kept = names.filter(is_replay)
    return pa.record_batch([pa.repeat(REPLAYS, len(kept)), kept, latest], names=list(ID_COLUMNS))
