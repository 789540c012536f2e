"""The meaning of FROM: tables, arrays, queries and joins, and which filters every scan has to pass."""

from __future__ import annotations

import unicodedata
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from model.table import ARCHIVE_COLUMNS, PARTITION_DATE, PARTITION_TIME
from sql.amplification import ARRAY_ROWS, DATA_ITEMS, KEY_COLUMNS, is_part
from sql.binder import Policy, Scan
from sql.datatypes import ATTRIBUTES, DATE, INT64, MESSAGE_ID, SCALARS, STRING, TIMESTAMP, UNKNOWN, SqlType
from sql.expression_binder import ExpressionBinder
from sql.names import AmbiguousNameError, BoundColumn, Item, Scope, find_path
from sql.parameters import Parameter
from sql.relation import Relation
from sql.syntax import (
    Chain,
    Comparison,
    Expression,
    FromItem,
    JoinItem,
    JoinStep,
    Name,
    Path,
    Query,
    QueryItem,
    TableItem,
    UnnestItem,
    WindowSpec,
)  # fmt: skip
from sql.tables import read_type
from sql.values import MANY_ITEMS, Origin, Partition, Value, quote_name

# Columns of the archive that may be as long as a message, and are no array themselves.
SAYING_COLUMNS: Final = frozenset({"data", "ordering_key"})
LAKE_VIEW: Final = "refeed_archive"
INGEST_TIME: Final = "ingest_time"


