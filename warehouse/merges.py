"""Merges in a warehouse: what staging has since the last one becomes one row an entity in reporting."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from model.audit import Audit
from model.entity import DELETED, VIEW_SUFFIX, EntityRules
from model.schema import Field, RowSchema
from model.table import TableSchema

_DELETED_FIELD: Final = Field(DELETED, "BOOL", description="Whether the entity was removed.")


@dataclass(frozen=True, slots=True)
class MergeSource:
    """One source to merge: the tables' names (``dataset.table``) and the rules of its entities."""

    name: str
    staging: str
    reporting: str
    rules: EntityRules

    @property
    def view(self) -> str:
        """The name of its union view, in every warehouse: its reporting table's with ``_view``.

        Example:
            >>> MergeSource("orders", "staging.orders", "shop.orders", EntityRules(("id",), ())).view
            'shop.orders_view'
        """
        return f"{self.reporting}{VIEW_SUFFIX}"


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What a merge did, or with ``is_dry_run`` would do; times are aware UTC.

    It took what staging committed after the merge of ``since`` (None: ever) and before this one looked, which was
    at ``until``: times by the clock of the process that looked, to be shown. ``changed`` counts the keys of
    that, ``newer`` those of them that changed reporting. ``partitions`` are the days that changed, None being
    that of entities without a day; rows are counted in these. A dry run, and a merge of what was never staged,
    has no ``audits``. ``without_key`` counts those of ``changed`` that are rows of no entity, because all columns
    of their key are null: each is kept.
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
    without_key: int = 0


class Merger(Protocol):
    """The reporting tables of one warehouse."""

    def merge(
        self, source: MergeSource, *, now: datetime, since: datetime | None, is_dry_run: bool
    ) -> MergeReport:
        """Merge what staging committed since the last merge into the reporting table, all or nothing.

        Run it twice, late, out of order or again after a kill at any point: the reporting table comes out the
        same. Only partitions that change are read and written. ``since`` reads staging again from that moment on,
        which may take longer and changes nothing that was merged right. ``now`` is this machine's clock, for a
        warehouse that has none of its own: to be shown, and no more.

        Raises:
            MergeOvertakenError: another merge of the source was first; nothing was changed.
            AuditFailedError: the counts do not add up; nothing was changed.
            RulesUnfitError: staging lacks what the source's rules name, or it can't be told which version of
                a key is newest; nothing was changed.
            EvolutionRefusedError: reporting can't be widened to what staging has become; nothing was changed.
            WarehouseError: the warehouse failed; the next merge does what this one did not.
        """

    def close(self) -> None:
        """End its connections."""


class UnionViews(Protocol):
    """The union views of some sources, as tables that queries read: reporting and what staging has since."""

    def read_schemas(self) -> tuple[TableSchema, ...]:
        """Return the columns of every view that is there.

        Raises:
            TableNotFoundError: the first merge of a source makes its view, and there was none.
            WarehouseError: the warehouse does not answer.
        """


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
