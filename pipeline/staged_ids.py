"""Which messages a group's tables have: their ids, for a stream that learns them."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from connectors.pubsub.replays import find_replays
from model.archive import ID_COLUMNS, IdSpan
from model.message import replay_token
from pipeline.registry import Source
from streams.journal import TABLE_IDS_SCHEMA, Journal
from warehouse.rows import RowTables

_STAGED: Final = ("_topic", "_message_id", "_publish_time", "_backfill_id")
_REFUSED: Final = (*ID_COLUMNS, "source", "attributes")


def open_journal(folder: Path, *, keep_seconds: int, dead_letter_table: str) -> Journal:
    """Return the journal of a group: its sources share the table of dead letters, and no other."""
    return Journal(folder, keep_seconds=keep_seconds, schema=TABLE_IDS_SCHEMA, shared_table=dead_letter_table)


class StagedIds:
    """Reads the ids of live messages from staging tables, and those of ``sources`` from the dead letters.

    Rows of replays are left out: they name their original, which may not have come yet itself. So a replay that
    was staged and not acknowledged is staged again, as one that a backfill published twice is. The dead letters
    are other groups' too, whose sources may have refused a message that a source of this group has still to take.
    """

    def __init__(
        self, tables: RowTables, dead_letter_table: str, sources: Callable[[], Sequence[Source]], secret: str
    ) -> None:
        self._tables = tables
        self._dead_letter_table = dead_letter_table
        self._sources = sources
        self._secret = secret

    def read(self, table: str, span: IdSpan) -> Iterator[pa.RecordBatch]:
        """Yield topic, message_id, publish_time, subscription and table of the messages in ``span`` that it has.

        A dead letter's subscription is its source's. That of a staged row is empty: no other one has its table.

        Raises:
            RegistryError: the registry can't be read, so that nobody knows whose dead letters are the group's.
            WarehouseError: the table can't be read.
        """
        found = self._read_refused(span) if table == self._dead_letter_table else self._read_staged(table, span)
        for subscription, ids in found:
            constants = [pa.repeat(value, ids.num_rows) for value in (subscription, table)]
            yield pa.record_batch([*ids.columns, *constants], names=[*ID_COLUMNS, "subscription", "table"])

    def _read_staged(self, table: str, span: IdSpan) -> Iterator[tuple[str, pa.RecordBatch]]:
        for batch in self._tables.read_since(table, _STAGED, "_publish_time", span):
            rows = batch.filter(pc.is_null(batch.column("_backfill_id")))
            yield "", rows.select(list(_STAGED[:3])).rename_columns(list(ID_COLUMNS))

    def _read_refused(self, span: IdSpan) -> Iterator[tuple[str, pa.RecordBatch]]:
        sources = [(source, replay_token(self._secret, source.topic)) for source in self._sources()]
        for batch in self._tables.read_since(self._dead_letter_table, _REFUSED, "publish_time", span):
            for source, token in sources:
                rows = batch.filter(pc.equal(batch.column("source"), source.name))
                if rows.num_rows:
                    is_replay = find_replays(rows, token)
                    live = rows if is_replay is None else rows.filter(pc.invert(is_replay))
                    yield source.subscription, live.select(list(ID_COLUMNS))
