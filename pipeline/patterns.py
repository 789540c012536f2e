"""Java's regular expressions, in which descriptor sets are written, and a limit to the time that one may take."""

import re
from collections.abc import Callable
from typing import Any, Final

import regex

from model.errors import DescriptorError

# As in Java: \d, \w, \s and \b are ASCII, (?i) holds from where it stands, [a-z&&[^b]] is an intersection.
_FLAGS: Final = regex.VERSION1 | regex.ASCII
# What only Java has: \Q...\E for a text as it is, \k<name> for what a group matched.
_JAVA: Final = re.compile(r"\\k<(\w+)>|(\\[^Q])|\\Q(.*?)(?:\\E|\Z)", re.DOTALL)
# $1 and ${name} are groups, a backslash stands before a character that is meant itself.
_REPLACEMENT: Final = re.compile(r"\\(.)|\$([0-9]+)|\$\{(\w+)\}|([^\\$]+)|(.)", re.DOTALL)
# Some patterns take years for some texts, (a|aa)+ for one, and a message must not end a stream.
_SECONDS_A_TEXT: Final = 0.2
_SECONDS_A_CHARACTER: Final = 2e-6


class Pattern:
    r"""One pattern; a text that takes it too long is a fault of the text.

    Raises:
        DescriptorError: it is no pattern.

    Example:
        >>> Pattern(r"(?<day>\d+)\.(\d+)").replacer("$2/${day}")("on 24.12")
        'on 12/24'
        >>> Pattern(r"\p{Upper}+").find("an ABC")
        'ABC'
    """

    def __init__(self, text: str) -> None:
        self._text = text
        plain = _JAVA.sub(_translated, text)
        try:
            self._pattern = regex.compile(plain, _FLAGS)
        except (regex.error, ValueError, OverflowError, RecursionError) as exc:
            raise DescriptorError(f"{text!r} is not a valid pattern: {exc}") from exc

    def matches(self, text: str) -> bool:
        """Whether the whole text matches.

        Raises:
            ValueError: it takes too long to tell.
        """
        return self._within(text, lambda seconds: self._pattern.fullmatch(text, timeout=seconds)) is not None

    def find(self, text: str) -> str | None:
        """Return the first match, None when there is none.

        Raises:
            ValueError: it takes too long to tell.
        """
        found = self._within(text, lambda seconds: self._pattern.search(text, timeout=seconds))
        return None if found is None else str(found[0])

    def replacer(self, replacement: str) -> Callable[[str], str]:
        """Return a function that replaces every match by ``replacement``, which is in Java's words.

        Raises:
            DescriptorError: it names a group that the pattern has not.
            ValueError: (the returned function) it takes too long.
        """
        parts = self._parse(replacement)

        def fill(match: regex.Match[str]) -> str:
            return "".join(part if isinstance(part, str) else match[part] or "" for part in parts)

        return lambda text: str(self._within(text, lambda seconds: self._pattern.sub(fill, text, timeout=seconds)))

    def _parse(self, replacement: str) -> list[str | int]:
        """Return the texts and the numbers of the groups that ``replacement`` is made of."""
        parts: list[str | int] = []
        for escaped, digits, name, plain, other in _REPLACEMENT.findall(replacement):
            if digits:
                parts += self._group(digits)
            elif name:
                if name not in self._pattern.groupindex:
                    raise DescriptorError(f"{self._text!r} has no group {name!r}")
                parts.append(self._pattern.groupindex[name])
            else:
                parts.append(escaped or plain or other)
        return parts

    def _group(self, digits: str) -> list[str | int]:
        """Return the group that ``digits`` name and the text after it: more digits count where it has so many."""
        if int(digits[0]) > self._pattern.groups:
            raise DescriptorError(f"{self._text!r} has no group {digits[0]}")
        ends = (end for end in range(len(digits), 0, -1) if int(digits[:end]) <= self._pattern.groups)
        end = next(ends)
        return [int(digits[:end]), digits[end:]]

    def _within(self, text: str, match: Callable[[float], Any]) -> Any:
        try:
            return match(_SECONDS_A_TEXT + len(text) * _SECONDS_A_CHARACTER)
        except TimeoutError as exc:
            raise ValueError(f"{text[:60]!r} takes the pattern {self._text!r} too long") from exc


def _translated(found: re.Match[str]) -> str:
    name, escaped, quoted = found.groups()
    return f"(?P={name})" if name else escaped or re.escape(quoted)
