"""What an entity is to a merge: its key, what makes one version of it newer, and where it lies in reporting."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from model.errors import RulesUnfitError
from model.naming import counted
from model.schema import RowSchema

# What reporting tables have beside staging's columns.
DELETED: Final = "_deleted"
PARTITION_DATE: Final = "partition_date"
OPERATION: Final = "_operation"
REMOVE: Final = "REMOVE"
# Behind a reporting table's name: what people query.
VIEW_SUFFIX: Final = "_view"

MOMENT_TYPES: Final = ("TIMESTAMP", "DATE", "DATETIME")
# What tells entities apart. A FLOAT64 does not: two numbers that look alike may differ.
KEY_TYPES: Final = ("STRING", "INT64", "BYTES", "BOOL", "NUMERIC", *MOMENT_TYPES)
_NESTED_TYPES: Final = ("RECORD", "JSON")

# Which message a row is of, which replay of it, and when it was written: by these a replay finds what it repairs.
REPLAY_COLUMNS: Final = ("_topic", "_message_id", "_backfill_id", "_backfill_row", "ingest_time")

# What tells rows without a key apart: their message, and which part of one that a replay has split.
MESSAGE_COLUMNS: Final = ("_topic", "_message_id", "_backfill_row")

# After dedup_order and the event time: a message's own time and id, whenever it was replayed, then when its row
# was written, so that a row that repaired code made again wins over the row that it repairs.
LAST_ORDER: Final = ("_publish_time", "_message_id", "ingest_time")


@dataclass(frozen=True, slots=True)
class EntityRules:
    """How versions of one kind of entity are told apart and kept.

    ``key`` names the columns that tell entities apart; a row in which all of them are null is of no entity, and
    stands for itself by :data:`MESSAGE_COLUMNS`. ``order`` those that decide which version is newer, the
    first one first, null being oldest. ``partition_field`` is the DATE, DATETIME or TIMESTAMP column whose day is
    the entity's partition (None: one partition). With ``is_soft_delete`` a removed entity keeps its last values.
    ``event_time`` is the one of ``order`` that has a time: a text in it that is none can't be ordered.
    """

    key: tuple[str, ...]
    order: tuple[str, ...]
    partition_field: str | None = None
    has_operation: bool = False
    is_soft_delete: bool = False
    event_time: str | None = None

    def text_order(self, schema: RowSchema) -> tuple[str, ...]:
        """Return the columns of ``order`` whose texts are read as times or numbers: those that a source chose."""
        texts = {field.name for field in schema.fields if field.type == "STRING"}
        return tuple(name for name in self.order if name in texts and name not in LAST_ORDER)


def check_rules(source: str, rules: EntityRules, schema: RowSchema) -> None:
    """Check that a table with ``schema`` has what ``rules`` name; only an inferred source's may lack it.

    Raises:
        RulesUnfitError: it does not; ``details["faults"]`` names everything.
    """
    faults = list(_rule_faults(rules, schema))
    if faults:
        text = (
            f"{source}: {'; '.join(faults)}. In sources.yaml, choose another column or staging table. Then start "
            f"a new merge, not a retry. 'refeed describe source/{source}' shows when a column changed its type."
        )
        raise RulesUnfitError(text, source=source, faults=faults)


def unordered_error(source: str, columns: Iterable[str], keys: int) -> RulesUnfitError:
    """Return what a merge ends with that finds versions of one key, and no way to say which is newer."""
    which, count = " or ".join(map(repr, columns)), counted(keys, "key")
    kinds = "a time with an offset, a time without an offset, a number, another string"
    return RulesUnfitError(
        f"{source}: for {count}, the newest version is unknown, because {which} contains values of several "
        f"kinds ({kinds}).",
        source=source,
        keys=keys,
    )


def _rule_faults(rules: EntityRules, schema: RowSchema) -> Iterator[str]:
    columns = {field.name: field for field in schema.fields}
    named: list[tuple[str, str, tuple[str, ...]]] = [("key", name, KEY_TYPES) for name in rules.key]
    named += [("order", name, ()) for name in rules.order]
    named += [] if rules.partition_field is None else [("partition", rules.partition_field, MOMENT_TYPES)]
    for what, name, types in named:
        field = columns.get(name)
        if field is None:
            yield f"{what} {name!r} is not a column of its staging table"
        elif types and field.type not in types:
            yield f"{what} {name!r} is {field.type}, not {', '.join(types)}"
        elif field.mode == "REPEATED" or field.type in _NESTED_TYPES:
            yield f"{what} {name!r} is not a column with a single value"


def version_order(dedup_order: tuple[str, ...], event_time: str | None) -> tuple[str, ...]:
    """Return the columns that say which version of an entity is newer.

    Example:
        >>> version_order((), "changed_at")
        ('changed_at', '_publish_time', '_message_id', 'ingest_time')
    """
    chosen = [*dedup_order, *([event_time] if event_time else [])]
    return tuple(dict.fromkeys([*chosen, *LAST_ORDER]))
