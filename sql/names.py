"""Which name means what: the items of FROM, the aliases of SELECT, and the queries around."""

from dataclasses import dataclass, field, replace
from functools import lru_cache

from sql.binder import Scan
from sql.datatypes import UNKNOWN, SqlType
from sql.syntax import Name
from sql.values import Value, quote_name


@lru_cache(4096)
def _key(name: str) -> str:
    return name.lower() if name.isascii() else name


@dataclass(frozen=True, slots=True)
class BoundColumn:
    """A column of an item of FROM or of a query's result; ``name`` is None where it has none."""

    name: str | None
    value: Value

    @property
    def key(self) -> str | None:
        """The name as it is compared."""
        return None if self.name is None else _key(self.name)


@dataclass(slots=True)
class Item:
    """One item of FROM; ``whole`` is its row or array element, ``pseudo`` what ``*`` does not show.

    An ``is_open`` item is a table whose columns the gate can't know: any name may be one of its columns.
    """

    key: str | None
    columns: list[BoundColumn]
    whole: Value | None = None
    pseudo: dict[str, Value] = field(default_factory=dict)
    is_open: bool = False
    scans: tuple[Scan, ...] = ()
    is_archive: bool = False
    # Its name in the text for the lake, how many rows it has at most (None: as many as the archive), and whether
    # it is an array of a row of another item.
    lake_name: str = ""
    rows: int | None = None
    # How often one row of the archive may be among its own.
    factor: int = 1
    is_array: bool = False
    # Whether that array is as long as what a message says, and whether another one is made of its elements.
    is_data: bool = False
    has_parts: bool = False
    # Whether it is the right side of a LEFT JOIN.
    is_optional: bool = False
    # Its columns of which no two rows have the same values, together.
    unique: tuple[str, ...] = ()

    def unknown(self, key: str) -> Value:
        """Return a column of a table whose columns are not known."""
        kind = replace(UNKNOWN, is_message_id=key == "message_id")
        return Value(kind, f"{self.lake_name}.unknown", is_key=True)

    def row(self) -> Value:
        """Return the item as one value: what its alias alone means."""
        if self.whole is not None:
            return self.whole
        kind = SqlType("STRUCT", fields=tuple((c.name, c.value.type) for c in self.columns))
        pairs = zip(kind.lake_names, self.columns, strict=True)
        inner = ", ".join(f"{quote_name(name)} := {column.value.lake}" for name, column in pairs)
        items = max((c.value.items for c in self.columns if c.value.items is not None), default=None)
        is_key = any(column.value.is_key for column in self.columns)
        return Value(UNKNOWN if self.is_open else kind, f"struct_pack({inner})", items=items, is_key=is_key)


@dataclass(slots=True)
class Scope:
    """What names mean inside one SELECT."""

    parent: "Scope | None" = None
    items: list[Item] = field(default_factory=list)
    # Columns that USING made one of two.
    merged: dict[str, Value] = field(default_factory=dict)
    aliases: dict[str, Value] = field(default_factory=dict)
    # What the clause at hand allows.
    clause: str = "SELECT"
    has_aggregates: bool = False
    allows_aggregates: bool = False
    allows_windows: bool = False
    has_windows: bool = False
    in_aggregate: bool = False
    # Paths read outside of aggregates, each with its beginnings: one of them has to be grouped. Keys are texts for
    # the lake.
    group_keys: set[str] | None = None
    loose: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    # What expressions that are grouped by were found to be: a subquery has another text each time it is bound.
    grouped: dict[int, Value] = field(default_factory=dict)
    # What a row needs equal, from ON, USING and WHERE.
    links: list[tuple[Value, Value]] = field(default_factory=list)

    def item(self, key: str) -> Item | None:
        """Return the item that ``key`` is the alias of."""
        return next((item for item in self.items if item.key == key), None)

    def tell_whole(self, value: Value, mark: int) -> None:
        """Forget what ``value``, which is a whole item, read since ``mark`` where it is grouped by.

        A part of an item that reads the same is not: Google refuses ``SELECT UPPER(f(x)) ... GROUP BY f(x)``.
        """
        if self.group_keys is not None and value.lake in self.group_keys:
            del self.loose[mark:]

    def columns(self, key: str) -> list[Value]:
        """Return every column that ``key`` alone may mean here."""
        if key in self.merged:
            return [self.merged[key]]
        found = [column.value for item in self.items for column in item.columns if column.key == key]
        found += [item.pseudo[key] for item in self.items if key in item.pseudo]
        if not found:
            found = [item.unknown(key) for item in self.items if item.is_open]
        return found


@dataclass(frozen=True, slots=True)
class Found:
    """What the beginning of a path means: a value, the scope it belongs to and how many names it took.

    An alias of the select list is a whole item of it, which is checked where it stands.
    """

    value: Value
    scope: Scope
    taken: int
    is_alias: bool = False


class AmbiguousNameError(Exception):
    """The name may mean more than one column."""


def find_path(scope: Scope | None, names: tuple[Name, ...]) -> Found | None:
    """Return what ``names`` begin with, searching from the inside out, or None.

    Raises:
        AmbiguousNameError: more than one column of one scope has the name.
    """
    first = names[0].key
    while scope is not None:
        if first in scope.aliases and len(names) >= 1:
            return Found(scope.aliases[first], scope, 1, is_alias=True)
        item = scope.item(first)
        if item is not None:
            if len(names) == 1 or item.whole is not None:
                return Found(item.row(), scope, 1)
            key = names[1].key
            columns = [column.value for column in item.columns if column.key == key]
            columns += [item.pseudo[key]] if key in item.pseudo else []
            if not columns and item.is_open:
                columns = [item.unknown(key)]
            if len(columns) > 1:
                raise AmbiguousNameError
            return Found(columns[0], scope, 2) if columns else None
        columns = scope.columns(first)
        if len(columns) > 1:
            raise AmbiguousNameError
        if columns:
            return Found(columns[0], scope, 1)
        scope = scope.parent
    return None
