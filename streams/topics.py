"""Publishes the rows of a table to a topic, after the table has them."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from connectors.pubsub.encoding import MESSAGE_SCHEMA
from connectors.pubsub.publish import GAVE_UP, KEY_STOPPED, Publisher
from model import failpoint
from model.errors import CommitOutcomeUnknownError, PubSubError, PubSubUnavailableError, RefeedError
from streams.ids import without_topics
from streams.targets import CompactedTable, Targets, is_topic, table_of

_log = structlog.get_logger(__name__)

# The messages of a part, with the id and the publish time of the message from which each row was made.
TOPIC_SCHEMA: Final = pa.schema(
    [*MESSAGE_SCHEMA, ("message_id", pa.string()), ("publish_time", pa.timestamp("us", tz="UTC"))]
)

_TOPICS_AT_ONCE: Final = 8
# Time until a publish is given up. The leases of the messages are extended meanwhile, and a drain waits.
_GIVE_UP_SECONDS: Final = 60.0
_CALL_SECONDS: Final = 20.0

# Called with a table, and the reasons for its messages that Pub/Sub refused, by message id.
OnRefused = Callable[[str, Mapping[str, str]], None]


@dataclass(frozen=True, slots=True)
class TopicPart:
    """Messages for ``topic`` that wait until a table has their rows; ``by_key`` keeps the order of each key.

    The tasks send the whole part to the driver. After a kill before the publish, its messages are unacknowledged,
    and the part is made again when they are redelivered.
    """

    topic: str
    by_key: bool
    messages: pa.Table

    @property
    def rows(self) -> int:
        """The number of messages."""
        found: int = self.messages.num_rows
        return found


class TopicTargets:
    """The tables of a stream and the topics that get their rows, as one set of targets.

    Rows are published to a topic only after its table has the rows of the attempt. A topic can't be queried for a
    message: after a crash in between, at most one batch of messages is redelivered and published again. If a
    publish fails, the error is transient: the tables have their rows, and none of the topic's messages is
    acknowledged.

    ``on_refused`` gets the messages that Pub/Sub will never take; they are redelivered, and become dead letters.
    """

    def __init__(
        self,
        tables: Targets,
        channel: Any,
        topic_path: Callable[[str], str],
        on_refused: OnRefused,
        *,
        give_up_seconds: float = _GIVE_UP_SECONDS,
    ) -> None:
        self._tables = tables
        self._channel = channel
        self._topic_path = topic_path
        self._on_refused = on_refused
        self._give_up_seconds = give_up_seconds

    def open(self, name: str) -> CompactedTable:
        """Return another object for the table ``name``, for another thread."""
        return self._tables.open(name)

    def take(self, name: str) -> int:
        """Take a table; a topic belongs to the owner of its table, and has no attempts."""
        return 0 if is_topic(name) else self._tables.take(name)

    def settle(self, number: int, names: Sequence[str], commit_id: int | None = None) -> frozenset[str]:
        """Return the tables of ``names`` that have the rows of the attempt ``number``; of topics it is unknown."""
        tables = [name for name in names if not is_topic(name)]
        return self._tables.settle(number, tables, commit_id) if tables else frozenset()

    def without(self, name: str, part: Any, is_unwanted: pa.BooleanArray) -> Any | None:
        """Return the part without the rows where ``is_unwanted`` is true, None if no rows are left."""
        if not is_topic(name):
            return self._tables.without(name, part, is_unwanted)
        kept = part.messages.filter(pc.invert(is_unwanted))
        return replace(part, messages=kept) if kept.num_rows else None

    def which_follow(self, parts: Sequence[Any]) -> list[bool]:
        """Return for each part whether it can be committed with the others; messages depend on no other part."""
        of_tables = iter(self._tables.which_follow([part for part in parts if not isinstance(part, TopicPart)]))
        return [isinstance(part, TopicPart) or next(of_tables) for part in parts]

    def commit(
        self, parts: Mapping[str, Sequence[Any]], number: int, ids: pa.Table, commit_id: int | None = None
    ) -> tuple[frozenset[str], RefeedError | None]:
        """Commit to the tables, then publish to the topics of the tables that have their rows.

        Raises:
            RefeedError: no table has its parts, and nothing was published.
        """
        of_tables = {name: found for name, found in parts.items() if not is_topic(name)}
        committed: frozenset[str] = frozenset()
        failure: RefeedError | None = None
        if of_tables:
            committed, failure = self._tables.commit(of_tables, number, without_topics(ids), commit_id)
        lost = of_tables.keys() - committed
        topics = [name for name in parts if is_topic(name) and table_of(name) not in lost]
        if not topics or isinstance(failure, CommitOutcomeUnknownError):
            return committed, failure
        failpoint.hit("publish.before")
        with ThreadPoolExecutor(_TOPICS_AT_ONCE, thread_name_prefix="publish") as pool:
            errors = dict(
                zip(topics, pool.map(lambda name: self._publish(name, parts[name]), topics), strict=True)
            )
        failpoint.hit("publish.after")
        published = {name for name, error in errors.items() if error is None}
        return committed | published, failure or next(filter(None, errors.values()), None)

    def drop(self, name: str, part: Any) -> None:
        """Give up a part; a topic's part exists only in memory."""
        if not is_topic(name):
            self._tables.drop(name, part)

    def quota_seconds(self, parts: Sequence[Any]) -> float:
        """Return the seconds to wait for the warehouse's quotas after a batch with these ``parts``."""
        return self._tables.quota_seconds([part for part in parts if not isinstance(part, TopicPart)])

    def _publish(self, name: str, parts: Sequence[TopicPart]) -> PubSubUnavailableError | None:
        """Publish the parts of a topic; return the error if some of them were not published."""
        topic, by_key = parts[0].topic, parts[0].by_key
        messages = pa.concat_tables([part.messages for part in parts])
        if by_key:
            columns = ("ordering_key", "publish_time", "message_id")
            messages = messages.sort_by([(column, "ascending") for column in columns])
        try:
            refused = self._send(topic, messages, by_key=by_key)
        except PubSubError as exc:
            # Messages also wait for a topic that is deleted or forbidden, as for one that does not answer.
            return PubSubUnavailableError(f"The rows of {table_of(name)} are not published: {exc.message}")
        if not refused:
            return None
        for_good = {key: why for key, why in refused.items() if not why.startswith((GAVE_UP, KEY_STOPPED))}
        _log.warning("messages_refused", topic=topic, table=table_of(name), count=len(refused))
        self._on_refused(table_of(name), for_good)
        example = next(iter((for_good or refused).values()))
        return PubSubUnavailableError(f"{topic} refuses {len(refused)} rows of {table_of(name)}: {example}")

    def _send(self, topic: str, messages: pa.Table, *, by_key: bool) -> dict[str, str]:
        """Publish ``messages``; return the reasons of refused messages by message id."""
        publisher = Publisher(
            self._channel,
            self._topic_path(topic),
            timeout_seconds=_CALL_SECONDS,
            give_up_seconds=self._give_up_seconds,
        )
        refused: dict[str, str] = {}
        for batch in messages.combine_chunks().to_batches():
            ids = batch.column("message_id")
            for confirmed in publisher.publish_arrow(batch.select(MESSAGE_SCHEMA.names), by_key=by_key):
                refused |= {ids[one.row].as_py(): one.reason for one in confirmed.refused}
        return refused
