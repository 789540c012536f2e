"""What a query gives back, as whatever stands around it sees it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sql.binder import Scan
from sql.datatypes import NULL
from sql.names import BoundColumn, Scope
from sql.values import Value


@dataclass(slots=True)
class Relation:
    """What a query gives back; ``sql`` names its columns as the columns' values do."""

    columns: list[BoundColumn]
    sql: str
    is_value_table: bool = False
    # The scope of a plain SELECT, to which columns can still be added; None for anything else.
    scope: Scope | None = None
    # What follows the select list of that SELECT.
    rest: str = ""
    # The scans whose rows it hands on one by one, so that filters around it are filters of theirs.
    scans: tuple[Scan, ...] = ()
    # The items of that select list, and which of them hold an aggregate.
    selected: list[Value] = field(default_factory=list)
    aggregated: list[bool] = field(default_factory=list)
    has_open_star: bool = False
    # How many rows it has at most; None for as many as the archive.
    rows: int | None = None
    factor: int = 1
    # Columns of which no two rows have the same values, together; none where nothing says so.
    unique: tuple[str, ...] = ()
    # How often it reads tables, when it is a CTE.
    readings: int = 0

    def column_beside_others(self, index: int) -> Value:
        """Return a column as a set operation sees it: a bare NULL takes the type of the parts beside it."""
        if index < len(self.selected) and self.selected[index].type == NULL:
            return replace(self.columns[index].value, type=NULL)
        return self.columns[index].value
