"""Descriptor sets: files of ``protoc --include_imports --descriptor_set_out``, opened without generated code."""

import hashlib
from collections.abc import Iterable, Iterator

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from model.errors import DescriptorError

_VERSION_DIGITS = 16


class DescriptorSet:
    """The files of one or more descriptor sets, and the messages in them.

    Raises:
        DescriptorError: the bytes are no descriptor set, an import is missing, or two sets define one file
            differently.
    """

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._files: dict[str, FileDescriptorProto] = {}
        for part in parts:
            self._take(part)
        self._pool = DescriptorPool()
        self._added: set[str] = set()
        for name in self._files:
            self._add(name, ())

    def has_message(self, name: str) -> bool:
        """Whether a message has the full name ``name``."""
        try:
            self._pool.FindMessageTypeByName(name)
        except KeyError:
            return False
        return True

    def message(self, name: str) -> Descriptor:
        """Return the message with the full name ``name``.

        Raises:
            DescriptorError: there is none.
        """
        try:
            return self._pool.FindMessageTypeByName(name)
        except KeyError as exc:
            raise DescriptorError(f"No descriptor set has a message {name}.", name=name) from exc

    def subset(self, message: Descriptor) -> bytes:
        """Return a descriptor set with the file of ``message`` and its imports, and nothing else."""
        found: dict[str, FileDescriptorProto] = {}

        def take(name: str) -> None:
            if name not in found:
                found[name] = self._files[name]
                for dependency in self._files[name].dependency:
                    take(dependency)

        take(message.file.name)
        ordered = [found[name] for name in sorted(found)]
        return FileDescriptorSet(file=ordered).SerializeToString(deterministic=True)

    def _take(self, part: bytes) -> None:
        try:
            files = FileDescriptorSet.FromString(part).file
        except DecodeError as exc:
            raise DescriptorError(
                "The file is not a descriptor set. Make it with protoc --descriptor_set_out."
            ) from exc
        if not files:
            raise DescriptorError(
                "The descriptor set contains no file. Make it with protoc --include_imports --descriptor_set_out."
            )
        for file in files:
            known = self._files.setdefault(file.name, file)
            if known.SerializeToString(deterministic=True) != file.SerializeToString(deterministic=True):
                raise DescriptorError(
                    f"{file.name} is defined differently in two descriptor sets.", file=file.name
                )

    def _add(self, name: str, importers: tuple[str, ...]) -> None:
        if name in self._added:
            return
        if name in importers:
            raise DescriptorError(f"{name} imports itself through {' and '.join(importers)}.", file=name)
        file = self._files.get(name)
        if file is None:
            raise DescriptorError(
                f"{importers[-1]} imports {name}, but the descriptor set does not contain it. Use "
                "protoc --include_imports.",
                file=name,
            )
        for dependency in file.dependency:
            self._add(dependency, (*importers, name))
        try:
            self._pool.AddSerializedFile(file.SerializeToString())
        except (TypeError, ValueError) as exc:
            raise DescriptorError(f"{name} can't be used: {exc}", file=name) from exc
        self._added.add(name)


def schema_version(message: Descriptor) -> str:
    """Return a hash over ``message`` and every message and enum it reaches, options too: 16 hex digits.

    It changes when what a row looks like may change, and not when another message of the same file does.
    """
    digest = hashlib.sha256()
    for name, serialized in sorted(_reached(message, set())):
        digest.update(f"{name}\n{len(serialized)}\n".encode())
        digest.update(serialized)
    return digest.hexdigest()[:_VERSION_DIGITS]


def _reached(message: Descriptor, seen: set[str]) -> Iterator[tuple[str, bytes]]:
    if message.full_name in seen:
        return
    seen.add(message.full_name)
    own = message_proto(message)
    del own.nested_type[:]
    del own.enum_type[:]
    yield message.full_name, own.SerializeToString(deterministic=True)
    for field in message.fields:
        if field.message_type is not None:
            yield from _reached(field.message_type, seen)
        if field.enum_type is not None and field.enum_type.full_name not in seen:
            seen.add(field.enum_type.full_name)
            values = ",".join(f"{value.name}={value.number}" for value in field.enum_type.values)
            yield field.enum_type.full_name, values.encode()


def message_proto(message: Descriptor) -> DescriptorProto:
    """Return a copy of the proto that the descriptor was made of."""
    proto = DescriptorProto()
    message.CopyToProto(proto)
    return proto
