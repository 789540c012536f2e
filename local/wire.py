"""Bytes of google.pubsub.v1 requests and responses: cut, spliced and joined without decoding messages.

A stored record is a piece of a PullResponse as it goes over the wire, with room for the ack id::

    0a LENGTH                 PullResponse.received_messages (field 1)
      0a 20 <28 zeros> CRC    ReceivedMessage.ack_id (field 1), patched in at delivery
      12 LENGTH               ReceivedMessage.message (field 2)
        <the producer's bytes>
        1a 10 <16 digits>     PubsubMessage.message_id (field 3)
        22 LENGTH <timestamp> PubsubMessage.publish_time (field 4)

so that a response is one contiguous read of the log plus one vector write of ack ids. Until then the room holds
four bytes of checksum: crc32c of the time field and the producer's bytes, xor the message id's low half. All other
bytes follow from these: a record is checked by building it again, and found in a damaged log by its zeros.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError
from google.pubsub_v1 import types
from google_crc32c import extend, value

from local.seqset import Seqs
from local.status import StatusError

Bytes = npt.NDArray[np.uint8]

# The plain protobuf classes below google.pubsub_v1's wrappers.
PubsubMessage: Final[Any] = types.PubsubMessage.pb()
AcknowledgeRequest: Final[Any] = types.AcknowledgeRequest.pb()
ModifyAckDeadlineRequest: Final[Any] = types.ModifyAckDeadlineRequest.pb()

ACK_ID_BYTES: Final = 32
MESSAGE_ID_DIGITS: Final = 16

_CHECKSUM_BYTES: Final = 4
_ROOM: Final = b"\x0a\x20" + b"0" * (ACK_ID_BYTES - _CHECKSUM_BYTES)
# In the version before, the room held nothing.
_NO_CHECKSUM: Final = b"0" * _CHECKSUM_BYTES
_ACK_FIELD_BYTES: Final = 2 + ACK_ID_BYTES
_ID_FIELD_BYTES: Final = 2 + MESSAGE_ID_DIGITS
_32_BITS: Final = (1 << 32) - 1
_MANY: Final = 16
_CONTINUES: Final = 0x80
_MAX_SHIFT: Final = 70
_HEX: Final = np.array([f"{byte:02x}".encode() for byte in range(256)], dtype="S2").view(np.uint16)
_NOT_HEX: Final = 255
_NIBBLES: Final = np.full(256, _NOT_HEX, dtype=np.uint8)
_NIBBLES[np.frombuffer(b"0123456789abcdef", dtype=np.uint8)] = np.arange(16, dtype=np.uint8)
_ACK_COLUMNS: Final = np.arange(ACK_ID_BYTES)
# An ack id's first half: 16 bits that name the subscription, 48 that name the message.
SEQ_BITS: Final = 48
ACK_NUMBERS: Final = 1 << 16
_64_BITS: Final = (1 << 64) - 1


def encode_varint(number: int) -> bytes:
    """Return ``number`` (not negative) as a protobuf varint.

    Example:
        >>> encode_varint(300).hex()
        'ac02'
    """
    out = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits a byte
        out.append(number & 0x7F | _CONTINUES)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(raw: bytes, position: int) -> tuple[int, int]:
    """Return the varint at ``position`` and where it ends.

    Raises:
        IndexError: the bytes end inside it, or it is longer than 64 bits take.
    """
    number = shift = 0
    while shift < _MAX_SHIFT:
        byte = raw[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < _CONTINUES:
            return number, position
        shift += 7
    raise IndexError


@lru_cache(maxsize=8192)
def _record_head(message_length: int) -> tuple[bytes, bytes]:
    """Return what stands before and after the checksum."""
    inner = b"\x12" + encode_varint(message_length)
    return b"\x0a" + encode_varint(_ACK_FIELD_BYTES + len(inner) + message_length) + _ROOM, inner


@lru_cache(maxsize=64)
def _time_field(publish_time_us: int) -> tuple[bytes, int]:
    """Return PubsubMessage.publish_time and its checksum."""
    seconds, microseconds = divmod(publish_time_us, 1_000_000)
    timestamp = b"\x08" + encode_varint(seconds)
    if microseconds:
        timestamp += b"\x10" + encode_varint(microseconds * 1000)
    field = b"\x22" + encode_varint(len(timestamp)) + timestamp
    return field, value(field)


def build_records(bodies: Sequence[bytes], first_id: int, publish_time_us: int) -> tuple[bytes, list[int]]:
    """Return the stored records of ``bodies``, joined, and the length in bytes of each.

    ``first_id`` is the first message's id, the others follow it; ``publish_time_us`` is microseconds since 1970.
    """
    tail, seed = _time_field(publish_time_us)
    spliced = _ID_FIELD_BYTES + len(tail)
    pieces: list[bytes] = []
    lengths: list[int] = []
    checksums = _checksums(bodies, seed, first_id)
    for number, body, checksum in zip(range(first_id, first_id + len(bodies)), bodies, checksums, strict=True):
        head, inner = _record_head(len(body) + spliced)
        pieces += (head, checksum, inner, body, b"\x1a\x10%d" % number, tail)
        lengths.append(len(head) + _CHECKSUM_BYTES + len(inner) + len(body) + spliced)
    return b"".join(pieces), lengths


def _checksums(bodies: Sequence[bytes], seed: int, first_id: int) -> list[bytes]:
    checksums = [extend(seed, body) for body in bodies]
    if len(bodies) < _MANY:
        return [
            (checksum ^ number & _32_BITS).to_bytes(_CHECKSUM_BYTES, "little")
            for number, checksum in enumerate(checksums, first_id)
        ]
    # The same for many at once, for a third of what it costs one by one.
    ids = np.arange(first_id, first_id + len(bodies)).astype("<u4")
    mixed: list[bytes] = (np.array(checksums, dtype="<u4") ^ ids).view(f"V{_CHECKSUM_BYTES}").tolist()
    return mixed


def is_whole(record: bytes, message_id: int, publish_time_us: int) -> bool:
    """Whether ``record`` is, byte for byte, as ``build_records`` made it."""
    tail, _ = _time_field(publish_time_us)
    try:
        body = read_message(record)[: -_ID_FIELD_BYTES - len(tail)]
    except IndexError:
        return False
    return build_records([body], message_id, publish_time_us)[0] == record


class Record(NamedTuple):
    """A whole record and its place; ``is_checked`` is false for one of the version before, without a checksum."""

    start: int
    end: int
    message_id: int
    publish_time: int
    is_checked: bool


def find_records(raw: bytes, position: int = 0) -> Iterator[Record]:
    """Yield the whole records in ``raw`` from ``position`` on, whatever stands between them."""
    while (room := raw.find(_ROOM, position)) >= 0:
        try:
            record = _read_record(raw, room, position)
        except (IndexError, ValueError):
            record = None
        if record is not None:
            yield record
        position = room + 1 if record is None else record.end


def _read_record(raw: bytes, room: int, first: int) -> Record | None:
    for start in range(room - 2, max(first, room - 5) - 1, -1):
        if raw[start] == 0x0A and read_varint(raw, start + 1)[1] == room:  # noqa: PLR2004 - field 1
            break
    else:
        return None
    end = room + read_varint(raw, start + 1)[0]
    tail = _time_field_start(raw, end)
    publish_time = _read_time(raw[tail + 2 : end])
    message_id = int(raw[tail - MESSAGE_ID_DIGITS : tail])
    record = raw[start:end]
    if is_whole(record, message_id, publish_time):
        return Record(start, end, message_id, publish_time, is_checked=True)
    at = room - start + len(_ROOM)
    if record[at : at + _CHECKSUM_BYTES] == _NO_CHECKSUM:
        checked = add_checksums(record, [len(record)], message_id, publish_time)
        if checked[:at] + _NO_CHECKSUM + checked[at + _CHECKSUM_BYTES :] == record:
            return Record(start, end, message_id, publish_time, is_checked=False)
    return None


def _time_field_start(raw: bytes, end: int) -> int:
    """Return where the publish_time field that ends at ``end`` begins: a time takes 2 to 12 bytes."""
    for length in range(2, 13):
        if raw[end - length - 2] == 0x22 and raw[end - length - 1] == length:  # noqa: PLR2004 - field 4
            return end - length - 2
    raise IndexError


def _read_time(timestamp: bytes) -> int:
    seconds, position = read_varint(timestamp, 1)
    nanoseconds = read_varint(timestamp, position + 1)[0] if position < len(timestamp) else 0
    return seconds * 1_000_000 + nanoseconds // 1000


def add_checksums(records: bytes, lengths: Sequence[int], first_id: int, publish_time_us: int) -> bytes:
    """Return records of the version before with their checksums."""
    tail, _ = _time_field(publish_time_us)
    bodies: list[bytes] = []
    start = 0
    for length in lengths:
        bodies.append(read_message(records[start : start + length])[: -_ID_FIELD_BYTES - len(tail)])
        start += length
    return build_records(bodies, first_id, publish_time_us)[0]


def remove_checksums(records: bytes, lengths: Seqs) -> bytes:
    """Return records as the version before wrote them."""
    buffer = np.frombuffer(records, dtype=np.uint8).copy()
    positions = np.cumsum(lengths) - lengths + _head_lengths(lengths) + len(_ROOM)
    buffer[positions[:, None] + np.arange(_CHECKSUM_BYTES)] = _NO_CHECKSUM[0]
    return buffer.tobytes()


def build_publish_response(first_id: int, count: int) -> bytes:
    """Return the bytes of a PublishResponse with ``count`` ids from ``first_id`` on."""
    return b"".join([b"\x0a\x10%d" % number for number in range(first_id, first_id + count)])


def _head_lengths(lengths: Seqs) -> Seqs:
    """Return how many bytes stand before each record's ack field: a tag and the varint of what follows it."""
    # A varint of w bytes ends at 128**w - 1; the record then has 1 + w bytes more.
    limits = np.array([128**width + width for width in (1, 2, 3)], dtype=np.int64)
    return np.searchsorted(limits, lengths, side="left").astype(np.int64) + 2