class FromBinder(ExpressionBinder):
    """Binds what stands after FROM."""

    def __init__(self, policy: Policy, parameters: Mapping[str, Parameter]) -> None:
        super().__init__(policy, parameters)
        self.ctes: Mapping[str, Relation] = {}
        self.named_windows: list[dict[str, WindowSpec]] = []

    @abstractmethod
    def bind_query(self, query: Query, outer: Scope | None, ctes: Mapping[str, Relation]) -> Relation:
        """Bind a query."""

    def bind_from(self, item: FromItem, scope: Scope) -> str:
        """Add the items to ``scope`` and return their text for the lake."""
        match item:
            case JoinItem():
                return self._bind_joins(item, scope)
            case TableItem():
                return self._bind_table(item, scope)
            case UnnestItem():
                return self._bind_array(item, self.bind(item.array, scope), item.alias, scope)
            case QueryItem():
                relation = self.bind_query(item.query, self._around(scope), self.ctes)
                return self._add_relation(relation, item.alias.key if item.alias else None, item, scope)

    def _around(self, scope: Scope) -> Scope | None:
        # A query in FROM does not see its neighbours, only what is around the whole SELECT.
        return scope.parent

    def note_links(self, condition: Expression, scope: Scope) -> None:
        """Note every equality that a row has to pass, for the check that joined items belong together."""
        parts = [condition]
        if isinstance(condition, Chain) and condition.operators[0] == "AND":
            parts = list(condition.operands)
        for part in parts:
            if isinstance(part, Chain) and part.operators[0] == "AND":
                self.note_links(part, scope)
            elif isinstance(part, Comparison) and part.operator in {"=", "IS NOT DISTINCT FROM"}:
                scope.links.append((self.values[id(part.left)], self.values[id(part.right)]))

    # --- joins ---------------------------------------------------------------------------------------------------

    def _bind_joins(self, node: JoinItem, scope: Scope) -> str:
        text = self.bind_from(node.first, scope)
        for step in node.steps:
            left = len(scope.items)
            is_array = isinstance(step.item, UnnestItem) or (
                isinstance(step.item, TableItem) and self._is_array_path(step.item, scope)
            )
            right_text = self.bind_from(step.item, scope)
            condition = self._condition(step, scope, left)
            if step.kind in {"RIGHT", "FULL"} and is_array:
                self.fault(step, "join_not_allowed", f"{step.kind} JOIN can't join an array.")
            self._filter_scans(step, scope, left)
            for item in scope.items[left:]:
                item.is_optional |= step.kind == "LEFT"
            if step.kind == "CROSS":
                if step.on is not None or step.using:
                    self.fault(step, "join_not_allowed", "CROSS JOIN can't have ON or USING.", "INNER JOIN")
                text = f"{text} CROSS JOIN {right_text}"
            else:
                if not condition and not is_array:
                    self.fault(step, "join_not_allowed", f"{step.kind} JOIN needs ON or USING.")
                text = f"{text} {step.kind} JOIN {right_text} ON {condition or 'TRUE'}"
        return text

    def _condition(self, step: JoinStep, scope: Scope, left: int) -> str:
        if step.on is not None:
            text = self.truth(step.on, scope).lake
            self.note_links(step.on, scope)
            return text
        tests = []
        for name in step.using:
            sides = []
            for items, is_left in ((scope.items[:left], True), (scope.items[left:], False)):
                found = [c.value for item in items for c in item.columns if c.key == name.key]
                if is_left and name.key in scope.merged:
                    found = [scope.merged[name.key]]
                if len(found) != 1:
                    self.fault(name, "column_unknown", f"Each side of the join needs one column {name.text[:60]}.")
                    return "TRUE"
                sides.append(found[0])
            a, b = sides
            scope.merged[name.key] = _merged(step, a, b)
            tests.append(f"{a.lake} = {b.lake}")
            scope.links.append((a, b))
        return " AND ".join(tests)

    def _filter_scans(self, step: JoinStep, scope: Scope, left: int) -> None:
        """Let ON count for the scans whose rows it can drop: both of INNER, the optional one of LEFT and RIGHT."""
        if step.on is None:
            return
        items: list[Item] = []
        if step.kind in {"INNER", "RIGHT"}:
            items += scope.items[:left]
        if step.kind in {"INNER", "LEFT"}:
            items += scope.items[left:]
        for item in items:
            for scan in item.scans:
                scan.filters.append(step.on)

    # --- tables --------------------------------------------------------------------------------------------------

    def _is_array_path(self, item: TableItem, scope: Scope) -> bool:
        return (
            len(item.path) > 1
            and not item.path[0].text.count(".")
            and self._find_array(item.path, scope) is not None
        )

    def _find_array(self, path: tuple[Name, ...], scope: Scope) -> object:
        try:
            return find_path(scope, path)
        except AmbiguousNameError:
            return None

    def _bind_table(self, node: TableItem, scope: Scope) -> str:
        if len(node.path) == 1 and node.path[0].key in self.ctes:
            relation = self.ctes[node.path[0].key]
            self.count_readings(node.at, relation.readings)
            self._refuse_extras(node)
            return self._add_relation(relation, (node.alias or node.path[0]).key, node, scope)
        if self._is_array_path(node, scope):
            array = self.bind(Path(node.at, node.path), scope)
            return self._bind_array(node, array, node.alias or node.path[-1], scope)
        name = ".".join(part.text for part in node.path)
        if node.has_offset:
            self.fault(node, "clause_not_allowed", "WITH OFFSET is allowed only for arrays.")
        if name in self.policy.archive_names():
            return self._add_archive(node, scope)
        extra = self.policy.extra_table(name)
        if extra is not None and extra not in self.policy.missing_tables:
            return self._add_extra(node, extra, scope)
        self._refuse_table(node, name, is_missing=extra is not None)
        scope.items.append(Item(self._alias(node), [], is_open=True))
        return f"{LAKE_VIEW} AS {self.fresh('t')}"

    def _refuse_extras(self, node: TableItem) -> None:
        if node.sample_percent is not None or node.has_offset:
            self.fault(
                node, "clause_not_allowed", "TABLESAMPLE and WITH OFFSET can't follow the name of a WITH query."
            )

    def _alias(self, node: TableItem) -> str:
        if node.alias is not None:
            return node.alias.key
        last = node.path[-1].text.rpartition(".")[2]
        return last.lower() if last.isascii() else last

    def _refuse_table(self, node: TableItem, name: str, *, is_missing: bool) -> None:
        archive = self.policy.archive_table
        shown = name[:120]
        if is_missing:
            message = (
                f"The lake does not have the table {shown} yet. Refeed creates a table with its first row. "
                "A pipeline creates staging tables and dead letters, and a merge creates reporting tables."
            )
            self.fault(node, "table_missing", message)
            return
        message = f"The table {shown} is not allowed; queries read {archive}."
        strange = next((char for char in name if not char.isascii()), None)
        if strange is not None:
            called = unicodedata.name(strange, "no letter").lower()
            message = f"The table {shown} is not allowed: {strange!r} is {called}, not a letter of {archive}."
        elif "$" in name:
            message = "Partition decorators are not allowed. Limit _PARTITIONTIME instead."
        elif "*" in name:
            message = "Wildcard tables are not allowed."
        elif "INFORMATION_SCHEMA" in name.upper():
            message = "INFORMATION_SCHEMA is not allowed."
        self.fault(node, "table_not_allowed", message, f"FROM `{archive}`")

    def _add_archive(self, node: TableItem, scope: Scope) -> str:
        archive = self.policy.archive_table
        self.tables.append(archive)
        self.count_readings(node.at, 1)
        alias = self.fresh("t")
        scan = self.add_scan(node.at, archive, alias)
        columns = []
        for column in ARCHIVE_COLUMNS:
            kind = _column_type(column.name, ATTRIBUTES if column.type == "ATTRIBUTES" else SCALARS[column.type])
            origin = Origin(scan.number, column.name)
            is_key = column.name in KEY_COLUMNS
            items = DATA_ITEMS if column.name in SAYING_COLUMNS else None
            text = f'{alias}."{column.name}"'
            bound = Partition(scan.number, is_ingest_time=True) if column.name == INGEST_TIME else None
            columns.append(BoundColumn(column.name, Value(kind, text, origin, bound, items=items, is_key=is_key)))
        pseudo = _pseudo_columns(alias, scan)
        item = Item(self._alias(node), columns, pseudo=pseudo, scans=(scan,), lake_name=alias, is_archive=True)
        scope.items.append(item)
        return f"{LAKE_VIEW} AS {alias}{self._sample_of(node)}"

    def _add_extra(self, node: TableItem, table: str, scope: Scope) -> str:
        """Add a table of REFEED_QUERY_TABLES; one whose columns nobody told is for BigQuery alone."""
        self.tables.append(table)
        self.count_readings(node.at, 1)
        alias = self.fresh("t")
        schema = self.policy.schema(table)
        item = Item(self._alias(node), [], is_open=schema is None, lake_name=alias)
        if schema is None:
            self.gap(node, f"the table {table}, whose columns are not known")
        else:
            known = [(name, _column_type(name, read_type(kind))) for name, kind in schema.columns]
            known = [(name, kind) for name, kind in known if kind.is_known]
            bound: Partition | None = None
            if schema.partitioning is not None:
                has_time = any(name.lower() == INGEST_TIME for name, _ in known)
                scan = self.add_scan(node.at, table, alias if has_time else "")
                item.scans, item.pseudo = (scan,), _pseudo_columns(alias, scan)
                bound = Partition(scan.number, is_ingest_time=True)
            item.columns = [
                BoundColumn(
                    name,
                    Value(
                        kind,
                        f"{alias}.{quote_name(name)}",
                        partition=bound if name.lower() == INGEST_TIME else None,
                        items=_said(kind),
                        is_key=True,
                    ),
                )
                for name, kind in known
            ]
        scope.items.append(item)
        return f"{self.policy.lake_view(table)} AS {alias}{self._sample_of(node)}"

    def _sample_of(self, node: TableItem) -> str:
        if node.sample_percent is None:
            return ""
        return self._sample(node.sample_percent, self.bind(node.sample_percent, Scope()))

    def _sample(self, node: Expression, percent: Value) -> str:
        number = percent.constant
        if percent.type.name == "FLOAT64" and percent.is_literal:
            self.gap(node, "TABLESAMPLE with a fraction")
            return ""
        if not isinstance(number, int) or not 0 <= number <= 100:
            self.fault(node, "limit_not_constant", "TABLESAMPLE needs a percentage from 0 to 100.")
            return ""
        return f" TABLESAMPLE SYSTEM ({number} PERCENT)"

    # --- queries and arrays --------------------------------------------------------------------------------------

    def _add_relation(self, relation: Relation, key: str | None, node: FromItem, scope: Scope) -> str:
        alias = self.fresh("t")
        scans = {scan.number: self.read_through(scan) for scan in relation.scans}
        columns = []
        for column in relation.columns:
            value = column.value
            further = scans.get(value.partition.scan) if value.partition else None
            partition = replace(value.partition, scan=further.number) if further and value.partition else None
            columns.append(
                BoundColumn(column.name, replace(value, lake=f"{alias}.{value.lake}", partition=partition))
            )
        whole = None
        if relation.is_value_table and columns:
            whole = columns[0].value
            fields = whole.type.fields
            columns = [
                BoundColumn(n, replace(whole, type=k, lake=f"({whole.lake}).{quote_name(n)}"))
                for n, k in fields
                if n
            ] or [BoundColumn(None, whole)]
        if key is not None and scope.item(key) is not None:
            self.fault(node, "name_duplicate", f"FROM has the name {key[:60]} twice.")
        scope.items.append(
            Item(
                key,
                columns,
                whole,
                is_open=relation.has_open_star,
                lake_name=alias,
                rows=relation.rows,
                factor=relation.factor,
                unique=tuple(f"{alias}.{text}" for text in relation.unique),
                scans=tuple(scans.values()),
            )
        )
        return f"({relation.sql}) AS {alias}"

    def _bind_array(self, node: UnnestItem | TableItem, array: Value, alias: Name | None, scope: Scope) -> str:
        element = array.type.element or UNKNOWN
        if array.type.is_known and array.type.element is None:
            self.fault(node, "type_mismatch", f"UNNEST needs an ARRAY. This is {array.type}.")
        name = self.fresh("t")
        # What one element says may be as long as the message, however few elements there are.
        items = array.items if isinstance(array.constant, list) else max(array.items or 0, DATA_ITEMS)
        whole = Value(element, f"{name}.e", items=items, is_key=array.is_key)
        if element.name == "STRUCT":
            columns = [
                BoundColumn(n, replace(whole, type=k, lake=f"({whole.lake}).{quote_name(n)}"))
                for n, k in element.fields
                if n
            ]
        else:
            columns = [BoundColumn(alias.text if alias else None, whole)]
        if alias is not None and scope.item(alias.key) is not None:
            self.fault(node, "name_duplicate", f"FROM has the name {alias.text[:60]} twice.")
        rows: int | None = len(array.constant) if isinstance(array.constant, list) else array.items or ARRAY_ROWS
        if rows is not None and rows >= MANY_ITEMS:
            # As many as a table has rows: it must be linked like one.
            rows = None
        item = Item(alias.key if alias else None, columns, whole, is_open=not element.is_known)
        item.lake_name, item.rows, item.is_array = name, rows, True
        around = is_part(array, scope)
        if around is not None:
            around.has_parts, around.rows = True, 1
        item.is_data = around is not None or array.items == DATA_ITEMS
        scope.items.append(item)
        if not node.has_offset:
            return f"UNNEST({array.lake}) AS {name}(e)"
        offset = node.offset.text if node.offset else "offset"
        value = Value(INT64, f"({name}.i - 1)")
        scope.items.append(Item(offset.lower(), [BoundColumn(offset, value)], value, rows=1, is_array=True))
        return f"UNNEST({array.lake}) WITH ORDINALITY AS {name}(e, i)"


