"""The meaning of what builds values: CASE, CAST, EXTRACT, intervals, arrays, structs, queries as values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import UTC
from typing import Any
from zoneinfo import ZoneInfo

from sql import literals
from sql.amplification import DATA_ITEMS
from sql.binder import Binder
from sql.comparisons import comparison
from sql.constants import ConstantError, parse_zone
from sql.datatypes import (
    BOOL,
    INT64,
    NULL,
    SCALARS,
    STRING,
    UNKNOWN,
    SqlType,
    array_of,
    common_type,
    is_castable,
    lake_type,
    settled,
)  # fmt: skip
from sql.functions.registry import PARTS
from sql.names import Scope
from sql.relation import Relation
from sql.syntax import (
    ArrayLiteral,
    Case,
    Cast,
    Expression,
    Extract,
    Interval,
    Path,
    Query,
    StructLiteral,
    Subquery,
    TypeName,
)  # fmt: skip
from sql.values import BROKEN, MANY_ITEMS, NOT_CONSTANT, LakeGapError, Value, quote_name


class ConstructBinder(Binder, ABC):
    """Binds expressions that build values; their parts are bound by the subclass."""

    @abstractmethod
    def bind(self, node: Expression, scope: Scope) -> Value:
        """Return what ``node`` is inside ``scope``."""

    @abstractmethod
    def truth(self, node: Expression, scope: Scope) -> Value:
        """Bind a condition."""

    @abstractmethod
    def unify(self, node: Expression, values: list[Value], nodes: list[Expression]) -> list[Value]:
        """Return ``values`` brought to one type."""

    @abstractmethod
    def bind_subquery(self, query: Query, scope: Scope) -> Relation:
        """Bind a query that may name columns of ``scope``."""

    def bind_case(self, node: Case, scope: Scope) -> Value:
        """Bind CASE."""
        conditions = []
        if node.operand is None:
            conditions = [self.truth(condition, scope).lake for condition, _ in node.branches]
        else:
            operand = self.bind(node.operand, scope)
            for condition, _ in node.branches:
                left, right = self.unify(
                    condition, [operand, self.bind(condition, scope)], [node.operand, condition]
                )
                conditions.append(comparison("=", left, right))
        nodes = [result for _, result in node.branches]
        if node.otherwise is not None:
            nodes.append(node.otherwise)
        results = self.unify(node, [self.bind(part, scope) for part in nodes], nodes)
        kind = common_type([(value.type, value.is_literal) for value in results]) or UNKNOWN
        text = " ".join(f"WHEN {c} THEN {r.lake}" for c, r in zip(conditions, results, strict=False))
        otherwise = f" ELSE {results[-1].lake}" if node.otherwise is not None else ""
        return Value(kind, f"CASE {text}{otherwise} END")

    def read_type(self, name: TypeName) -> SqlType:
        """Return the type that is written, or UNKNOWN with a fault."""
        if name.name == "ARRAY":
            return array_of(self.read_type(name.arguments[0]))
        if name.name == "STRUCT":
            return SqlType(
                "STRUCT", fields=tuple(zip(name.fields, map(self.read_type, name.arguments), strict=True))
            )
        kind = SCALARS.get(name.name)
        if kind is None:
            self.fault(name, "type_not_allowed", f"The type {name.name[:40]} is not allowed.")
            return UNKNOWN
        return kind

    def bind_cast(self, node: Cast, scope: Scope) -> Value:
        """Bind CAST or SAFE_CAST."""
        value, kind = self.bind(node.operand, scope), self.read_type(node.type)
        if not (value.type.is_known and kind.is_known):
            return Value(kind, "NULL")
        for extra in (node.format, node.zone):
            if extra is not None:
                found = self.bind(extra, scope).type
                if found.is_known and found not in {STRING, NULL}:
                    self.fault(node, "type_mismatch", f"FORMAT and AT TIME ZONE need a STRING. This is {found}.")
                self.gap(node, "CAST with FORMAT")
        if not is_castable(value.type, kind):
            return self.fault(node, "type_mismatch", f"There is no cast of {value.type} to {kind}.")
        if value.type == kind and not node.is_safe:
            # The type stays, the column does not: a cast pseudo column bounds nothing.
            return Value(value.type, value.lake, origin=value.origin, constant=value.constant)
        return literals.cast(value, kind, is_safe=node.is_safe)

    def bind_extract(self, node: Extract, scope: Scope) -> Value:
        """Bind EXTRACT."""
        value = self.bind(node.operand, scope)
        zone = self.bind(node.zone, scope) if node.zone is not None else None
        if node.part not in PARTS:
            return self.fault(node, "date_part", f"There is no date part {node.part[:40]}.")
        if not value.type.is_known:
            return BROKEN
        if value.type.name not in {"DATE", "DATETIME", "TIMESTAMP", "TIME", "INTERVAL"}:
            return self.fault(node, "type_mismatch", f"EXTRACT needs a date or time. This is {value.type}.")
        if zone is not None and zone.type.is_known:
            if value.type.name != "TIMESTAMP":
                return self.fault(node, "type_mismatch", f"AT TIME ZONE needs a TIMESTAMP. This is {value.type}.")
            if zone.type not in {STRING, NULL}:
                return self.fault(node, "type_mismatch", f"A time zone must be a STRING. This is {zone.type}.")
            self.check_zone(node, zone)
        return literals.extract(node.part, value, zone)

    def check_zone(self, node: Expression, zone: Value) -> None:
        """Note what is wrong with a time zone that is known."""
        if not isinstance(zone.constant, str) or zone.type != STRING:
            return
        try:
            place = parse_zone(zone.constant)
        except ConstantError as exc:
            self.fault(node, "literal_invalid", f"There is {exc}.")
            return
        if not isinstance(place, ZoneInfo) and place is not UTC:
            self.gap(node, "a time zone as an offset")

    def bind_interval(self, node: Interval, scope: Scope) -> Value:
        """Bind an INTERVAL."""
        amount = self.bind(node.amount, scope)
        if node.unit not in PARTS or (node.last_unit and node.last_unit not in PARTS):
            return self.fault(node, "date_part", f"There is no date part {node.unit[:40]}.")
        if node.last_unit:
            raise LakeGapError("an interval over several parts")
        if amount.type not in {INT64, NULL}:
            return self.fault(node, "type_mismatch", f"An interval needs an INT64. This is {amount.type}.")
        return literals.interval(amount, node.unit)

    def bind_query_value(self, node: Subquery, scope: Scope) -> Value:
        """Bind a query used as a value."""
        relation = self.bind_subquery(node.query, scope)
        if node.kind == "EXISTS":
            return Value(BOOL, f"EXISTS ({relation.sql})")
        if len(relation.columns) != 1:
            return self.fault(
                node, "subquery_columns", "A query that is used as a value must have exactly one column."
            )
        kind = relation.columns[0].value.type
        if node.kind == "ARRAY":
            inner = relation.columns[0].value.items
            inner = 0 if inner in {None, DATA_ITEMS} else inner
            items = MANY_ITEMS if relation.rows is None else max(relation.rows, inner or 0)
            text = f"coalesce(ARRAY ({relation.sql}), [])"
            return Value(array_of(kind), text, items=items, is_key=relation.columns[0].value.is_key)
        column = relation.columns[0].value
        return Value(kind, f"({relation.sql})", items=column.items, is_key=column.is_key)

    def bind_array(self, node: ArrayLiteral, scope: Scope) -> Value:
        """Bind an array literal."""
        values = (
            self.unify(node, [self.bind(item, scope) for item in node.items], list(node.items))
            if node.items
            else []
        )
        element = self.read_type(node.element) if node.element else None
        kind = element or common_type([(value.type, value.is_literal) for value in values]) or NULL
        if element is not None:
            values = [literals.bent(value, element) for value in values]
        if any(value.type.element is not None for value in values):
            return self.fault(node, "type_mismatch", "An array can't hold arrays.")
        constants = [value.constant for value in values]
        constant: Any = NOT_CONSTANT if any(c is NOT_CONSTANT for c in constants) else constants
        target = lake_type(array_of(kind)) if kind.is_known else None
        text = f"[{', '.join(value.lake for value in values)}]"
        is_literal = all(value.is_literal for value in values)
        return Value(
            array_of(kind),
            f"CAST({text} AS {target})" if target else text,
            constant=constant,
            is_literal=is_literal,
        )

    def bind_struct(self, node: StructLiteral, scope: Scope) -> Value:
        """Bind a struct or a tuple."""
        values = [self.bind(item, scope) for item, _ in node.items]
        if node.type is None:
            values = [literals.bent(value, settled(value.type)) for value in values]
        if node.type is not None:
            kind = self.read_type(node.type)
            if len(kind.fields) != len(values):
                return self.fault(node, "type_mismatch", f"{kind} takes {len(kind.fields)} values.")
            values = [literals.bent(value, field) for value, (_, field) in zip(values, kind.fields, strict=True)]
        else:
            names = []
            for item, alias in node.items:
                implied = item.names[-1].text if isinstance(item, Path) else None
                names.append(alias.text if alias else implied)
            kind = SqlType("STRUCT", fields=tuple((n, v.type) for n, v in zip(names, values, strict=True)))
        pairs = zip(kind.lake_names, values, strict=True)
        inner = ", ".join(f"{quote_name(name)} := {value.lake}" for name, value in pairs)
        return Value(kind, f"struct_pack({inner})", is_literal=all(value.is_literal for value in values))
