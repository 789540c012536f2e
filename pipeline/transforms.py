"""What the options of a field do to its texts, in their fixed order."""

import re
from collections.abc import Callable
from typing import Final

from pipeline.javatime import LocalToUtc
from pipeline.options import FieldOptions

Transform = Callable[[str], str | None]

# Java writes $1 and ${name} for groups, and a backslash before a character that stands for itself.
_JAVA_REPLACEMENT: Final = re.compile(r"\\(.)|\$(\d)|\$\{(\w+)\}|([^\\$]+)|(.)", re.DOTALL)


def compile_transforms(options: FieldOptions) -> Transform | None:
    """Return what the options make of a text: filter, extract, append, replace, local-to-UTC, in this order.

    The result is None when the filter leaves the text out. An empty text stays empty: nothing is appended to
    it and it is no time.
    """
    steps: list[Transform] = []
    if options.filter:
        steps.append(_filter(re.compile(options.filter)))
    if options.regex_extract:
        steps.append(_extract(re.compile(options.regex_extract)))
    if options.append:
        appended = options.append
        steps.append(lambda text: text + appended if text else text)
    if options.regex_replace:
        pattern, _, replacement = options.regex_replace.rpartition(",")
        steps.append(_replace(re.compile(pattern.strip()), _python_replacement(replacement.strip())))
    if options.local_to_utc:
        convert = LocalToUtc(options.local_to_utc).convert
        steps.append(lambda text: convert(text) if text else text)
    if not steps:
        return None
    return _chain(steps)


def _chain(steps: list[Transform]) -> Transform:
    def transform(text: str) -> str | None:
        for step in steps:
            changed = step(text)
            if changed is None:
                return None
            text = changed
        return text

    return transform


def _filter(pattern: re.Pattern[str]) -> Transform:
    return lambda text: text if text == "" or pattern.fullmatch(text) else None


def _extract(pattern: re.Pattern[str]) -> Transform:
    def extract(text: str) -> str:
        match = pattern.search(text)
        return text if match is None else match[0]

    return extract


def _replace(pattern: re.Pattern[str], replacement: str) -> Transform:
    return lambda text: pattern.sub(replacement, text)


def _python_replacement(java: str) -> str:
    """Return Java's replacement text in Python's words."""

    def translate(match: re.Match[str]) -> str:
        escaped, number, name, plain, other = match.groups()
        if number is not None:
            return rf"\g<{number}>"
        if name is not None:
            return rf"\g<{name}>"
        return (escaped or plain or other).replace("\\", r"\\")

    return _JAVA_REPLACEMENT.sub(translate, java)
