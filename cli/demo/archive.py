"""What the demo reads: the archive's rows, and what a subscription gets."""

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from cli.demo.verdict import ArchivedMessage
from model.message import Message
from model.settings import Settings

if TYPE_CHECKING:
    pass

_PULL_SECONDS: Final = 0.5


class ArchiveReader:
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

        columns = ["topic", "message_id", "data", "attributes", "publish_time"]
        for file in self._archive.data_files():
            for row in pq.read_table(file.path, columns=columns, partitioning=None).to_pylist():
                yield ArchivedMessage(
                    topic=row["topic"],
                    message_id=row["message_id"],
                    data=row["data"],
                    attributes=tuple((pair["key"], pair["value"]) for pair in row["attributes"]),
                    publish_time=render_publish_time(row["publish_time"]),
                )

    def read_ids(self) -> set[tuple[str, str]]:
        """Return (topic, message_id) of every row of the newest snapshot."""
        import pyarrow.parquet as pq

        ids: set[tuple[str, str]] = set()
        for file in self._archive.data_files():
            table = pq.read_table(file.path, columns=["topic", "message_id"], partitioning=None)
            ids.update(zip(table.column("topic").to_pylist(), table.column("message_id").to_pylist(), strict=True))
        return ids


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
    puller = Puller(channel)
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
