"""What messages of an inferred source are known to look like: their structures, and fields that say nothing."""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import product
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
_IN_NO_MESSAGE: Final = b"\0"

_INDEX: Final = re.compile(r"\[[0-9]+\]")

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """What all messages of one structure have in common.

    ``unknown`` is the text of their ``_unknown`` column, and ``paths`` are the paths in it as they are counted.
    The text has the order of the message, so a message has to have ``names``, each with its value, in their order.
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
        names = self._names_in_order(data, unknown) if len(unknown) > 1 else ()
        if len(self._known) >= _MAX_STRUCTURES:
            self._known.clear()
        text = to_json(unknown) if unknown else None
        self._known[structure] = Look(text, tuple(map(counted_path, unknown)), names)

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

    def _names_in_order(self, data: bytes, unknown: Mapping[str, Any]) -> tuple[bytes, ...]:
        """Return what to look for in messages of the structure of ``data``, in this order."""
        exact = {path[:end] for path in self.beside for end in range(1, len(path))}
        places = list(_places(parse_json(str(data, "utf-8")), (), exact))
        said = {(_path_of(path)[-1], to_json(value)) for path, value in unknown.items()}
        wanted = Counter((path[-1], text) for path, text in places if (path[-1], text) in said)
        # Fields of one name are told apart by the records around them.
        around = {name for path, text in places if wanted[path[-1], text] > 1 for name in path[:-1]}
        wanted.update(product(around, "{["))
        found = [(path[-1], text) for path, text in places if (path[-1], text) in wanted]
        for blank in ("", " "):
            needles = tuple(f'"{name}":{blank}{text}'.encode() for name, text in found)
            # Lists of one structure differ in length, and so in how often they have a name.
            if all(data.count(needle) == number for needle, number in Counter(needles).items()):
                return needles
        return (_IN_NO_MESSAGE,)


def _path_of(path: str) -> Path:
    return tuple(_INDEX.sub("", path).split("."))


def _is_odd(path: str) -> bool:
    """Whether a path leads through a name that it quotes."""
    return "`" in path


def _places(record: Mapping[str, Any], at: Path, exact: AbstractSet[Path]) -> Iterator[tuple[Path, str]]:
    """Yield each field that says nothing or has fields in it, with how its text begins.

    Of the lists only those ``exact`` have the same elements in all messages of one structure.
    """
    for name, value in record.items():
        path = (*at, name)
        if isinstance(value, dict) and value:
            yield path, "{"
            yield from _places(value, path, exact)
        elif isinstance(value, list) and value and path in exact:
            yield path, "["
            for element in value:
                yield from _places(element, path, exact)
        elif value in _SAYING_NOTHING:
            yield path, to_json(value)
