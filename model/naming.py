"""Words of messages: names that a misspelt one may mean, and counts of things."""

from collections.abc import Collection
from difflib import get_close_matches
from typing import Final

_MAX_CLOSE_NAMES: Final = 3


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return a sentence, after a blank, with the known names that are close to ``name``; empty when none is.

    Example:
        >>> did_you_mean("ordres", ["orders", "members"])
        ' Did you mean orders?'
    """
    close = get_close_matches(name, known, n=_MAX_CLOSE_NAMES)
    return f" Did you mean {' or '.join(close)}?" if close else ""


def counted(count: int, noun: str) -> str:
    """Return a count with its noun.

    Example:
        >>> counted(1, "message"), counted(12_000, "message")
        ('1 message', '12,000 messages')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
