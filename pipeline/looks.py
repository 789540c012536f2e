"""What messages of an inferred source are known to look like: their structures, and fields that say nothing."""

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from model.widening import to_json
from pipeline.paths import counted_path
from pipeline.values import parse_json

_MAX_STRUCTURES: Final = 10_000
# A bound, because a producer may use values as names: each new name replaces the form.
_MAX_BESIDE: Final = 200
_FEW: Final = 1000
_SAYING_NOTHING: Final[tuple[Any, ...]] = (None, [], {})
# JSON has no such character but as an escape.
_IN_NO_MESSAGE: Final = "\0"

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """What all messages of one structure have in common.

    ``unknown`` is the text of their ``_unknown`` column, and ``paths`` are the paths in it as they are counted.
    The text has the order of the message, so a message has to have ``names`` in their order.
    """

    unknown: str | None
    paths: tuple[str, ...]
    names: tuple[bytes, ...]

    def fits(self, data: bytes) -> bool:
        """Whether the message has its unknown fields in the order of ``unknown``."""
        at = 0
        for name in self.names:
            at = data.find(name, at) + 1
            if not at:
                return False
        return True


class Looks:
    """The looks that a decoder has met in messages that became rows.

    ``beside`` are the fields that have no column, because they were null, [] or {} in each message so far. While
    the decoder ``is_noting`` what messages look like, it has to see the first message of each structure.
    """

    def __init__(self, is_noting: Callable[[], bool]) -> None:
        self.beside: frozenset[Path] = frozenset()
        self._is_noting = is_noting
        self._known: dict[Hashable, Look] = {}

    @property
    def are_few(self) -> bool:
        """Whether so few looks are known that new ones are no sign of messages that all differ."""
        return len(self._known) < _FEW

    @property
    def matter(self) -> bool:
        """Whether a row depends on the look of its message."""
        return bool(self.beside) or self._is_noting()

    def get(self, structure: Hashable) -> Look | None:
        """Return the look of messages of this structure, None for one that is new."""
        return self._known.get(structure)

    def learn(self, structure: Hashable, data: bytes, unknown: Mapping[str, Any]) -> None:
        """Take messages of ``structure`` from now on; ``data`` is one of them, with ``unknown`` beside its row."""
        wanted = {name for path in unknown for name in _path_of(path)} if len(unknown) > 1 else set()
        names = _names_in(parse_json(str(data, "utf-8")), wanted) if wanted else ()
        if len(self._known) >= _MAX_STRUCTURES:
            self._known.clear()
        text = to_json(unknown) if unknown else None
        needles = tuple(f'"{name}":'.encode() for name in names)
        self._known[structure] = Look(text, tuple(map(counted_path, unknown)), needles)

    def meet(self, unknown: Mapping[str, Any]) -> bool:
        """Take up the fields in ``unknown`` that say nothing; return whether one of them is new."""
        if len(self.beside) >= _MAX_BESIDE:
            return False
        found = {
            _path_of(path) for path, value in unknown.items() if value in _SAYING_NOTHING and not _is_odd(path)
        }
        if found <= self.beside:
            return False
        self.beside |= found
        self._known.clear()
        return True


def _path_of(path: str) -> Path:
    return tuple(path.split("."))


def _is_odd(path: str) -> bool:
    """Whether a path leads through a list, or through a name that it quotes."""
    return "[" in path or "`" in path


def _names_in(value: Any, wanted: Collection[str]) -> Iterator[str]:
    """Yield the names in a value that are wanted, in their order."""
    if isinstance(value, dict):
        for name, child in value.items():
            if name in wanted:
                yield name
            yield from _names_in(child, wanted)
    elif isinstance(value, list) and any(True for child in value for _ in _names_in(child, wanted)):
        # Lists of one structure differ in length, and so in how often they have a name.
        yield _IN_NO_MESSAGE
