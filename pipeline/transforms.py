"""The changes that the options of a field make to its texts, in their fixed order."""

from collections.abc import Callable

from pipeline.javatime import LocalToUtc
from pipeline.options import FieldOptions
from pipeline.patterns import Pattern

Transform = Callable[[str], str | None]


def compile_transforms(options: FieldOptions) -> Transform | None:
    """Return a function that changes a text: filter, extract, append, replace, local-to-UTC, in this order.

    The result is None when the filter leaves the text out. An empty text stays empty: nothing is appended to
    it and it is no time.

    Raises:
        DescriptorError: a pattern, a replacement or a zone can't be used.
        ValueError: (the returned function) the text is no time, or takes a pattern too long.
    """
    steps: list[Transform] = []
    if options.filter:
        wanted = Pattern(options.filter)
        steps.append(lambda text: text if text == "" or wanted.matches(text) else None)
    if options.regex_extract:
        extract = Pattern(options.regex_extract).find
        steps.append(lambda text: text if (found := extract(text)) is None else found)
    if options.append:
        appended = options.append
        steps.append(lambda text: text + appended if text else text)
    if options.regex_replace:
        pattern, _, replacement = options.regex_replace.rpartition(",")
        steps.append(Pattern(pattern.strip()).replacer(replacement.strip()))
    if options.local_to_utc:
        convert = LocalToUtc(options.local_to_utc).convert
        steps.append(lambda text: convert(text) if text else text)
    if not steps:
        return None

    def transform(text: str) -> str | None:
        for step in steps:
            changed = step(text)
            if changed is None:
                return None
            text = changed
        return text

    return transform
