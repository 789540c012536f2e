"""What an entity is to a merge: its key, what makes one version of it newer, and where it lies in reporting."""

from dataclasses import dataclass
from typing import Final

# What reporting tables have beside staging's columns.
DELETED: Final = "_deleted"
PARTITION_DATE: Final = "partition_date"
OPERATION: Final = "_operation"
REMOVE: Final = "REMOVE"
# Behind a reporting table's name: what people query.
VIEW_SUFFIX: Final = "_view"

# After dedup_order and the event time: a message's own time and id, whenever it was replayed, then when its row
# was written, so that a row made anew by repaired code wins over the row that it repairs.
LAST_ORDER: Final = ("_publish_time", "_message_id", "ingest_time")


@dataclass(frozen=True, slots=True)
class EntityRules:
    """How versions of one kind of entity are told apart and kept.

    ``key`` names the columns that tell entities apart; ``order`` those that decide which version is newer, the
    first one first, null being oldest. ``partition_field`` is the DATE, DATETIME or TIMESTAMP column whose day is
    the entity's partition (None: one partition). With ``is_soft_delete`` a removed entity keeps its last values.
    """

    key: tuple[str, ...]
    order: tuple[str, ...]
    partition_field: str | None = None
    has_operation: bool = False
    is_soft_delete: bool = False


def version_order(dedup_order: tuple[str, ...], event_time: str | None) -> tuple[str, ...]:
    """Return the columns that say which version of an entity is newer.

    Example:
        >>> version_order((), "changed_at")
        ('changed_at', '_publish_time', '_message_id', 'ingest_time')
    """
    chosen = [*dedup_order, *([event_time] if event_time else [])]
    return tuple(dict.fromkeys([*chosen, *LAST_ORDER]))
