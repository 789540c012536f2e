"""Takes apart what the Kinesis Producer Library packs into one record.

https://github.com/awslabs/amazon-kinesis-producer/blob/master/aggregation-format.md::

    0               4                  N          N+15
    +---+---+---+---+==================+---+...+---+
    |  MAGIC NUMBER | PROTOBUF MESSAGE |    MD5    |
    +---+---+---+---+==================+---+...+---+

The magic number is F3 89 9A C2, and the checksum is that of the protobuf message. The message is of proto2.
"""

import hashlib
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

MAGIC: Final = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES: Final = 16
_PACKAGE: Final = "refeed.kinesis"


class UserRecord(NamedTuple):
    """One record as its producer made it."""

    partition_key: str
    data: bytes


def split_aggregate(data: bytes) -> list[UserRecord] | None:
    """Return the records that ``data`` was packed of, in their order; None where it is a record of its own.

    One with the magic number whose checksum does not fit is a record of its own, as it is for Amazon's client
    library: a producer may begin its bytes like that. Every record of an aggregate counts, also where its
    partition key belongs to another shard, which happens while a stream is resharded: Amazon's library drops
    such an aggregate, because the Producer Library sends its records again, but others that pack don't.
    """
    if not data.startswith(MAGIC) or len(data) < len(MAGIC) + _DIGEST_BYTES:
        return None
    message, digest = data[len(MAGIC) : -_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    # A checksum, and no protection against anybody.
    if hashlib.md5(message, usedforsecurity=False).digest() != digest:
        return None
    try:
        found: Any = AGGREGATED_RECORD.FromString(message)
        # Not every runtime refuses a message without a field that is required.
        if not found.IsInitialized():
            return None
        keys = [key.decode() for key in found.partition_key_table]
        return [UserRecord(keys[record.partition_key_index], record.data) for record in found.records]
    except (DecodeError, UnicodeDecodeError, IndexError):
        return None


# message -> (field, number, label, type or the message's name); keys are bytes here, and decoded later
_MESSAGES: Final[dict[str, tuple[tuple[str, int, int, int | str], ...]]] = {
    "AggregatedRecord": (
        ("partition_key_table", 1, FieldDescriptorProto.LABEL_REPEATED, FieldDescriptorProto.TYPE_BYTES),
        ("explicit_hash_key_table", 2, FieldDescriptorProto.LABEL_REPEATED, FieldDescriptorProto.TYPE_BYTES),
        ("records", 3, FieldDescriptorProto.LABEL_REPEATED, f".{_PACKAGE}.Record"),
    ),
    "Tag": (
        ("key", 1, FieldDescriptorProto.LABEL_REQUIRED, FieldDescriptorProto.TYPE_BYTES),
        ("value", 2, FieldDescriptorProto.LABEL_OPTIONAL, FieldDescriptorProto.TYPE_BYTES),
    ),
    "Record": (
        ("partition_key_index", 1, FieldDescriptorProto.LABEL_REQUIRED, FieldDescriptorProto.TYPE_UINT64),
        ("explicit_hash_key_index", 2, FieldDescriptorProto.LABEL_OPTIONAL, FieldDescriptorProto.TYPE_UINT64),
        ("data", 3, FieldDescriptorProto.LABEL_REQUIRED, FieldDescriptorProto.TYPE_BYTES),
        ("tags", 4, FieldDescriptorProto.LABEL_REPEATED, f".{_PACKAGE}.Tag"),
    ),
}


def _make_class() -> Any:
    file = FileDescriptorProto(name="refeed/kinesis.proto", package=_PACKAGE, syntax="proto2")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, label, kind in fields:
            added = message.field.add(name=field, number=number)
            added.label = label  # type: ignore[assignment]
            if isinstance(kind, str):
                added.type = FieldDescriptorProto.TYPE_MESSAGE
                added.type_name = kind
            else:
                added.type = kind  # type: ignore[assignment]
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.AggregatedRecord"))


AGGREGATED_RECORD: Final = _make_class()
