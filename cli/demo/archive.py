"""What the demo reads: the archive's rows, and what a subscription gets."""

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from cli.demo.verdict import ArchivedMessage
from model.message import Message
from model.settings import Settings

_PULL_SECONDS: Final = 0.5
_COLUMNS: Final = ("topic", "message_id", "data", "attributes", "publish_time")


class ArchiveReader:
    """Reads the archive of ``settings`` as it is now, past every query."""

    def __init__(self, settings: Settings) -> None:
        from app.deployment import Deployment

        self._archive = Deployment(settings).warehouse.open_archive()

    def create(self) -> None:
        """Create the archive, so that it can be counted before the first message."""
        self._archive.create()

    def count_rows(self) -> int:
        """Return how many rows it holds."""
        return self._archive.count_rows()

    def read(self) -> Iterator[ArchivedMessage]:
        """Yield every row."""
        for batch in self._archive.scan(_COLUMNS):
            yield from map(_archived, batch.to_pylist())

    def read_ids(self) -> set[tuple[str, str]]:
        """Return (topic, message_id) of every row."""
        ids: set[tuple[str, str]] = set()
        for batch in self._archive.scan(("topic", "message_id")):
            ids.update(zip(batch.column("topic").to_pylist(), batch.column("message_id").to_pylist(), strict=True))
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
