"""What a source's entry says that is no fault, and that its merges may still end with."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from model.entity import LAST_ORDER, MOMENT_TYPES
from pipeline.registry import Source
from pipeline.schema import row_columns

# The columns with a day that an inferred source's table has; a message's own are never more than text.
_INFERRED_MOMENTS: Final = tuple(column.name for column in row_columns((), "plain") if column.type in MOMENT_TYPES)


@dataclass(frozen=True, slots=True)
class MergeNote:
    """One of them: the source, the field of its entry, and a sentence."""

    source: str
    field: str
    message: str


def find_doubtful(sources: Iterable[Source]) -> list[MergeNote]:
    """Return what can be known of merges before a message has come."""
    return [MergeNote(source.name, *each) for source in sources for each in _of(source)]


def _of(source: Source) -> Iterator[tuple[str, str]]:
    if source.merge_source is None:
        return
    yield from _ordered_by_text(source)
    if source.is_inferred and source.partition is not None and source.partition not in _INFERRED_MOMENTS:
        moments = " and ".join(_INFERRED_MOMENTS)
        what = f"{source.partition!r} is of an inferred source's messages, where every time is text"
        yield "partition", f"{what}: its merges end with rules_unfit. Without a schema, only {moments} have a day"


def _ordered_by_text(source: Source) -> Iterator[tuple[str, str]]:
    """Yield what is ordered by texts that may be of several kinds; of an inferred source it may come to that."""
    rule = "read as RFC 3339 times or as numbers; where versions of one key are of several kinds, merges end with"
    texts = set() if source.is_inferred else {f.name for f in source.row_schema.fields if f.type == "STRING"}
    for what, names in (("event_time", [source.event_time]), ("dedup_order", source.dedup_order)):
        for name in names:
            if name is None or name in LAST_ORDER or not (source.is_inferred or name in texts):
                continue
            may = "may become text" if source.is_inferred and what == "dedup_order" else "is text"
            yield what, f"{name!r} {may}. It is {rule} rules_unfit"
