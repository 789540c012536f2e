"""The archive's rows as a task writes them: appended unseen, refused ones among the dead letters."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from connectors.bigquery.client import Connection, process_clients
from connectors.bigquery.table_id import TableId
from connectors.bigquery.tables.specs import DEAD_LETTERS
from connectors.bigquery.writes.batches import RefusedRow, archive_batch, dead_letter_batch
from connectors.bigquery.writes.large_rows import drop_large_rows
from connectors.bigquery.writes.part_writer import JsonPart, PartWriter, PendingRows
from model.errors import WarehouseError
from model.volume import HourCounts, hour_key

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WrittenPart(JsonPart):
    """What one task wrote; small, and JSON-ready. ``dead_letters`` of its ``rows`` wait for the dead letters.

    ``ingest_time`` is the same in all of them, ``failed_at`` of a dead letter. ``volumes`` are those of the rows
    that are no dead letters.
    """

    rows: int
    size_bytes: int
    dead_letters: int
    ingest_time: str
    tables: tuple[PendingRows, ...]
    volumes: HourCounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BigQueryArchiveWriter:
    """Appends rows to streams that wait for their commit; picklable, so that tasks can carry it."""

    connection: Connection
    table: str
    append_bytes: int
    streams: int = 1
    # Rows are appended as they come; BigQuery clusters them by itself.
    is_by_topic = False

    def as_json(self) -> dict[str, Any]:
        """Return what :meth:`from_json` takes."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Return the writer that :meth:`as_json` described."""
        return cls(**{**fields, "connection": Connection.from_json(fields["connection"])})

    def write(self, parts: Iterable[tuple[str, str, pa.RecordBatch]]) -> WrittenPart:
        """Append the rows of ``parts`` durably while they come, and return what a commit needs of them.

        A part is (topic, subscription, rows with the message columns of the archive, other columns are left
        out). ``ingest_time`` is the time of the call, the same for every row. Nobody sees the rows before they
        are committed; BigQuery drops what never is. A row that BigQuery refuses for good waits for the dead
        letters with its reason, and the others go on.
        """
        now = datetime.now(UTC)
        clients = process_clients(self.connection)
        archive = TableId.parse(self.table, self.connection.project)
        part = PartWriter(clients, archive, self.append_bytes, self.streams)
        tally = _Tally()
        counted = tally.of(parts)
        part.write(archive_batch(topic, subscription, rows, now) for topic, subscription, rows in counted)
        tables, refusals = part.finish()
        if refusals:
            _log_refusals(refusals)
            dead = dead_letter_batch(refusals, now)
            letters = PartWriter(clients, archive.companion(DEAD_LETTERS), self.append_bytes)
            letters.write(dead.slice(row, 1) for row in range(dead.num_rows))
            dead_tables, still_refused = letters.finish()
            if still_refused:
                # There is no third place for a message: nothing is acknowledged, and a person has to look.
                raise WarehouseError(
                    f"BigQuery refuses rows of {archive} and their dead letters too: {still_refused[0].reason}"
                )
            tables += dead_tables
        return WrittenPart(
            rows=part.rows,
            size_bytes=part.size_bytes,
            dead_letters=len(refusals),
            ingest_time=now.isoformat(),
            tables=tuple(tables),
            volumes={hour_key(now): tally.without(refusals)},
        )

    def drop(self, part: WrittenPart) -> None:
        """Give up a part that will not be committed: streams vanish by themselves, staged rows now."""
        for table in part.tables:
            if table.staged is not None:
                drop_large_rows(process_clients(self.connection), table.staged.table)


class _Tally:
    """Counts messages and payload bytes by topic while they pass."""

    def __init__(self) -> None:
        self._messages: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def of(self, parts: Iterable[tuple[str, str, pa.RecordBatch]]) -> Iterator[tuple[str, str, pa.RecordBatch]]:
        """Yield ``parts``, counted."""
        for part in parts:
            topic, _, rows = part
            self._messages[topic] += rows.num_rows
            self._bytes[topic] += pc.sum(pc.binary_length(rows.column("data"))).as_py() or 0
            yield part

    def without(self, refusals: Sequence[RefusedRow]) -> dict[str, tuple[int, int]]:
        """Return the counts without rows that were refused."""
        for refusal in refusals:
            topic = refusal.row.column("topic")[0].as_py()
            self._messages[topic] -= 1
            self._bytes[topic] -= len(refusal.row.column("data")[0].as_py() or b"")
        return {topic: (messages, self._bytes[topic]) for topic, messages in self._messages.items() if messages}


def _log_refusals(refusals: Sequence[RefusedRow]) -> None:
    for refusal in refusals:
        _log.warning(
            "row_refused",
            topic=refusal.row.column("topic")[0].as_py(),
            message_id=refusal.row.column("message_id")[0].as_py(),
            reason=refusal.reason,
        )
