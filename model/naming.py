"""Words of messages: names that a misspelt one may mean, counts of things, and durations."""

from collections.abc import Collection
from difflib import get_close_matches
from typing import Final

_MAX_CLOSE_NAMES: Final = 3
_FEW_SECONDS: Final = 10.0
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


def did_you_mean(name: str, known: Collection[str], *, prefix: str = "") -> str:
    """Return a sentence, after a blank, with the known names that are close to ``name``; empty when none is.

    ``prefix`` is what all of them begin with.

    Example:
        >>> did_you_mean("ordres", ["orders", "members"])
        ' Did you mean orders?'
    """
    ends = {each.removeprefix(prefix): each for each in known}
    close = [ends[end] for end in get_close_matches(name.removeprefix(prefix), ends, n=_MAX_CLOSE_NAMES)]
    return f" Did you mean {' or '.join(close)}?" if close else ""


def counted(count: int, noun: str) -> str:
    """Return a count with its noun.

    Example:
        >>> counted(1, "message"), counted(12_000, "message")
        ('1 message', '12,000 messages')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def render_duration(seconds: float) -> str:
    """Return a duration as a person reads it, in the two units that matter.

    Example:
        >>> [render_duration(seconds) for seconds in (0.84, 12.3, 95, 7200, 200_000)]
        ['0.8 s', '12 s', '1 min 35 s', '2 h 0 min', '2 d 7 h']
    """
    if seconds < _FEW_SECONDS:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"
