"""The messages of google.pubsub.v1 that carry messages, without Google's client library.

Importing the client costs a worker 0.3 s of CPU and 25 MB; a task needs five message types of it. A test compares
them with Google's own.
"""

from typing import Final

from google.protobuf import timestamp_pb2
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

_PACKAGE: Final = "google.pubsub.v1"
_STRING: Final = FieldDescriptorProto.TYPE_STRING
_BYTES: Final = FieldDescriptorProto.TYPE_BYTES
_INT32: Final = FieldDescriptorProto.TYPE_INT32

# message -> (field, number, type or the message's name, is it repeated)
_MESSAGES: Final[dict[str, tuple[tuple[str, int, int | str, bool], ...]]] = {
    "PubsubMessage": (
        ("data", 1, _BYTES, False),
        ("attributes", 2, f".{_PACKAGE}.PubsubMessage.AttributesEntry", True),
        ("message_id", 3, _STRING, False),
        ("publish_time", 4, ".google.protobuf.Timestamp", False),
        ("ordering_key", 5, _STRING, False),
    ),
    "ReceivedMessage": (
        ("ack_id", 1, _STRING, False),
        ("message", 2, f".{_PACKAGE}.PubsubMessage", False),
        ("delivery_attempt", 3, _INT32, False),
    ),
    "PullResponse": (("received_messages", 1, f".{_PACKAGE}.ReceivedMessage", True),),
    "PublishRequest": (("topic", 1, _STRING, False), ("messages", 2, f".{_PACKAGE}.PubsubMessage", True)),
    "PublishResponse": (("message_ids", 1, _STRING, True),),
}


def find_message(name: str) -> Descriptor:
    """Return the descriptor of google.pubsub.v1's message ``name``, one of the five that carry messages."""
    return _POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}")


def _build_pool() -> DescriptorPool:
    file = FileDescriptorProto(
        name="refeed/pubsub.proto",
        package=_PACKAGE,
        syntax="proto3",
        dependency=[timestamp_pb2.DESCRIPTOR.name],
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field in fields:
            _add_field(message, *field)
        if name == "PubsubMessage":
            entry = message.nested_type.add(name="AttributesEntry")
            entry.options.map_entry = True
            _add_field(entry, "key", 1, _STRING, is_repeated=False)
            _add_field(entry, "value", 2, _STRING, is_repeated=False)
    pool = DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return pool


def _add_field(message: DescriptorProto, name: str, number: int, kind: int | str, is_repeated: bool) -> None:
    field = message.field.add(name=name, number=number)
    field.label = FieldDescriptorProto.LABEL_REPEATED if is_repeated else FieldDescriptorProto.LABEL_OPTIONAL
    if isinstance(kind, str):
        field.type = FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = kind
    else:
        field.type = kind  # type: ignore[assignment]


_POOL: Final = _build_pool()
