"""The events of one request: a payload is taken apart, and each part becomes an encoded message."""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from collector.event import new_identity
from collector.payload import BatchItem, check_json, is_array, split_array
from collector.settings import TopicSection
from connectors.pubsub.encoding import encode_attributes
from connectors.pubsub.sending import encode_message
from model.errors import BodyTooLargeError, RefeedError, RequestInvalidError
from model.message import MAX_MESSAGE_BYTES

# What stands before an event's own id and time: both have one length.
_UUID_HEAD: Final = encode_attributes([("uuid", "0" * 36)])[:-36]
_TIMESTAMP_HEAD: Final = encode_attributes([("timestamp", "0" * 27)])[:-27]
# The topic's name in the request stands before the message and takes of its room.
_REQUEST_HEAD_BYTES: Final = 1_000


class Event(NamedTuple):
    """An event that may go out: its encoded message, and the id and time of its answer."""

    uuid: str
    timestamp: str
    message: bytes


def split_payload(data: bytes, section: TopicSection) -> Iterator[BatchItem]:
    """Return the events of one payload, as its topic's section has it.

    Raises:
        RequestInvalidError: it is no JSON, and the topic takes nothing else.
    """
    if section.format == "json":
        if section.arrays == "batch" and is_array(data):
            return split_array(data)
        check_json(data)
    return iter([BatchItem(data)])


def sort_events(
    items: Iterator[BatchItem], shared: bytes, name_event: Callable[[int], str] | None = None
) -> tuple[dict[int, Event], dict[int, RefeedError]]:
    """Return the events of a batch that may go out and why the others may not, each by its place.

    Raises:
        BodyTooLargeError: there are too many.
        RequestInvalidError: there are none.
    """
    faults: dict[int, RefeedError] = {}
    events: dict[int, Event] = {}
    for at, item in enumerate(items):
        try:
            if item.fault is not None:
                faults[at] = item.fault
            else:
                events[at] = make_event(item.data, shared, name_event(at) if name_event else None)
        except BodyTooLargeError as error:
            faults[at] = error
    if not faults and not events:
        raise RequestInvalidError.of("batch_empty", "The batch has no event.")
    return events, faults


def make_event(data: bytes, shared: bytes, event_uuid: str | None = None) -> Event:
    """Return an event with the current time and a new id, unless it has one.

    Raises:
        BodyTooLargeError: Pub/Sub takes no message of this size.
    """
    identity = new_identity()
    if event_uuid is not None:
        identity = identity._replace(uuid=event_uuid)
    own = b"".join((_UUID_HEAD, identity.uuid.encode(), _TIMESTAMP_HEAD, identity.timestamp.encode()))
    message = encode_message(data, shared + own)
    if len(message) > MAX_MESSAGE_BYTES - _REQUEST_HEAD_BYTES:
        raise BodyTooLargeError(
            f"With its attributes, the event has {len(message)} bytes. Pub/Sub accepts at most 10 MB."
        )
    return Event(identity.uuid, identity.timestamp, message)