def _column_type(name: str, kind: SqlType) -> SqlType:
    """Return the type of a table's column; a text called message_id is marked as one."""
    return MESSAGE_ID if name.lower() == "message_id" and kind == STRING else kind


def _said(kind: SqlType) -> int | None:
    """Return how many pieces a column of a table beside the archive may be cut into."""
    return DATA_ITEMS if kind.name in {"STRING", "BYTES", "JSON"} else None


def _merged(step: JoinStep, left: Value, right: Value) -> Value:
    """Return the column that USING makes of two; equal values are message ids when one of them is."""
    if step.kind == "FULL":
        is_id = left.type.is_message_id and right.type.is_message_id
        kind = replace(left.type, is_message_id=is_id)
        return Value(kind, f"coalesce({left.lake}, {right.lake})", is_key=left.is_key and right.is_key)
    chosen, other = (right, left) if step.kind == "RIGHT" else (left, right)
    if step.kind == "INNER" and other.type.is_message_id and chosen.type == other.type:
        return replace(chosen, type=other.type)
    return chosen


def _pseudo_columns(alias: str, scan: Scan) -> dict[str, Value]:
    """Return the pseudo columns of a table that is partitioned by ingestion time."""
    whole, day = Partition(scan.number), Partition(scan.number, "DAY")
    return {
        PARTITION_TIME.lower(): Value(TIMESTAMP, f'{alias}."{PARTITION_TIME}"', partition=whole),
        PARTITION_DATE.lower(): Value(DATE, f'{alias}."{PARTITION_DATE}"', partition=day),
    }
