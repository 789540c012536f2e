"""The merge of one source: what staging has since the last one becomes one row an entity in reporting."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from model.audit import Audit
from model.entity import DELETED, EntityRules
from model.schema import Field, RowSchema

_DELETED_FIELD: Final = Field(DELETED, "BOOL", description="Whether the entity was removed.")


@dataclass(frozen=True, slots=True)
class MergeSource:
    """One source to merge: the tables' names (``dataset.table``) and the rules of its entities."""

    name: str
    staging: str
    reporting: str
    rules: EntityRules


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What a merge did, or with ``is_dry_run`` would do; times are aware UTC.

    Staging was read from behind ``since`` (None: its beginning) up to ``until``. ``changed`` counts the keys that
    it had, ``newer`` those of them that changed reporting. ``partitions`` are the days that changed, None being
    that of entities without a day; rows are counted in these. A dry run, and a merge of what was never staged,
    has no ``audits``.
    """

    source: str
    since: datetime | None
    until: datetime
    changed: int = 0
    newer: int = 0
    partitions: tuple[str | None, ...] = ()
    rows_before: int = 0
    rows_after: int = 0
    is_dry_run: bool = False
    audits: tuple[Audit, ...] = ()


class Merger(Protocol):
    """Reporting tables in one warehouse; :func:`reporting.warehouse.open_merger` gives the one of the settings."""

    def merge(
        self, source: MergeSource, *, until: datetime, since: datetime | None, is_dry_run: bool
    ) -> MergeReport:
        """Merge what came to staging behind its watermark, or ``since`` where that is earlier, up to ``until``."""

    def read_audits(self, source: str | None, limit: int) -> list[dict[str, Any]]:
        """Return the newest audits, of one source or all, as rows of ``AUDIT_SCHEMA``, the newest first."""

    def close(self) -> None:
        """End its connections."""


def merge_source(
    source: MergeSource,
    *,
    warehouse: Merger,
    is_dry_run: bool = False,
    since: datetime | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> MergeReport:
    """Merge what ``source`` has in staging since its last merge into its reporting table, all or nothing.

    Run it twice, late, out of order or again after a kill at any point: the reporting table comes out the same.
    Only partitions that change are read and written. ``since`` reads staging from an earlier moment on, which
    may take longer and changes nothing that was merged right.

    Raises:
        MergeOvertakenError: another merge of the source was first; nothing was changed.
        AuditFailedError: the counts do not add up; nothing was changed.
        EvolutionRefusedError: reporting can't be widened to what staging has become; nothing was changed.
        WarehouseError: the warehouse failed; the next merge does what this one did not.
    """
    # Taken before staging is looked at: what comes in later is of the next merge.
    return warehouse.merge(source, until=now(), since=since, is_dry_run=is_dry_run)


def reporting_schema(staging: RowSchema) -> RowSchema:
    """Return the schema of a staging table's reporting table: the same columns, and whether it was removed."""
    return RowSchema((*staging.fields, _DELETED_FIELD), staging.description)


def earlier(one: datetime | None, other: datetime | None) -> datetime | None:
    """Return the earlier of two moments to read from, None being the beginning.

    Example:
        >>> earlier(datetime(2026, 1, 2), datetime(2026, 1, 1))
        datetime.datetime(2026, 1, 1, 0, 0)
    """
    return None if one is None or other is None else min(one, other)
