"""What the demo reads: the archive's rows, and what a subscription gets."""

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, Protocol

from cli.demo.verdict import ArchivedMessage
from model.message import Message
from model.settings import Settings

_PULL_SECONDS: Final = 0.5
_COLUMNS: Final = ("topic", "message_id", "data", "attributes", "publish_time")

# The table may ask for a filter on its partitions.
_EVERY_PARTITION: Final = "_PARTITIONTIME IS NOT NULL"


class ArchiveReader(Protocol):
    """Reads an archive as it is now, past every query."""

    def create(self) -> None:
        """Create the archive, so that it can be counted before the first message."""

    def count_rows(self) -> int:
        """Return how many rows it holds."""

    def read(self) -> Iterator[ArchivedMessage]:
        """Yield every row."""

    def read_ids(self) -> set[tuple[str, str]]:
        """Return (topic, message_id) of every row."""


def open_reader(settings: Settings) -> ArchiveReader:
    """Return the reader for the warehouse of ``settings``."""
    return BigQueryReader(settings) if settings.warehouse == "bigquery" else LakeReader(settings)


class BigQueryReader:
    """Reads the archive of ``settings`` by the Storage Read API."""

    def __init__(self, settings: Settings) -> None:
        from connectors.bigquery.client import Clients, Connection
        from connectors.bigquery.tables import TableId

        self._settings = settings
        self._table = TableId.parse(settings.archive_table, settings.project)
        self._clients = Clients(Connection.of(settings.project, settings.bigquery))

    def create(self) -> None:
        """Create the archive, so that it can be counted before the first message."""
        from connectors.bigquery.archive import BigQueryArchive

        settings = self._settings
        archive = BigQueryArchive(
            settings.project, settings.archive_table, settings.bigquery, settings.archive_partitioning
        )
        archive.create()
        archive.close()

    def count_rows(self) -> int:
        """Return how many rows the table holds."""
        return sum(batch.num_rows for batch in self._read("topic"))

    def read(self) -> Iterator[ArchivedMessage]:
        """Yield every row of the table."""
        for batch in self._read(*_COLUMNS):
            yield from map(_archived, batch.to_pylist())

    def read_ids(self) -> set[tuple[str, str]]:
        """Return (topic, message_id) of every row of the table."""
        ids: set[tuple[str, str]] = set()
        for batch in self._read("topic", "message_id"):
            ids.update(zip(batch.column("topic").to_pylist(), batch.column("message_id").to_pylist(), strict=True))
        return ids

    def _read(self, *columns: str) -> Iterator[Any]:
        from connectors.bigquery.reader import open_session, read_stream

        session = open_session(
            self._clients, self._table, max_streams=1, columns=columns, condition=_EVERY_PARTITION
        )
        for stream in session.streams:
            for _, batch in read_stream(self._clients, session, stream):
                yield batch


class LakeReader:
    """Reads the archive of ``settings`` from its files, past every query engine."""

    def __init__(self, settings: Settings) -> None:
        from connectors.lake.archive import LakeArchive

        self._archive: LakeArchive = LakeArchive(
            settings.lake, settings.archive_table, settings.archive_partitioning
        )

    def create(self) -> None:
        """Create the archive, so that it can be counted before the first message."""
        self._archive.create()

    def count_rows(self) -> int:
        """Return how many rows the newest snapshot holds."""
        return sum(file.rows for file in self._archive.data_files())

    def read(self) -> Iterator[ArchivedMessage]:
        """Yield every row of the newest snapshot."""
        import pyarrow.parquet as pq

        for file in self._archive.data_files():
            yield from map(
                _archived, pq.read_table(file.path, columns=list(_COLUMNS), partitioning=None).to_pylist()
            )

    def read_ids(self) -> set[tuple[str, str]]:
        """Return (topic, message_id) of every row of the newest snapshot."""
        import pyarrow.parquet as pq

        ids: set[tuple[str, str]] = set()
        for file in self._archive.data_files():
            table = pq.read_table(file.path, columns=["topic", "message_id"], partitioning=None)
            ids.update(zip(table.column("topic").to_pylist(), table.column("message_id").to_pylist(), strict=True))
        return ids


def _archived(row: Mapping[str, Any]) -> ArchivedMessage:
    return ArchivedMessage(
        topic=row["topic"],
        message_id=row["message_id"],
        data=row["data"],
        attributes=tuple((pair["key"], pair["value"]) for pair in row["attributes"]),
        publish_time=render_publish_time(row["publish_time"]),
    )


def render_publish_time(moment: datetime) -> str:
    """Return the time as the tag of a replay has it: RFC 3339 in UTC, with microseconds."""
    return f"{moment:%Y-%m-%dT%H:%M:%S.%f}Z"


def receive(
    channel: Any,
    subscription_path: str,
    *,
    want: int,
    idle_seconds: float,
    note: Callable[[int], None],
) -> list[Message]:
    """Return what the subscription delivers, acknowledged: ``want`` messages, or fewer when it falls silent.

    ``note`` is told how many have come so far.
    """
    from connectors.pubsub.acks import acknowledge
    from connectors.pubsub.pull import Puller, PullLimits, PullTarget

    subscription = subscription_path.rsplit("/", 1)[-1]
    target = PullTarget(subscription_path, subscription, "", ack_deadline_seconds=10)
    limits = PullLimits(_PULL_SECONDS, _PULL_SECONDS, _PULL_SECONDS, max_bytes=64 * 1024 * 1024)
    puller = Puller(lambda: channel)
    messages: list[Message] = []
    last_at = time.monotonic()
    while len(messages) < want and time.monotonic() - last_at < idle_seconds:
        for batch in puller.start_batch([target]).pull(limits, lambda: False):
            rows = batch.rows.to_pylist()
            messages += [
                Message(
                    row["data"] or b"",
                    {pair["key"]: pair["value"] for pair in row["attributes"]},
                    row["message_id"],
                )
                for row in rows
            ]
            acknowledge(channel, subscription_path, batch.rows.column("ack_id"))
            last_at = time.monotonic()
            note(len(messages))
    puller.give_back()
    return messages
