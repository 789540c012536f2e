"""Publish requests as they come in: cut into messages, checked against Pub/Sub's limits, seldom decoded."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError
from google.pubsub_v1 import types

from local.seqset import Seqs
from local.status import StatusError
from local.wire import Bytes, PubsubMessage, read_varint
from model.message import (
    MAX_ATTRIBUTE_KEY_BYTES,
    MAX_ATTRIBUTE_VALUE_BYTES,
    MAX_ATTRIBUTES,
    MAX_MESSAGE_BYTES,
    MAX_PUBLISH_REQUEST_BYTES,
    MAX_PUBLISH_REQUEST_MESSAGES,
)

PublishRequest: Final[Any] = types.PublishRequest.pb()
MAX_ORDERING_KEY_BYTES: Final = 1024

_CONTINUES: Final = 0x80
# Protobuf tags: field number times 8, plus 2 for "length-delimited". PublishRequest has topic 1, messages 2;
# PubsubMessage has data 1, attributes 2, ordering_key 5; an attribute's entry has key 1, value 2.
_TAG_1: Final = 0x0A
_TAG_2: Final = 0x12
_TAG_5: Final = 0x2A
# From here on a look at all messages at once is faster than one at a time.
_MANY_MESSAGES: Final = 32


def parse_publish(raw: bytes) -> tuple[str, list[bytes]]:
    """Return the topic and the messages' bytes of a PublishRequest, within Pub/Sub's limits.

    The bytes carry no message_id and no publish_time: what a producer sent there is dropped.

    Raises:
        StatusError: INVALID_ARGUMENT, a limit is passed or the bytes are no PublishRequest.
    """
    if len(raw) > MAX_PUBLISH_REQUEST_BYTES:
        raise StatusError.invalid(
            f"Request payload size exceeds the limit: {MAX_PUBLISH_REQUEST_BYTES} bytes; this one has {len(raw)}."
        )
    try:
        topic, spans = _cut(raw)
        bodies = _decode_all(raw) if spans is None else _read_bodies(raw, spans)
    except (IndexError, DecodeError, UnicodeDecodeError) as exc:
        raise StatusError.invalid("The request is not a PublishRequest.") from exc
    if not bodies:
        raise StatusError.invalid(
            "The value for message_count is too small. You passed 0 in the request, but the minimum value is 1."
        )
    if len(bodies) > MAX_PUBLISH_REQUEST_MESSAGES:
        raise StatusError.invalid(
            f"The value for message_count is too large. You passed {len(bodies)} in the request, "
            f"but the maximum value is {MAX_PUBLISH_REQUEST_MESSAGES}."
        )
    return topic, bodies


def _cut(raw: bytes) -> tuple[str, list[tuple[int, int]] | None]:
    """Return the topic and where each message stands; None for a request with fields unknown here."""
    topic = ""
    spans: list[tuple[int, int]] = []
    position, end = 0, len(raw)
    while position < end:
        tag, length, start = raw[position], raw[position + 1], position + 2
        if length >= _CONTINUES:
            length, start = read_varint(raw, position + 1)
        position = start + length
        if position > end:
            raise IndexError
        if tag == _TAG_2:
            spans.append((start, position))
        elif tag == _TAG_1:
            topic = raw[start:position].decode()
        else:
            return str(PublishRequest.FromString(raw).topic), None
    return topic, spans


def _decode_all(raw: bytes) -> list[bytes]:
    return [_normalise(message.SerializeToString()) for message in PublishRequest.FromString(raw).messages]


def _read_bodies(raw: bytes, spans: list[tuple[int, int]]) -> list[bytes]:
    bodies = [raw[start:end] for start, end in spans]
    if len(spans) < _MANY_MESSAGES:
        return [body if is_plain(body) else _normalise(body) for body in bodies]
    plain = are_plain(raw, np.array(spans, dtype=np.int64))
    if not plain.all():
        for at in np.flatnonzero(~plain).tolist():
            if not is_plain(bodies[at]):
                bodies[at] = _normalise(bodies[at])
    return bodies


def is_plain(body: bytes) -> bool:
    """Whether a PubsubMessage is what clients send nearly always, and within the limits by its shape.

    That is: data, then attributes of ASCII text with entries below 128 bytes, then perhaps an ordering key. Such a
    message needs no other look; the others are decoded.
    """
    position, end, attributes = 0, len(body), 0
    try:
        if body[0] == _TAG_1:
            length, position = read_varint(body, 1)
            position += length
            if length > MAX_MESSAGE_BYTES:
                return False
        has_data = position > 2  # noqa: PLR2004 - a tag and a length of zero
        if not body[position:].isascii():
            return False
        while position < end:
            tag, length = body[position], body[position + 1]
            if tag == _TAG_2:
                key_length = body[position + 3]
                value = position + 4 + key_length
                if (
                    body[position + 2] != _TAG_1
                    or body[value] != _TAG_2
                    or key_length + body[value + 1] + 4 != length
                    or not key_length
                    or body.startswith(b"goog", position + 4)
                ):
                    return False
                attributes += 1
            elif tag != _TAG_5:
                return False
            position += 2 + length
    except IndexError:
        return False
    return position == end and attributes <= MAX_ATTRIBUTES and (has_data or attributes > 0)


def are_plain(raw: bytes, spans: Seqs) -> npt.NDArray[np.bool_]:
    """Return for each message at ``spans`` (start, end) whether it is plain; a False may be one too many.

    All messages are walked in step, one field a round: a thousand cost about what fifty cost one by one.
    """
    view = np.frombuffer(raw, dtype=np.uint8)

    def byte_at(positions: Seqs) -> Bytes:
        # Bytes after a message's end are read too; its result is not used then.
        return view.take(positions, mode="clip")

    ends = spans[:, 1]
    positions, length, plain = _read_data(byte_at, spans[:, 0])
    positions += length
    has_data = length > 0
    attributes = np.zeros(len(spans), dtype=np.int64)
    plain &= positions <= ends
    tails = zip(positions.tolist(), ends.tolist(), strict=True)
    plain &= np.fromiter((raw[start:end].isascii() for start, end in tails), dtype=np.bool_, count=len(spans))
    for _ in range(MAX_ATTRIBUTES + 1):
        walking = plain & (positions < ends)
        if not walking.any():
            break
        tag, length = byte_at(positions), byte_at(positions + 1).astype(np.int64)
        key_length = byte_at(positions + 3).astype(np.int64)
        value = positions + 4 + key_length
        is_attribute = (
            (tag == _TAG_2)
            & (byte_at(positions + 2) == _TAG_1)
            & (byte_at(value) == _TAG_2)
            & (key_length + byte_at(value + 1) + 4 == length)
            & (key_length > 0)
            # A key that begins with g may be a reserved one: looked at one by one.
            & (byte_at(positions + 4) != ord("g"))
        )
        plain &= ~walking | is_attribute | (tag == _TAG_5)
        attributes += walking & is_attribute
        positions += np.where(walking, 2 + length, 0)
    found: npt.NDArray[np.bool_] = (
        plain & (positions == ends) & (attributes <= MAX_ATTRIBUTES) & (has_data | (attributes > 0))
    )
    return found


def _read_data(byte_at: Callable[[Seqs], Bytes], starts: Seqs) -> tuple[Seqs, Seqs, npt.NDArray[np.bool_]]:
    """Return of each message where its data begins, how many bytes it has, and whether they are few enough.

    A message without the field has none.
    """
    going = byte_at(starts) == _TAG_1
    length = np.zeros(len(starts), dtype=np.int64)
    positions = starts + going
    for shift in (0, 7, 14, 21):
        byte = byte_at(positions)
        length += np.where(going, (byte & 0x7F).astype(np.int64) << shift, 0)
        positions += going
        going &= byte >= _CONTINUES
    return positions, length, ~going & (length <= MAX_MESSAGE_BYTES)


def _normalise(body: bytes) -> bytes:
    message = PubsubMessage.FromString(body)
    if not message.data and not message.attributes:
        raise StatusError.invalid(
            "One or more messages in the publish request is empty. Each message must contain either non-empty "
            "data, or at least one attribute."
        )
    if len(message.data) > MAX_MESSAGE_BYTES:
        raise StatusError.invalid(
            f"The value for data is too large: {len(message.data)} bytes; the maximum is {MAX_MESSAGE_BYTES}."
        )
    if len(message.attributes) > MAX_ATTRIBUTES:
        raise StatusError.invalid(
            f"The value for attributes is too large: {len(message.attributes)}; "
            f"a message has at most {MAX_ATTRIBUTES} attributes."
        )
    for key, value in message.attributes.items():
        if not key or len(key.encode()) > MAX_ATTRIBUTE_KEY_BYTES or key.startswith("goog"):
            raise StatusError.invalid(
                f"Invalid attribute key {key[:80]!r}: a key must have 1 to {MAX_ATTRIBUTE_KEY_BYTES} "
                "bytes, and must not begin with 'goog'."
            )
        if len(value.encode()) > MAX_ATTRIBUTE_VALUE_BYTES:
            raise StatusError.invalid(
                f"The value of attribute {key[:80]!r} is too large: "
                f"the maximum is {MAX_ATTRIBUTE_VALUE_BYTES} bytes."
            )
    if len(message.ordering_key.encode()) > MAX_ORDERING_KEY_BYTES:
        raise StatusError.invalid(f"The ordering key is too large: the maximum is {MAX_ORDERING_KEY_BYTES} bytes.")
    message.ClearField("message_id")
    message.ClearField("publish_time")
    return bytes(message.SerializeToString())
