"""Counts the names in JSON texts without parsing them, so that a name that comes twice is found."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

# More than any number of names: no count is equal to it.
_UNKNOWN: Final = -(1 << 63)
# Larger arrays of numpy's are slower: their memory comes from the system, and goes back to it.
_COUNTED_BYTES: Final = 1 << 17
_SPACE, _QUOTE, _COLON = b' ":'
# No name ends with one of these. One of them stands before each text that begins with a colon.
_BEFORE_NO_END: Final = " ,:["
_IS_BEFORE_NO_END: Final = np.isin(np.arange(256), list(rf"\{_BEFORE_NO_END}".encode()))
_NAME_AND_BLANK: Final = re.compile(rb'"[ \t\n\r]+:')


def is_plain(name: str) -> bool:
    """Whether :func:`count_names` counts the name: it needs no backslash, and ends like no beginning of a text.

    Example:
        >>> is_plain("customer id"), is_plain('a"b'), is_plain("a:")
        (True, False, False)
    """
    return name.isprintable() and '"' not in name and "\\" not in name and name[-1:] not in _BEFORE_NO_END


def count_names(texts: Sequence[bytes]) -> int:
    """Return how many plain names the objects of JSON texts have, or more; a negative number where it can't tell.

    Example:
        >>> count_names([b'{"id":1,"lines":[{"id":2},{"id":3}]}', b'{"id":"a"}'])
        5
    """
    return sum(map(_count, _parts(texts)))


def _parts(texts: Sequence[bytes]) -> Iterator[bytes]:
    start = size = 0
    for at, text in enumerate(texts):
        size += len(text)
        if size >= _COUNTED_BYTES:
            yield b"".join(texts[start : at + 1])
            start, size = at + 1, 0
    yield b"".join(texts[start:])


def _count(text: bytes) -> int:
    characters = np.frombuffer(text, np.uint8)
    is_colon, before = characters[2:] == _COLON, characters[1:-1]
    if (is_colon & (before <= _SPACE)).any() and _NAME_AND_BLANK.search(text):
        return _UNKNOWN
    quotes = np.flatnonzero(is_colon & (before == _QUOTE))
    return len(quotes) - int(np.count_nonzero(_IS_BEFORE_NO_END[characters[quotes]]))
