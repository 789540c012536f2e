"""Objects that many messages of a batch have: each is read once."""

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Any, Final

import msgspec
from msgspec import UNSET

# Above this share of new bytes, looking objects up takes longer than reading them; judged after so many bytes.
_TRIED_BYTES: Final = 1 << 20
_MOST_READ: Final = 0.6


class SharedObjects:
    """The objects of one ``struct`` in a batch; equal texts are one object.

    ``inner`` are the fields whose objects are shared or have shared ones in them: the name in ``struct``, whether
    its own objects are shared, and its objects.
    """

    def __init__(
        self,
        struct: type[msgspec.Struct],
        structure: Callable[[Any], Hashable],
        inner: Sequence[tuple[str, bool, "SharedObjects"]],
    ) -> None:
        self.inner = inner
        self._struct = struct
        self._structure = structure
        self._objects: dict[bytes, Any] = {}
        self._structures: dict[int, Hashable] = {}
        self._asked_bytes = self._read_bytes = 0

    @cached_property
    def parse(self) -> Callable[[bytes], Any]:
        """Reads the text of one object."""
        return msgspec.json.Decoder(self._struct).decode

    def share(self, message: Any) -> Any:
        """Read the shared objects in ``message``, those of equal texts once, until :meth:`forget`; return it."""
        for name, are_shared, objects in self.inner:
            value = getattr(message, name)
            if value is None or value is UNSET:
                continue
            if are_shared:
                setattr(message, name, objects.read(bytes(value)))
            else:
                objects.share(value)
        return message

    def read(self, text: bytes) -> Any:
        """Return the object of ``text``, None for null."""
        self._asked_bytes += len(text)
        found = self._objects.get(text)
        if found is None and text != b"null":
            found = self._objects[text] = self.share(self.parse(text))
            # One that does not fit is not kept, and would count each time.
            self._read_bytes += len(text)
        return found

    def structure(self, message: Any) -> Hashable:
        """Return the structure of one of the objects, which is the same for all messages that have it."""
        found = self._structures.get(id(message))
        if found is None:
            found = self._structures[id(message)] = self._structure(message)
        return found

    def forget(self) -> tuple[int, int]:
        """Forget all objects; return the bytes of objects in all batches so far, and of those that were read."""
        self._objects.clear()
        self._structures.clear()
        found = [(self._asked_bytes, self._read_bytes), *(objects.forget() for _, _, objects in self.inner)]
        return sum(asked for asked, _ in found), sum(read for _, read in found)


def is_vain(asked_bytes: int, read_bytes: int) -> bool:
    """Whether too few objects came again."""
    return asked_bytes > _TRIED_BYTES and read_bytes > asked_bytes * _MOST_READ


def find_different(values: Sequence[Any], kind: type) -> tuple[list[Any], list[int | None]]:
    """Return the different objects of a ``kind``, and for each value the place of its object, None without one."""
    objects = {id(value): value for value in values if type(value) is kind}
    numbers = {key: number for number, key in enumerate(objects)}
    return list(objects.values()), list(map(numbers.get, map(id, values)))
