"""Two weeks of a shop before the demo: archived hour by hour, with one hour that strayed to another topic."""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from cli.demo.shop import MEMBERS, ORDERS, PICTURES, PRODUCTS, make_message
from model.archive import Attempt
from model.message import BACKUP_SUBSCRIPTION_PREFIX, Message
from model.table import ARCHIVE_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

    from warehouse.archive import Archive

# A release sent an hour of orders there, half of them in a shape of its own.
STRAYED: Final = "shop.orders-next"
TOPICS: Final = (ORDERS, PRODUCTS, MEMBERS, PICTURES, STRAYED)
DAYS: Final = 14
# How many hours before the demo the hole is: within the day of which gaps wait in the inbox.
_HOLE_HOURS: Final = 6
# That many hours before the demo, members have messages with no room for the tags of a replay: Pub/Sub takes 100
# attributes.
FULL_HOURS: Final = 30
FULL_MESSAGES: Final = 7
_FULL_ATTRIBUTES: Final = 98
# Messages of the busiest hour. At night a quarter of that comes in.
_PEAK: Final = {ORDERS: 300, PRODUCTS: 150, MEMBERS: 120, PICTURES: 30}
_NIGHT: Final = 0.25
_DAWN, _DUSK = 5, 23
_HOUR: Final = timedelta(hours=1)
_LEASE: Final = "demo-history"


@dataclass(frozen=True, slots=True)
class PastMessage:
    """A message of the history, and when it was published."""

    topic: str
    at: datetime
    message: Message


class _PastWriter(Protocol):
    """The archive's writer in a lake, which also writes rows that have an ``ingest_time`` already."""

    def write_batches(
        self, batches: Iterable["pa.RecordBatch"], schema: "pa.Schema", partition: datetime
    ) -> Any: ...


def find_hole(end: datetime) -> datetime:
    """Return the hour whose orders strayed, of a history that ends at ``end``."""
    return end - _HOLE_HOURS * _HOUR


def write_history(archive: "Archive", end: datetime, seed: int) -> Iterator[int]:
    """Archive the hours before ``end``, each with a commit of its own; yields how many messages each has.

    A row's ``ingest_time`` is the end of its hour instead of the time of the commit; everything else is as a
    backup writes it. Nothing else may write to the archive meanwhile.
    """
    columns = [column.name for column in ARCHIVE_COLUMNS]
    schema = next(iter(archive.scan(columns))).schema
    writer, epoch = cast("_PastWriter", archive.writer()), archive.take_lease(_LEASE)
    number = archive.committed_attempt(_LEASE)
    for hours_ago in range(DAYS * 24, 0, -1):
        hour = end - hours_ago * _HOUR
        batch = _batch(list(generate_hour(hour, end, seed)), hour, schema)
        part = writer.write_batches([batch], schema, hour)
        number += 1
        archive.commit([part], Attempt(_LEASE, number, _LEASE, epoch))
        yield batch.num_rows


def generate_hour(hour: datetime, end: datetime, seed: int) -> Iterator[PastMessage]:
    """Yield an hour's messages by topic, the same for the same seed; ``end`` is the end of the history."""
    random = Random(f"{seed} {hour:%Y%m%d%H}")  # noqa: S311  an example's data, no secret
    for topic, peak in _PEAK.items():
        count = round(peak * _share_of_day(hour) * random.uniform(0.9, 1.1))
        moments = sorted(hour + random.random() * _HOUR for _ in range(count))
        is_strayed = topic == ORDERS and hour == find_hole(end)
        for number, at in enumerate(moments):
            message = make_message(topic, random, number + 1, at)
            if is_strayed:
                yield PastMessage(STRAYED, at, _stray(message) if number % 2 else message)
            else:
                yield PastMessage(topic, at, message)
        if topic == MEMBERS and hour == end - FULL_HOURS * _HOUR:
            for number in range(FULL_MESSAGES):
                yield PastMessage(topic, hour + number * timedelta(minutes=7), _full_message(number))


def _share_of_day(hour: datetime) -> float:
    if not _DAWN < hour.hour < _DUSK:
        return _NIGHT
    return _NIGHT + (1 - _NIGHT) * math.sin(math.pi * (hour.hour - _DAWN) / (_DUSK - _DAWN))


def _stray(message: Message) -> Message:
    """Return an order in the shape of the wrong release: its total is a record, and its version 4."""
    order = json.loads(message.data)
    order["total"] = {"amount": f"{order['total']:.2f}", "currency": "SEK"}
    data = json.dumps(order, ensure_ascii=False, separators=(",", ":")).encode()
    return Message(data, {**message.attributes, "version": "4"})


def _full_message(number: int) -> Message:
    attributes = {f"consent_{each:02d}": "yes" for each in range(_FULL_ATTRIBUTES)}
    return Message(f'{{"member_id":"M-{number:06d}"}}'.encode(), {**attributes, "source": "crm"})


def _batch(messages: list[PastMessage], hour: datetime, schema: "pa.Schema") -> "pa.RecordBatch":
    import pyarrow as pa

    messages.sort(key=lambda each: (each.topic, each.at))
    ingested = hour + _HOUR - timedelta(microseconds=1)
    rows = [
        {
            "data": each.message.data,
            "attributes": [{"key": key, "value": value} for key, value in each.message.attributes.items()],
            "message_id": f"{hour.astimezone(UTC):%Y%m%d%H}{number:05d}",
            "publish_time": each.at,
            "topic": each.topic,
            "subscription": f"{BACKUP_SUBSCRIPTION_PREFIX}{each.topic}",
            "ordering_key": "",
            "ingest_time": ingested,
        }
        for number, each in enumerate(messages)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=schema)