def fill_ack_ids(buffer: Bytes, lengths: Seqs, seqs: Seqs, lease: int, subscription: int) -> None:
    """Write the ack ids of one delivery into the records in ``buffer``, in place."""
    pairs = np.empty((len(seqs), 2), dtype=">u8")
    pairs[:, 0] = seqs.astype(np.uint64) | np.uint64(subscription << SEQ_BITS)
    pairs[:, 1] = lease
    characters = _HEX[pairs.view(np.uint8)].view(np.uint8).reshape(len(seqs), ACK_ID_BYTES)
    starts = np.cumsum(lengths) - lengths
    positions = starts + _head_lengths(lengths) + 2
    buffer[positions[:, None] + _ACK_COLUMNS] = characters


def add_delivery_attempts(records: bytes, lengths: Sequence[int], attempts: Sequence[int]) -> bytes:
    """Return the records with ReceivedMessage.delivery_attempt (field 3), which only dead-letter policies give."""
    pieces: list[bytes] = []
    start = 0
    for length, attempt in zip(lengths, attempts, strict=True):
        size, position = read_varint(records, start + 1)
        field = b"\x18" + encode_varint(attempt)
        pieces += (b"\x0a", encode_varint(size + len(field)), records[position : start + length], field)
        start += length
    return b"".join(pieces)


