"""Which messages a group's tables have: their ids, for a stream that learns them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from connectors.pubsub.replays import find_replays
from model.archive import ID_COLUMNS, IdSpan
from model.message import replay_token
from pipeline.registry import Source
from warehouse.rows import RowTables

_STAGED: Final = ("_topic", "_message_id", "_publish_time", "_backfill_id")
_REFUSED: Final = (*ID_COLUMNS, "source", "attributes")


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
        """Yield topic, message_id, publish_time and table of the messages in ``span`` that ``table`` has.

        Raises:
            RegistryError: the registry can't be read, so that nobody knows whose dead letters are the group's.
            WarehouseError: the table can't be read.
        """
        found = self._read_refused(span) if table == self._dead_letter_table else self._read_staged(table, span)
        for ids in found:
            yield pa.record_batch([*ids.columns, pa.repeat(table, ids.num_rows)], names=[*ID_COLUMNS, "table"])

    def _read_staged(self, table: str, span: IdSpan) -> Iterator[pa.RecordBatch]:
        for batch in self._tables.read_since(table, _STAGED, "_publish_time", span):
            rows = batch.filter(pc.is_null(batch.column("_backfill_id")))
            yield rows.select(list(_STAGED[:3])).rename_columns(list(ID_COLUMNS))

    def _read_refused(self, span: IdSpan) -> Iterator[pa.RecordBatch]:
        tokens = {source.name: replay_token(self._secret, source.topic) for source in self._sources()}
        for batch in self._tables.read_since(self._dead_letter_table, _REFUSED, "publish_time", span):
            for name, token in tokens.items():
                rows = batch.filter(pc.equal(batch.column("source"), name))
                if rows.num_rows:
                    is_replay = find_replays(rows, token)
                    live = rows if is_replay is None else rows.filter(pc.invert(is_replay))
                    yield live.select(list(ID_COLUMNS))
