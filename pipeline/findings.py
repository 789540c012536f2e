"""What a source's entry says that is no fault, and that its merges may still end with, or take for one entity."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from model.entity import LAST_ORDER, MOMENT_TYPES
from pipeline.descriptors import DescriptorSet
from pipeline.mapping import map_message
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
    yield from _shared_keys(source)
    if source.is_inferred and source.partition is not None and source.partition not in _INFERRED_MOMENTS:
        moments = " or ".join(_INFERRED_MOMENTS)
        what = f"{source.partition!r} is a string, because the source has no schema"
        yield "partition", f"{what}. Merges of the source fail with rules_unfit. Use {moments}"


def _shared_keys(source: Source) -> Iterator[tuple[str, str]]:
    """Yield the columns of the key that a message without the field has its default in, not null."""
    if source.is_inferred:
        return
    for plan in map_message(DescriptorSet([source.descriptor]).message(source.message)):
        if plan.column in source.key and plan.uses_default:
            what = f"{plan.column!r} has its default, such as 0, in the row of a message that lacks it"
            yield "key", f"{what}. Merges take all these rows for one entity. Declare the field as optional"


def _ordered_by_text(source: Source) -> Iterator[tuple[str, str]]:
    """Yield what is ordered by texts that may be of several kinds; of an inferred source it may come to that."""
    rule = (
        "as RFC 3339 times or as numbers. If the versions of a key have values of several kinds, the merge "
        "fails with"
    )
    texts = set() if source.is_inferred else {f.name for f in source.row_schema.fields if f.type == "STRING"}
    for what, names in (("event_time", [source.event_time]), ("dedup_order", source.dedup_order)):
        for name in names:
            if name is None or name in LAST_ORDER or not (source.is_inferred or name in texts):
                continue
            may = "may become text" if source.is_inferred and what == "dedup_order" else "is text"
            yield what, f"{name!r} {may}. A merge compares texts {rule} rules_unfit"