def read_message(record: bytes) -> bytes:
    """Return the PubsubMessage bytes inside a stored record."""
    _, position = read_varint(record, 1)
    _, position = read_varint(record, position + _ACK_FIELD_BYTES + 1)
    return record[position:]


def read_attributes(record: bytes) -> dict[str, str]:
    """Return the attributes of a stored record, decoded."""
    return dict(PubsubMessage.FromString(read_message(record)).attributes)


def read_ordering_key(record: bytes) -> str:
    """Return the ordering key of a stored record, decoded; empty when it has none."""
    return str(PubsubMessage.FromString(read_message(record)).ordering_key)


def parse_acknowledge(raw: bytes) -> tuple[str, "AckIds"]:
    """Return the subscription and the ack ids of an AcknowledgeRequest.

    Raises:
        StatusError: INVALID_ARGUMENT, the bytes are no such request or an ack id is none of this server's.
    """
    try:
        name, position = _read_name(raw)
        ids = _read_ack_fields(raw, position, 0x12)
        if ids is None:
            request = AcknowledgeRequest.FromString(raw)
            name, ids = request.subscription, parse_ack_ids(request.ack_ids)
    except (IndexError, DecodeError, UnicodeDecodeError) as exc:
        raise StatusError.invalid("The request is not an AcknowledgeRequest.") from exc
    return name, ids


