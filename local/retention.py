"""Which stored messages must stay: those that somebody still needs, and those that are retained by time."""

from collections.abc import Iterable, Mapping
from typing import Any

from local.entries import Snapshot, SubscriptionEntry, Topic, microseconds


def read_needs(
    ends: Mapping[int, int],
    topics: Iterable[Topic],
    subscriptions: Iterable[SubscriptionEntry],
    snapshots: Iterable[Snapshot],
    now_us: int,
) -> dict[int, tuple[int, int]]:
    """Return by log the first message that somebody needs, and the time from which all are retained.

    ``ends`` has the number behind the last message of each log.
    """
    needs = {number: (end, now_us) for number, end in ends.items()}

    def need(number: int, first_seq: int, retention: Any = None) -> None:
        seq, since = needs[number]
        if retention is not None:
            since = min(since, now_us - microseconds(retention))
        needs[number] = min(seq, first_seq), since

    for entry in subscriptions:
        if not entry.config.detached:
            is_kept = entry.config.retain_acked_messages
            need(
                entry.log_number,
                entry.working.floor,
                entry.config.message_retention_duration if is_kept else None,
            )
    for snapshot in snapshots:
        need(snapshot.log_number, snapshot.state.floor)
    for topic in topics:
        if topic.config.HasField("message_retention_duration"):
            need(topic.log_number, needs[topic.log_number][0], topic.config.message_retention_duration)
    return needs
