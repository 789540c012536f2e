"""The meaning of queries: what they read, what they give back, and the same query for the lake."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from sql import amplification, literals
from sql.datatypes import UNKNOWN, SqlType, common_type, computed, message_ids, settled
from sql.expression_binder import ExpressionBinder
from sql.from_binder import FromBinder
from sql.names import BoundColumn, Item, Scope
from sql.relation import Relation
from sql.sorting import direction, order_item
from sql.syntax import (
    Constant,
    Expression,
    OrderItem,
    Path,
    Query,
    Select,
    SelectItem,
    SetOperation,
    Star,
    WindowSpec,
)
from sql.values import AGGREGATED_ITEMS, MANY_ITEMS, NOT_CONSTANT, Origin, Value, quote_name

# Literals that may be grouped by, oddly.
_TYPED_LITERALS: Final = {"DATE", "DATETIME", "TIME", "TIMESTAMP", "NUMERIC", "BIGNUMERIC", "INTERVAL", "JSON"}
MAX_HANDED_ON: Final = 50

Ctes = Mapping[str, Relation]


class QueryBinder(FromBinder, ExpressionBinder):
    """Binds queries."""

    def bind_subquery(self, query: Query, scope: Scope) -> Relation:
        """Bind a query that may name columns of ``scope``."""
        return self.bind_query(query, scope, self.ctes)

    def bind_query(self, query: Query, outer: Scope | None, ctes: Ctes) -> Relation:
        """Return what ``query`` gives back and reads."""
        around = self.ctes
        visible = dict(ctes)
        prefix = []
        for cte in query.ctes:
            self.ctes = visible
            before = self.readings
            relation = self.bind_query(cte.query, outer if outer is None else None, visible)
            # What a CTE reads is read once for each reference, and not at all without one.
            relation.readings, self.readings = self.readings - before, before
            name = self.fresh("w")
            prefix.append(f"{name} AS ({relation.sql})")
            if cte.name.key in {c.name.key for c in query.ctes if c is not cte}:
                self.fault(cte, "name_duplicate", f"Two WITH queries have the name {cte.name.text[:60]}.")
            relation.sql = f"SELECT * FROM {name}"
            visible = {**visible, cte.name.key: relation}
        self.ctes = visible
        relation = self._bind_body(query, outer, visible)
        self.ctes = around
        if prefix:
            relation.sql = f"WITH {', '.join(prefix)} {relation.sql}"
        return relation

    def _bind_body(self, query: Query, outer: Scope | None, ctes: Ctes) -> Relation:
        body = query.body
        if isinstance(body, Select):
            relation = self._bind_select(body, outer, query)
            self._cap_rows(relation, query)
            return relation
        if isinstance(body, Query):
            relation = self.bind_query(body, outer, ctes)
        else:
            relation = self._bind_set_operation(body, outer, ctes)
        if query.order_by or query.limit is not None:
            alias = self.fresh("q")
            scope = Scope(parent=outer, clause="ORDER BY")
            scope.items.append(Item(None, [BoundColumn(c.name, c.value) for c in relation.columns]))
            tail = self._order(query.order_by, scope, relation.columns) + self._limit(query, scope)
            relation.sql = f"SELECT * FROM ({relation.sql}) AS {alias}{tail}"
        self._cap_rows(relation, query)
        relation.scope, relation.scans = None, relation.scans if query.limit is None else ()
        return relation

    def _cap_rows(self, relation: Relation, query: Query) -> None:
        limit = self.values.get(id(query.limit)) if query.limit is not None else None
        if limit is not None and isinstance(limit.constant, int):
            relation.rows = limit.constant if relation.rows is None else min(relation.rows, limit.constant)

    # --- set operations ------------------------------------------------------------------------------------------

    def _bind_set_operation(self, node: SetOperation, outer: Scope | None, ctes: Ctes) -> Relation:
        parts = [
            self._bind_select(part, outer, None)
            if isinstance(part, Select)
            else self.bind_query(part, outer, ctes)
            for part in node.operands
        ]
        first = parts[0]
        if any(len(part.columns) != len(first.columns) for part in parts):
            self.fault(
                node, "set_operation_columns", f"All parts of {node.operator} need the same number of columns."
            )
            return first
        columns = []
        texts: list[list[str]] = [[] for _ in parts]
        for index, column in enumerate(first.columns):
            values = [part.column_beside_others(index) for part in parts]
            kind = common_type([(value.type, value.is_literal) for value in values])
            if kind is None:
                kinds = ", ".join(dict.fromkeys(str(value.type) for value in values))
                self.fault(
                    node,
                    "set_operation_columns",
                    f"Column {index + 1} of {node.operator} has different types: {kinds}.",
                )
                kind = UNKNOWN
            if kind.is_known and not kind.is_groupable and (node.is_distinct or node.operator != "UNION"):
                self.fault(node, "type_mismatch", f"Values of {kind} can't be compared.")
            origins = {value.origin.column if value.origin else None for value in values}
            origin = Origin(-1, column_name) if len(origins) == 1 and (column_name := origins.pop()) else None
            if len({message_ids(value.type) for value in values}) > 1:
                kind = computed(kind)
            name = self.fresh("o")
            for text, value in zip(texts, values, strict=True):
                text.append(f"{literals.bent(value, kind).lake} AS {name}")
            items = max((value.items for value in values if value.items is not None), default=None)
            is_key = all(value.is_key for value in values)
            columns.append(BoundColumn(column.name, Value(kind, name, origin=origin, items=items, is_key=is_key)))
        word = node.operator if node.operator != "UNION" or node.is_distinct else "UNION ALL"
        pieces = [
            f"(SELECT {', '.join(text)} FROM ({part.sql}) AS {self.fresh('q')})"
            for text, part in zip(texts, parts, strict=True)
        ]
        is_value = all(part.is_value_table for part in parts)
        open_star = any(part.has_open_star for part in parts)
        counts = [part.rows for part in parts]
        rows = None if None in counts else sum(count or 0 for count in counts)
        factor = sum(part.factor for part in parts)
        if factor > amplification.MAX_FACTOR and rows is None:
            most = amplification.MAX_FACTOR
            self.fault(
                node,
                "row_amplification",
                f"This part of the query repeats each row {factor:,} times. At most {most:,} times are allowed.",
            )
        unique = tuple(column.value.lake for column in columns) if node.is_distinct else ()
        return Relation(
            columns,
            f" {word} ".join(pieces),
            is_value,
            has_open_star=open_star,
            rows=rows,
            factor=factor,
            unique=unique,
        )

    # --- select --------------------------------------------------------------------------------------------------

    def _bind_select(self, node: Select, outer: Scope | None, query: Query | None) -> Relation:
        scope = Scope(parent=outer)
        source = ""
        if node.source is not None:
            scope.clause = "FROM"
            source = f" FROM {self.bind_from(node.source, scope)}"
        elif any((node.where, node.group_by, node.having, node.qualify)):
            self.fault(node, "clause_not_allowed", "A SELECT without FROM has nothing to filter or group.")
        own = [scan for item in scope.items for scan in item.scans]
        self.named_windows.append({name.key: spec for name, spec in node.windows})
        where = ""
        if node.where is not None:
            scope.clause = "WHERE"
            where = f" WHERE {self.truth(node.where, scope).lake}"
            self.note_links(node.where, scope)
            for scan in own:
                scan.filters.append(node.where)
        is_limited = query is not None and query.limit is not None
        rows, factor = amplification.check(self, node, scope, is_limited=is_limited)
        grouped = self._bind_grouping(node, scope)
        has_rows = node.source is not None
        scope.clause = "SELECT" if has_rows else "a SELECT without FROM"
        scope.allows_aggregates = scope.allows_windows = has_rows
        relation = self._bind_items(node, scope)
        self._tell_items(relation, amplification.DATA_ITEMS if grouped else rows or MANY_ITEMS)
        group, having, qualify = self._bind_tail(node, scope, relation, is_grouped=grouped)
        tail = ""
        if query is not None and (query.order_by or query.limit is not None):
            scope.clause = "ORDER BY"
            if node.is_distinct:
                scope = self._output_scope(scope, relation)
            tail = self._order(query.order_by, scope, relation.columns) + self._limit(query, scope)
        self._check_grouped(scope, is_grouped=grouped or scope.has_aggregates)
        self.named_windows.pop()
        relation.factor = factor
        relation.rows = 1 if scope.has_aggregates and not grouped else rows
        relation.unique = self._unique_columns(node, scope, relation)
        is_plain = not (node.is_distinct or grouped or scope.has_aggregates or relation.is_value_table)
        head = "SELECT DISTINCT" if node.is_distinct else "SELECT"
        items = ", ".join(
            f"{value.lake} AS {column.value.lake}"
            for value, column in zip(relation.selected, relation.columns, strict=True)
        )
        relation.sql = f"{head} {items}{source}{where}{group}{having}{qualify}{tail}"
        is_cut = query is not None and query.limit is not None
        if is_plain and not is_cut and not scope.has_windows and node.qualify is None:
            # A chain of CTEs that each read the one before twice has more ways than can be counted.
            relation.scans = tuple(own) if len(own) <= MAX_HANDED_ON else ()
        if is_plain:
            relation.scope = scope
            relation.rest = f"{source}{where}{qualify}{tail}"
        return relation

    def _unique_columns(self, node: Select, scope: Scope, relation: Relation) -> tuple[str, ...]:
        """Return columns of which no two rows have the same values: those of DISTINCT, or all grouped by."""
        texts = [column.value.lake for column in relation.columns]
        if node.is_distinct:
            return tuple(texts)
        if node.group_by is None:
            return ()
        selected = {value.lake: text for value, text in zip(relation.selected, texts, strict=True)}
        keys = [selected.get(key, "") for key in scope.group_keys or ()]
        return tuple(keys) if all(keys) else ()

    def _output_scope(self, scope: Scope, relation: Relation) -> Scope:
        out = Scope(parent=scope.parent, clause="ORDER BY")
        out.items.append(Item(None, [BoundColumn(c.name, c.value) for c in relation.columns]))
        return out

    def _bind_grouping(self, node: Select, scope: Scope) -> bool:
        """Prepare the check of what may stand beside aggregates; the keys themselves wait for the aliases."""
        if node.group_by is None:
            scope.group_keys = set()
            return False
        scope.group_keys = set()
        scope.clause = "GROUP BY"
        if node.group_by.is_all:
            return True
        for key in node.group_by.keys:
            target = self._group_target(key, node)
            if target is not None:
                mark = len(scope.loose)
                value = self.bind(target, scope)
                del scope.loose[mark:]
                scope.group_keys.add(value.lake)
                scope.grouped[id(target)] = value
                if value.type.is_known and not value.type.is_groupable:
                    self.fault(key, "type_mismatch", f"Values of {value.type} can't be grouped.")
        return True

    def _group_target(self, key: Expression, node: Select) -> Expression | None:
        """Return what a key means: an ordinal, an alias of the select list, or itself."""
        plain = [item for item in node.items if isinstance(item.value, Expression)]
        if isinstance(key, Constant) and key.type == "INT64":
            number = int(str(key.value), 0)
            if not 1 <= number <= len(node.items) or not isinstance(node.items[number - 1].value, Expression):
                self.fault(key, "group_ordinal", f"There is no column {number} to group by.")
                return None
            return node.items[number - 1].value  # type: ignore[return-value]
        if isinstance(key, Constant) and key.type not in _TYPED_LITERALS:
            self.fault(key, "group_ordinal", "GROUP BY a literal groups nothing.")
            return None
        if isinstance(key, Path) and len(key.names) == 1:
            for item in plain:
                if item.alias is not None and item.alias.key == key.names[0].key:
                    return item.value  # type: ignore[return-value]
        return key

    def _bind_tail(
        self, node: Select, scope: Scope, relation: Relation, *, is_grouped: bool
    ) -> tuple[str, str, str]:
        group = having = qualify = ""
        if node.group_by is not None and node.group_by.is_all:
            items = zip(relation.selected, relation.aggregated, strict=True)
            keys = [value for value, has in items if not has]
            scope.group_keys = {value.lake for value in keys}
            # A number would be the place of a column.
            named = {value.lake for value in keys if value.constant is NOT_CONSTANT and not value.is_literal}
            group = f" GROUP BY {', '.join(sorted(named)) or 'ALL'}"
        elif node.group_by is not None:
            group = " GROUP BY " + ", ".join(sorted(scope.group_keys or ()))
        scope.aliases = {
            c.key: v for c, v in zip(relation.columns, relation.selected, strict=True) if c.key is not None
        }
        if node.having is not None:
            scope.clause, scope.allows_windows = "HAVING", False
            having = f" HAVING {self.truth(node.having, scope).lake}"
            if not (is_grouped or scope.has_aggregates):
                self.fault(node.having, "not_grouped", "HAVING needs GROUP BY or an aggregate.")
        scope.allows_windows = node.source is not None
        if node.qualify is not None:
            scope.clause = "QUALIFY"
            if not (node.where or is_grouped or node.having):
                self.fault(
                    node.qualify,
                    "clause_not_allowed",
                    "QUALIFY needs WHERE, GROUP BY or HAVING.",
                    "WHERE TRUE QUALIFY ...",
                )
            qualify = f" QUALIFY {self.truth(node.qualify, scope).lake}"
            if not scope.has_windows:
                self.fault(
                    node.qualify, "clause_not_allowed", "QUALIFY needs a window function: use WHERE or HAVING."
                )
        return group, having, qualify

    def _check_grouped(self, scope: Scope, *, is_grouped: bool) -> None:
        keys = scope.group_keys or set()
        loose = [at for at, beginnings in scope.loose if keys.isdisjoint(beginnings)]
        if is_grouped and loose:
            self.fault(
                loose[0],
                "not_grouped",
                "A column beside aggregates must be in GROUP BY or inside an aggregate.",
                "Add the column to GROUP BY, or wrap the column in ANY_VALUE(...).",
            )

    # --- select list ---------------------------------------------------------------------------------------------

    def _bind_items(self, node: Select, scope: Scope) -> Relation:
        columns: list[BoundColumn] = []
        selected: list[Value] = []
        aggregated: list[bool] = []
        open_star = False
        by_all = node.group_by is not None and node.group_by.is_all
        for item in node.items:
            before = scope.has_aggregates, scope.has_windows
            scope.has_aggregates = scope.has_windows = False
            mark = len(scope.loose)
            if isinstance(item.value, Star):
                stars, is_open = self._bind_star(item.value, scope)
                open_star |= is_open
            else:
                value = self.bind(item.value, scope)
                scope.tell_whole(value, mark)
                stars = [BoundColumn(self._name_of(item), value)]
            over_rows = scope.has_aggregates or scope.has_windows
            if by_all and not over_rows:
                del scope.loose[mark:]
            for column in stars:
                selected.append(column.value)
                aggregated.append(over_rows)
                columns.append(BoundColumn(column.name, self._renamed(column.value)))
            scope.has_aggregates |= before[0]
            scope.has_windows |= before[1]
        if node.shape is not None:
            selected, columns = self._as_value(node, selected, columns)
            aggregated = aggregated[: len(columns)]
        if node.is_distinct:
            for column in columns:
                if column.value.type.is_known and not column.value.type.is_groupable:
                    self.fault(
                        node, "type_mismatch", f"SELECT DISTINCT can't compare values of {column.value.type}."
                    )
        relation = Relation(columns, "", is_value_table=node.shape is not None, has_open_star=open_star)
        relation.selected, relation.aggregated = selected, aggregated
        return relation

    def _renamed(self, value: Value) -> Value:
        kind, name = settled(value.type), self.fresh("o")
        return Value(kind, name, value.origin, value.partition, items=value.items, is_key=value.is_key)

    def _tell_items(self, relation: Relation, items: int | None) -> None:
        """Tell the arrays that aggregates make how many rows these are over; groups give back what they took."""
        for number, column in enumerate(relation.columns):
            if column.value.items == AGGREGATED_ITEMS:
                relation.columns[number] = replace(column, value=replace(column.value, items=items))

    def _as_value(
        self, node: Select, selected: list[Value], columns: list[BoundColumn]
    ) -> tuple[list[Value], list[BoundColumn]]:
        if node.shape == "VALUE":
            if len(columns) != 1:
                self.fault(node, "subquery_columns", "SELECT AS VALUE takes exactly one column.")
            return selected[:1], [BoundColumn(None, columns[0].value)]
        kind = SqlType("STRUCT", fields=tuple((c.name, c.value.type) for c in columns))
        pairs = zip(kind.lake_names, selected, strict=True)
        inner = ", ".join(f"{quote_name(name)} := {value.lake}" for name, value in pairs)
        items = max((value.items for value in selected if value.items is not None), default=None)
        packed = Value(kind, f"struct_pack({inner})", items=items)
        is_key = any(value.is_key for value in selected)
        return [packed], [BoundColumn(None, Value(kind, self.fresh("o"), items=items, is_key=is_key))]

    def _name_of(self, item: SelectItem) -> str | None:
        if item.alias is not None:
            return item.alias.text
        if isinstance(item.value, Path):
            return item.value.names[-1].text
        name = getattr(item.value, "name", None)
        return name.text if name is not None and hasattr(name, "text") else None

    def _bind_star(self, star: Star, scope: Scope) -> tuple[list[BoundColumn], bool]:
        columns: list[BoundColumn] = []
        is_open = False
        if star.path is None:
            merged = set(scope.merged)
            columns += [BoundColumn(key, value) for key, value in scope.merged.items()]
            for item in scope.items:
                is_open |= item.is_open
                columns += [column for column in item.columns if column.key not in merged]
            if not scope.items:
                self.fault(star, "star_not_allowed", "SELECT * needs FROM.")
        else:
            columns, is_open = self._bind_path_star(star, scope)
        excluded = {name.key for name in star.excluded}
        known = {column.key for column in columns}
        for name in star.excluded:
            if [other.key for other in star.excluded].count(name.key) > 1:
                self.fault(name, "name_duplicate", f"The column {name.text[:60]} is left out twice.")
            if name.key not in known and not is_open:
                self.fault(name, "column_unknown", f"There is no column {name.text[:60]} to leave out.")
        columns = [column for column in columns if column.key not in excluded]
        if scope.group_keys is not None and not scope.in_aggregate:
            replaced = {name.key for _, name in star.replaced}
            scope.loose += [(star.at, (c.value.lake,)) for c in columns if c.key not in replaced]
        for expression, name in star.replaced:
            mark = len(scope.loose)
            value = self.bind(expression, scope)
            scope.tell_whole(value, mark)
            if name.key not in known and not is_open:
                self.fault(name, "column_unknown", f"There is no column {name.text[:60]} to replace.")
            columns = [BoundColumn(c.name, value) if c.key == name.key else c for c in columns]
        return columns, is_open

    def _bind_path_star(self, star: Star, scope: Scope) -> tuple[list[BoundColumn], bool]:
        path = star.path
        if isinstance(path, Path) and len(path.names) == 1:
            item = scope.item(path.names[0].key)
            if item is not None and item.whole is None:
                return list(item.columns), item.is_open
        value = self.bind(path, scope) if path is not None else Value(UNKNOWN, "NULL")
        if not value.type.is_known:
            return [], False
        if value.type.name != "STRUCT":
            self.fault(star, "type_mismatch", f"'.*' needs a STRUCT. This is {value.type}.")
        return [
            BoundColumn(name, Value(kind, f"({value.lake}).{quote_name(name)}", is_key=value.is_key))
            for name, kind in value.type.fields
            if name
        ], False

    # --- order and limit -----------------------------------------------------------------------------------------

    def _order(self, items: tuple[OrderItem, ...], scope: Scope, columns: list[BoundColumn]) -> str:
        if not items:
            return ""
        parts = []
        for item in items:
            key = item.key
            if isinstance(key, Constant) and key.type == "INT64":
                number = int(str(key.value), 0)
                if not 1 <= number <= len(columns):
                    self.fault(item, "order_ordinal", f"There is no column {number} to order by.")
                    continue
                parts.append(columns[number - 1].value.lake + direction(item))
            elif isinstance(key, Constant):
                self.fault(item, "order_ordinal", "ORDER BY a literal orders nothing.")
            else:
                mark = len(scope.loose)
                parts.append(order_item(self, item, scope))
                scope.tell_whole(self.values[id(key)], mark)
        return " ORDER BY " + ", ".join(parts) if parts else ""

    def _limit(self, query: Query, scope: Scope) -> str:
        text = ""
        for word, node in (("LIMIT", query.limit), ("OFFSET", query.offset)):
            if node is None:
                continue
            value = self.bind(node, scope)
            if not isinstance(value.constant, int) or isinstance(value.constant, bool) or value.constant < 0:
                self.fault(node, "limit_not_constant", f"{word} needs a whole number or a parameter.")
                continue
            text += f" {word} {value.constant}"
        return text

    def window(self, spec: WindowSpec, scope: Scope, depth: int = 0) -> WindowSpec:
        """Return ``spec`` with the window that it names written out."""
        if spec.base is None:
            return spec
        windows = self.named_windows[-1] if self.named_windows else {}
        base = windows.get(spec.base.key)
        if base is None or depth > len(windows):
            self.fault(spec, "name_unknown", f"There is no window {spec.base.text[:60]}.")
            return WindowSpec(spec.at, None)
        inner = self.window(base, scope, depth + 1)
        frame = (spec.frame, spec.low, spec.high) if spec.frame else (inner.frame, inner.low, inner.high)
        return WindowSpec(
            spec.at, None, spec.partition_by or inner.partition_by, spec.order_by or inner.order_by, *frame
        )