def parse_modify_ack_deadline(raw: bytes) -> tuple[str, "AckIds", int]:
    """Return the subscription, the ack ids and the seconds of a ModifyAckDeadlineRequest.

    Raises:
        StatusError: INVALID_ARGUMENT, the bytes are no such request or an ack id is none of this server's.
    """
    try:
        name, position = _read_name(raw)
        seconds = 0
        if raw.startswith(b"\x18", position):  # field 3, ack_deadline_seconds
            seconds, position = read_varint(raw, position + 1)
        ids = _read_ack_fields(raw, position, 0x22)
        if ids is None:
            request = ModifyAckDeadlineRequest.FromString(raw)
            name, seconds, ids = request.subscription, request.ack_deadline_seconds, parse_ack_ids(request.ack_ids)
    except (IndexError, DecodeError, UnicodeDecodeError) as exc:
        raise StatusError.invalid("The request is not a ModifyAckDeadlineRequest.") from exc
    return name, ids, seconds


class AckIds:
    """Ack ids, taken apart: ``subscription`` number, ``seqs`` and ``leases``, one element each."""

    __slots__ = ("leases", "seqs", "subscription")

    def __init__(self, characters: Bytes) -> None:
        nibbles = _NIBBLES[characters]
        wrong = (nibbles == _NOT_HEX).any(axis=1)
        if wrong.any():
            shown = characters[np.argmax(wrong)].tobytes().decode(errors="replace")
            raise invalid_ack_id(shown)
        pairs = np.ascontiguousarray(nibbles[:, 0::2] << 4 | nibbles[:, 1::2]).view(">u8")
        first = pairs[:, 0].astype(np.uint64)
        self.subscription = (first >> np.uint64(SEQ_BITS)).astype(np.int64)
        self.seqs = (first & np.uint64((1 << SEQ_BITS) - 1)).astype(np.int64)
        self.leases = pairs[:, 1].astype(np.uint64).view(np.int64)

    def __len__(self) -> int:
        return len(self.seqs)

    def render(self) -> list[str]:
        """Return the ids as their texts."""
        first = self.seqs | (self.subscription << SEQ_BITS)
        return [
            f"{a & _64_BITS:016x}{b & _64_BITS:016x}"
            for a, b in zip(first.tolist(), self.leases.tolist(), strict=True)
        ]

    def select(self, wanted: npt.NDArray[np.bool_]) -> "AckIds":
        """Return those ids for which ``wanted`` is true."""
        part = object.__new__(AckIds)
        part.subscription, part.seqs, part.leases = (
            self.subscription[wanted],
            self.seqs[wanted],
            self.leases[wanted],
        )
        return part


def invalid_ack_id(text: str) -> StatusError:
    """Return the error for an ack id that is none."""
    return StatusError.invalid(f"You have passed an invalid ack ID to the service (ack_id={text[:80]}).")


def parse_ack_ids(texts: Iterable[str]) -> AckIds:
    """Return the ack ids in ``texts``, taken apart.

    Raises:
        StatusError: INVALID_ARGUMENT, one of them is none of this server's.
    """
    encoded = [text.encode() for text in texts]
    for text in encoded:
        if len(text) != ACK_ID_BYTES:
            raise invalid_ack_id(text.decode())
    return AckIds(np.frombuffer(b"".join(encoded), dtype=np.uint8).reshape(-1, ACK_ID_BYTES))


def _read_name(raw: bytes) -> tuple[str, int]:
    if not raw or raw[0] != 0x0A:  # noqa: PLR2004 - field 1, subscription
        return "", 0
    length, start = read_varint(raw, 1)
    return raw[start : start + length].decode(), start + length


def _read_ack_fields(raw: bytes, position: int, tag: int) -> AckIds | None:
    """Return the ack ids when the rest of the request is nothing but ack ids of our length."""
    rest = len(raw) - position
    if rest <= 0 or rest % _ACK_FIELD_BYTES:
        return None
    table = np.frombuffer(raw, dtype=np.uint8, offset=position).reshape(-1, _ACK_FIELD_BYTES)
    if not ((table[:, 0] == tag).all() and (table[:, 1] == ACK_ID_BYTES).all()):
        return None
    return AckIds(table[:, 2:])
