"""The options of our ``.proto``: read from any descriptor by their numbers, whatever file gave them names."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from model.errors import DescriptorError

# What people import, as docs/pipeline.md shows; its descriptor set beside it has the options' names and numbers.
OPTIONS_PROTO: Final = Path(__file__).parent / "proto" / "refeed" / "options.proto"
_DESCRIPTORS: Final = OPTIONS_PROTO.with_suffix(".desc")
# google.api.field_behavior, a repeated enum in which REQUIRED is 2.
_FIELD_BEHAVIOR: Final = 1052
_REQUIRED: Final = 2


@dataclass(frozen=True, slots=True)
class MessageOptions:
    """The options of a message, which are about its table."""

    table_reference: str
    table_description: str


@dataclass(frozen=True, slots=True)
class FieldOptions:
    """The options of a field, which are about its column, as written; an empty one is not set."""

    description: str = ""
    categories: str = ""
    type: str = ""
    rename: str = ""
    append: str = ""
    regex_extract: str = ""
    regex_replace: str = ""
    local_to_utc: str = ""
    hidden: str = ""
    use_default_value: str = ""
    coalesce: str = ""
    divide: str = ""
    filter: str = ""
    policy_tags: str = ""
    is_required: bool = False

    @property
    def is_hidden(self) -> bool:
        """Whether the field gets no column."""
        return self.hidden.lower() == "true"

    def tags(self, pattern: re.Pattern[str]) -> tuple[str, ...]:
        """Return the policy tags in which ``pattern`` is found, each once."""
        listed = [tag.strip() for text in (self.categories, self.policy_tags) for tag in text.split(",")]
        return tuple(dict.fromkeys(tag for tag in listed if tag and pattern.search(tag)))


def read_message_options(message: Descriptor) -> MessageOptions:
    """Return the options of ``message``.

    Raises:
        DescriptorError: one is no text.
    """
    values = _parse("MessageOptions", message.GetOptions().SerializeToString(), message.full_name)
    return MessageOptions(values.table_reference, values.table_description)


def read_field_options(field: FieldDescriptor) -> FieldOptions:
    """Return the options of ``field``; proto2's ``required`` and google.api.field_behavior's REQUIRED are one.

    Raises:
        DescriptorError: one is no text.
    """
    serialized = field.GetOptions().SerializeToString()
    if not serialized:
        return FieldOptions(is_required=field.is_required)
    values = _parse("FieldOptions", serialized, field.full_name)
    written = {option.name: text for option, text in values.ListFields() if option.number != _FIELD_BEHAVIOR}
    return FieldOptions(**written, is_required=field.is_required or _REQUIRED in values.field_behavior)


def _parse(kind: str, serialized: bytes, name: str) -> Any:
    try:
        return _VALUES[kind].FromString(serialized)
    except DecodeError as exc:
        raise DescriptorError(
            f"{name} has an option whose number Refeed reserves, but whose value is not a string: {exc}"
        ) from exc


def _build_values() -> dict[str, Any]:
    """Return messages whose fields have the options' numbers: parsing options as one of them reads the options."""
    described = next(
        file for file in FileDescriptorSet.FromString(_DESCRIPTORS.read_bytes()).file if file.package == "refeed"
    )
    values = FileDescriptorProto(name="refeed/option_values.proto", package="refeed.values", syntax="proto3")
    messages = {name: values.message_type.add(name=name) for name in ("MessageOptions", "FieldOptions")}
    for option in described.extension:
        field = messages[option.extendee.rpartition(".")[2]].field.add()
        field.MergeFrom(option)
        field.ClearField("extendee")
    messages["FieldOptions"].field.add(
        name="field_behavior",
        number=_FIELD_BEHAVIOR,
        type=FieldDescriptorProto.TYPE_INT32,
        label=FieldDescriptorProto.LABEL_REPEATED,
    )
    pool = DescriptorPool()
    pool.AddSerializedFile(values.SerializeToString())
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"refeed.values.{name}")) for name in messages}


_VALUES: Final = _build_values()
