"""The meaning of expressions: names to columns, types from the leaves up, and the text for the lake."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from sql import amplification, literals
from sql.amplification import ARRAY_ROWS
from sql.calls import CallBinding
from sql.comparisons import comparison, membership
from sql.constants import ConstantError
from sql.construct_binder import ConstructBinder
from sql.datatypes import (
    BOOL,
    BYTES,
    DATE,
    DATETIME,
    FLOAT64,
    INT64,
    INTERVAL,
    JSON,
    NUMERIC,
    TIMESTAMP,
    UNKNOWN,
    array_of,
    common_type,
    computed,
    lake_type,
    settled,
)  # fmt: skip
from sql.functions import jsons
from sql.names import AmbiguousNameError, Scope, find_path
from sql.nulls import hides_a_failure
from sql.syntax import (
    ArrayLiteral,
    Between,
    Call,
    Case,
    Cast,
    Chain,
    Comparison,
    Constant,
    Element,
    Expression,
    Extract,
    FieldAccess,
    In,
    Interval,
    Is,
    LikeAny,
    Name,
    Path,
    Placeholder,
    StructLiteral,
    Subquery,
    Unary,
    WindowSpec,
)  # fmt: skip
from sql.values import BROKEN, NOT_CONSTANT, LakeGapError, Value, checked, quote_name, quote_text

MAX_LAKE_TEXT: Final = 200_000
_ARITHMETIC: Final = {"+", "-", "*", "/"}
# https://cloud.google.com/bigquery/docs/reference/standard-sql/data-types#interval_type
_LONGEST: Final = {"YEAR": 10_000, "QUARTER": 40_000, "MONTH": 120_000, "WEEK": 522_857, "DAY": 3_660_000}
_SHIFTS: Final = {"<<", ">>"}
_NUMERIC_CALLS: Final = {"*": "refeed_numeric_product", "/": "refeed_numeric_quotient"}


# Expressions that give back a value which was there before, or pieces of it.
_REFERENCES: Final = (Path, FieldAccess, Element, Subquery, StructLiteral, Cast)
_CHOOSING: Final = frozenset([
    "ANY_VALUE", "ARRAY_AGG", "ARRAY_CONCAT_AGG", "ARRAY_FIRST", "ARRAY_LAST", "ARRAY_REVERSE", "ARRAY_SLICE",
    "FIRST_VALUE", "LAST_VALUE", "MAX", "MAX_BY", "MIN", "MIN_BY", "NTH_VALUE",
])  # fmt: skip


def _hands_on(node: Expression) -> bool:
    """Return whether ``node`` only chooses among values: a message_id in it stays one."""
    return isinstance(node, _REFERENCES) or (isinstance(node, Call) and ".".join(node.name) in _CHOOSING)


def _without_overflow(value: Value, leaves: list[Value]) -> Value:
    """Return a sum or product of FLOAT64 with an error where finite ``leaves`` give none that is finite."""
    if value.type != FLOAT64 or len(leaves) < 2:
        return value
    finite = [f"isfinite({leaf.lake})" for leaf in leaves if leaf.type == FLOAT64 and not leaf.is_literal]
    outside = " AND ".join([f"NOT isfinite({value.lake})", *finite])
    text = f"(CASE WHEN {outside} THEN error('Floating point overflow') ELSE {value.lake} END)"
    return replace(value, lake=text)


class ExpressionBinder(ConstructBinder):
    """Binds expressions; queries inside them are bound by the subclass."""

    @abstractmethod
    def window(self, spec: WindowSpec, scope: Scope) -> WindowSpec:
        """Return ``spec`` with the window that it names written out."""

    def bind(self, node: Expression, scope: Scope) -> Value:
        """Return what ``node`` is inside ``scope``; a fault inside gives a broken value, never an exception."""
        if id(node) in scope.grouped:
            return scope.grouped[id(node)]
        try:
            value = self._dispatch(node, scope)
        except LakeGapError as exc:
            self.gap(node, exc)
            value = BROKEN
        except ConstantError as exc:
            value = self.fault(node, "literal_invalid", f"This is {exc}.")
        if hides_a_failure(node, self.values):
            # The lake's engine gives NULL and looks no further; Google's fails where the rest does.
            self.gap(node, "a NULL next to a call that may fail. Write NULL instead of the whole expression")
        if len(value.lake) > MAX_LAKE_TEXT:
            # Functions that name an argument twice would double the text at every level.
            self.gap(node, "an expression that would be too long in its SQL")
            value = replace(value, lake="NULL")
        if not _hands_on(node):
            value = replace(value, type=computed(value.type))
        if amplification.is_key(self, node, value):
            value = replace(value, is_key=True)
        items = amplification.count_items(self, node, value)
        if items is not None and (items > ARRAY_ROWS or items < 0):
            self.items[id(node)] = items
            value = replace(value, items=items)
        self.values[id(node)] = value
        return value

    def _dispatch(self, node: Expression, scope: Scope) -> Value:
        match node:
            case Constant():
                return literals.constant(node)
            case Placeholder():
                return self._placeholder(node)
            case Path():
                return self._path(node, scope)
            case FieldAccess():
                return self._field(self.bind(node.base, scope), node.name)
            case Element():
                return self._element(node, scope)
            case Call():
                return CallBinding(self, node, scope).bind()
            case Chain():
                return self._chain(node, scope)
            case Comparison():
                return self._comparison(node, scope)
            case Unary():
                return self._unary(node, scope)
            case Is():
                return self._is(node, scope)
            case Between():
                return self._between(node, scope)
            case In():
                return self._in(node, scope)
            case LikeAny():
                return self._like_any(node, scope)
            case Case():
                return self.bind_case(node, scope)
            case Cast():
                return self.bind_cast(node, scope)
            case Extract():
                return self.bind_extract(node, scope)
            case Interval():
                return self.bind_interval(node, scope)
            case Subquery():
                return self.bind_query_value(node, scope)
            case ArrayLiteral():
                return self.bind_array(node, scope)
            case StructLiteral():
                return self.bind_struct(node, scope)
            case _:
                return self.fault(node, "syntax", "This kind of expression is not allowed.")

    # --- names ---------------------------------------------------------------------------------------------------

    def _placeholder(self, node: Placeholder) -> Value:
        name = next((known for known in self.parameters if known.lower() == node.name.lower()), None)
        if name is None:
            return self.fault(
                node,
                "parameter_missing",
                f"No value is given for @{node.name[:60]}.",
                "Add the parameter to the request's parameters.",
            )
        key = self.used_parameters.setdefault(name, f"p{len(self.used_parameters)}")
        return literals.placeholder(self.parameters[name], key)

    def _path(self, node: Path, scope: Scope) -> Value:
        try:
            found = find_path(scope, node.names)
        except AmbiguousNameError:
            return self.fault(
                node,
                "name_ambiguous",
                f"{node.names[0].text} may mean more than one column. Write the name of the table before it.",
            )
        if found is None:
            text = ".".join(name.text for name in node.names)[:120]
            return self.fault(node, "column_unknown", f"There is no column {text} here.")
        value = found.value
        beginnings = [value.lake]
        for name in node.names[found.taken :]:
            value = self._field(value, name)
            beginnings.append(value.lake)
        if found.scope.group_keys is not None and not (found.scope.in_aggregate or found.is_alias):
            found.scope.loose.append((node.at, tuple(beginnings)))
        return value

    def _field(self, base: Value, name: Name) -> Value:
        if not base.type.is_known:
            return BROKEN
        if base.type == JSON:
            lake = jsons.inside(f"json_extract({base.lake}, {quote_text('$.' + chr(34) + name.text + chr(34))})")
            return Value(JSON, lake, is_key=base.is_key)
        kind = base.type.field(name.key)
        if kind is None:
            return self.fault(name, "column_unknown", f"{base.type} has no field {name.text[:60]}.")
        actual = next(field for field, _ in base.type.fields if field and field.lower() == name.key)
        lake = f"({base.lake}).{quote_name(actual)}"
        return Value(kind, lake, items=base.items, is_key=base.is_key)

    def _element(self, node: Element, scope: Scope) -> Value:
        base = self.bind(node.base, scope)
        index = self.bind(node.index, scope)
        if not base.type.is_known or not index.type.is_known:
            return BROKEN
        if base.type == JSON and not node.mode:
            if isinstance(index.constant, str):
                path = quote_text('$."' + index.constant.replace('"', "") + '"')
                return Value(JSON, jsons.inside(f"json_extract({base.lake}, {path})"))
            return Value(JSON, jsons.inside(f"json_extract({base.lake}, '$[' || {index.lake} || ']')"))
        if base.type.element is None or index.type != INT64:
            return self.fault(node, "type_mismatch", f"{base.type} has no elements that {index.type} can select.")
        first = 1 if "ORDINAL" in node.mode else 0
        taken = f"({base.lake})[({index.lake} + {1 - first})]"
        inside = f"{index.lake} BETWEEN {first} AND len({base.lake}) - {1 - first}"
        if node.mode.startswith("SAFE"):
            return Value(base.type.element, f"CASE WHEN {inside} THEN {taken} END")
        wrong = "error('Array index is out of bounds')"
        outside = f"({base.lake}) IS NOT NULL AND NOT ({inside}) THEN {wrong}"
        return Value(base.type.element, f"CASE WHEN {inside} THEN {taken} WHEN {outside} END")

    # --- operators -----------------------------------------------------------------------------------------------

    def truth(self, node: Expression, scope: Scope) -> Value:
        """Bind a condition."""
        value = self.bind(node, scope)
        if value.type.name not in {"BOOL", "NULL", "UNKNOWN"}:
            return self.fault(node, "type_mismatch", f"A condition must be BOOL. This is {value.type}.")
        return value

    def _chain(self, node: Chain, scope: Scope) -> Value:
        if node.operators[0] in {"AND", "OR"}:
            parts = [self.truth(operand, scope).lake for operand in node.operands]
            return Value(BOOL, "(" + f" {node.operators[0]} ".join(parts) + ")")
        self._refuse_null(
            node, [operator for operator in node.operators if operator not in _SHIFTS], node.operands
        )
        value = self.bind(node.operands[0], scope)
        leaves = [value]
        for operator, operand in zip(node.operators, node.operands[1:], strict=True):
            right = self.bind(operand, scope)
            if operator not in _ARITHMETIC - {"/"}:
                value, leaves = _without_overflow(value, leaves), []
            value = self._binary(node, operator, value, right)
            leaves = [*leaves, right] if leaves else [value]
        return _without_overflow(value, leaves)

    def _refuse_null(self, node: Expression, operators: Sequence[str], operands: Sequence[Expression]) -> None:
        """Refuse a bare NULL beside an operator that GoogleSQL gives none: it says nothing, and has no type."""
        if operators and any(isinstance(operand, Constant) and operand.type == "NULL" for operand in operands):
            rewrite = "x IS NULL, or CAST(NULL AS STRING)"
            self.fault(node, "literal_invalid", f"{operators[0]} does not take a bare NULL.", rewrite)

    def _binary(self, node: Expression, operator: str, left: Value, right: Value) -> Value:
        if not (left.type.is_known and right.type.is_known):
            return Value(UNKNOWN, "NULL")
        if operator == "||":
            return self._concatenate(node, left, right)
        if operator in {"+", "-"} and (moved := self._moved(operator, left, right)) is not None:
            return moved
        both = common_type([(left.type, left.is_literal), (right.type, right.is_literal)])
        if both is None or not both.is_number or (operator not in _ARITHMETIC and both != INT64):
            return self.fault(node, "type_mismatch", f"{operator} does not accept {left.type} and {right.type}.")
        if operator == "^":
            return Value(both, f"xor({left.lake}, {right.lake})")
        if operator in _SHIFTS:
            negative = f"{right.lake} < 0 AND ({left.lake}) IS NOT NULL"
            wrong = f"WHEN {negative} THEN error('Bitwise shift by a negative offset')"
            places = f"CASE {wrong} ELSE {right.lake} END"
            return Value(both, f"refeed_shift({left.lake}, {'-' if operator == '>>' else ''}{places})")
        if both == NUMERIC:
            left, right = literals.coerce(left, both), literals.coerce(right, both)
            if operator in _NUMERIC_CALLS:
                return Value(both, f"{_NUMERIC_CALLS[operator]}({left.lake}, {right.lake})")
        if operator == "/":
            result = FLOAT64 if both == INT64 else both
            quotient = f"{left.lake} / {right.lake}"
            if right.is_literal and (literals.number_of(None, right) or 0) >= 1:
                return Value(result, f"({quotient})")
            # The engine divides by zero to infinity, and by little.
            zero = f"WHEN {right.lake} = 0 AND ({left.lake}) IS NOT NULL THEN error('division by zero')"
            if FLOAT64 in {left.type, right.type}:
                finite = f"isinf({quotient}) AND isfinite(CAST({left.lake} AS DOUBLE))"
                zero += f" WHEN {finite} THEN error('Floating point overflow')"
            return Value(result, f"(CASE {zero} ELSE {quotient} END)")
        constant: Any = NOT_CONSTANT
        if (
            isinstance(left.constant, int)
            and isinstance(right.constant, int)
            and both == INT64
            and operator in _ARITHMETIC
        ):
            constant = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[operator](
                left.constant, right.constant
            )
        return Value(both, f"({left.lake} {operator} {right.lake})", constant=constant)

    def _concatenate(self, node: Expression, left: Value, right: Value) -> Value:
        both = common_type([(left.type, left.is_literal), (right.type, right.is_literal)])
        if both is None or (both.name not in {"STRING", "BYTES"} and both.element is None):
            return self.fault(node, "type_mismatch", f"|| does not accept {left.type} and {right.type}.")
        constant: Any = NOT_CONSTANT
        if isinstance(left.constant, str) and isinstance(right.constant, str):
            constant = left.constant + right.constant
        return Value(both, f"({left.lake} || {right.lake})", constant=constant)

    def _moved(self, operator: str, left: Value, right: Value) -> Value | None:
        """Return a date or time moved by days or an interval."""
        if (
            operator == "+"
            and left.type.name in {"INT64", "INTERVAL"}
            and right.type.name in {"DATE", "DATETIME", "TIMESTAMP"}
        ):
            left, right = right, left
        if left.type == DATE and right.type == INT64:
            amount = (right.constant, "DAY") if isinstance(right.constant, int) else None
            # The engine would fail on days that INTEGER can't hold, also of no date.
            count = literals.within(right, _LONGEST["DAY"])
            days = f"CAST(CASE WHEN ({left.lake}) IS NOT NULL THEN {count} END AS INTEGER)"
            lake = checked(f"CAST(({left.lake} {operator} {days}) AS DATE)", DATE)
            return Value(DATE, lake, constant=literals.moved(left.constant, operator, amount))
        if left.type.name in {"DATE", "DATETIME", "TIMESTAMP"} and right.type == INTERVAL:
            kind = DATETIME if left.type == DATE else left.type
            if kind == TIMESTAMP and right.lake.startswith(("to_months", "to_years")):
                raise LakeGapError("a TIMESTAMP moved by months")
            if isinstance(right.constant, tuple) and right.constant[1] in _LONGEST:
                count, unit = right.constant
                if abs(count) > _LONGEST[unit]:
                    raise LakeGapError("an interval of more than 10,000 years")
            lake = checked(f"CAST(({left.lake} {operator} {right.lake}) AS {lake_type(kind)})", kind)
            amount = right.constant if isinstance(right.constant, tuple) else None
            return Value(kind, lake, constant=literals.moved(left.constant, operator, amount))
        if operator == "-" and left.type == right.type and left.type.name in {"DATE", "DATETIME", "TIMESTAMP"}:
            return Value(INTERVAL, f"({left.lake} - {right.lake})")
        return None

    def _comparison(self, node: Comparison, scope: Scope) -> Value:
        if "DISTINCT" not in node.operator:
            self._refuse_null(node, [node.operator], [node.left, node.right])
        left, right = self.bind(node.left, scope), self.bind(node.right, scope)
        if not (left.type.is_known and right.type.is_known):
            return Value(BOOL, "NULL")
        left, right = self.unify(node, [left, right], [node.left, node.right])
        if not (left.type.is_known and right.type.is_known):
            return Value(BOOL, "NULL")
        if node.operator in {"LIKE", "NOT LIKE"}:
            if left.type.name not in {"STRING", "NULL", "INT64"} or left.type == INT64:
                if left.type == BYTES:
                    raise LakeGapError("LIKE over BYTES")
                return self.fault(node, "type_mismatch", f"LIKE does not accept {left.type} and {right.type}.")
            return Value(BOOL, f"({left.lake} {node.operator} {right.lake} ESCAPE '\\')")
        if left.type == JSON or (left.type.element is not None):
            return self.fault(node, "type_mismatch", f"Values of {left.type} can't be compared.")
        if left.type.name == "STRUCT" and node.operator in {"<", "<=", ">", ">="}:
            return self.fault(node, "type_mismatch", f"{node.operator} does not accept {left.type}.")
        if left.type.name == "STRUCT" and "DISTINCT" in node.operator:
            raise LakeGapError("IS DISTINCT FROM of structs")
        return Value(BOOL, comparison(node.operator, left, right))

    def unify(self, node: Expression, values: list[Value], nodes: list[Expression]) -> list[Value]:
        """Return ``values`` brought to the one type they can be compared in; literals bend to the columns."""
        target = common_type([(value.type, value.is_literal) for value in values])
        if target is None:
            kinds = " and ".join(dict.fromkeys(str(value.type) for value in values))
            rewrite = None
            if {"DATE", "TIMESTAMP"} <= {value.type.name for value in values}:
                rewrite = "Wrap the DATE in TIMESTAMP(...), or the TIMESTAMP in DATE(...)."
            self.fault(node, "type_mismatch", f"The types {kinds} do not match.", rewrite)
            return [BROKEN for _ in values]
        out = []
        for value, part in zip(values, nodes, strict=True):
            try:
                out.append(replace(literals.coerce(value, target), is_key=value.is_key))
            except ConstantError as exc:
                out.append(self.fault(part, "literal_invalid", f"This is {exc}."))
            self.values[id(part)] = out[-1]
        return out

    def _unary(self, node: Unary, scope: Scope) -> Value:
        self._refuse_null(node, [node.operator], [node.operand])
        if node.operator == "NOT":
            return Value(BOOL, f"(NOT {self.truth(node.operand, scope).lake})")
        value = self.bind(node.operand, scope)
        if not value.type.is_known:
            return value
        if not value.type.is_number and not (value.type == INTERVAL and node.operator == "-"):
            return self.fault(node, "type_mismatch", f"{node.operator} does not accept {value.type}.")
        if node.operator == "~" and value.type != INT64:
            return self.fault(node, "type_mismatch", f"~ does not accept {value.type}.")
        constant = -value.constant if node.operator == "-" and isinstance(value.constant, int) else NOT_CONSTANT
        return Value(value.type, f"({node.operator}{value.lake})", constant=constant)

    def _is(self, node: Is, scope: Scope) -> Value:
        value = self.bind(node.operand, scope) if node.what == "NULL" else self.truth(node.operand, scope)
        what = "NULL" if node.what == "UNKNOWN" else node.what
        return Value(BOOL, f"({value.lake} IS {'NOT ' if node.is_negated else ''}{what})")

    def _between(self, node: Between, scope: Scope) -> Value:
        nodes = [node.operand, node.low, node.high]
        value, low, high = self.unify(node, [self.bind(part, scope) for part in nodes], nodes)
        negation = "NOT " if node.is_negated else ""
        if value.type == FLOAT64:
            inside = f"{comparison('>=', value, low)} AND {comparison('<=', value, high)}"
            return Value(BOOL, f"({negation}({inside}))")
        return Value(BOOL, f"({value.lake} {negation}BETWEEN {low.lake} AND {high.lake})")

    def _in(self, node: In, scope: Scope) -> Value:
        negation = "NOT " if node.is_negated else ""
        if node.query is not None:
            value = self.bind(node.operand, scope)
            relation = self.bind_subquery(node.query, scope)
            if len(relation.columns) != 1:
                return self.fault(node.query, "subquery_columns", "A query after IN must have exactly one column.")
            inner = relation.columns[0].value
            value = literals.bent(value, settled(value.type))
            if common_type([(value.type, value.is_literal), (inner.type, False)]) is None:
                return self.fault(node, "type_mismatch", f"The types {value.type} and {inner.type} do not match.")
            inside = relation.sql
            if inner.type == FLOAT64:
                # NaN is in no list.
                inside = f"SELECT f FROM ({relation.sql}) AS q(f) WHERE f IS NULL OR NOT isnan(f)"
            return Value(BOOL, f"({literals.bent(value, inner.type).lake} {negation}IN ({inside}))")
        if node.array is not None:
            value, array = self.bind(node.operand, scope), self.bind(node.array, scope)
            if not array.type.is_known:
                return Value(BOOL, "NULL")
            if array.type.element is None:
                return self.fault(node.array, "type_mismatch", f"UNNEST needs an ARRAY. This is {array.type}.")
            if common_type([(value.type, value.is_literal), (array.type.element, array.is_literal)]) is None:
                return self.fault(
                    node, "type_mismatch", f"The types {value.type} and {array.type.element} do not match."
                )
            array = literals.bent(array, array_of(value.type))
            self.values[id(node.array)] = array
            return Value(BOOL, f"({value.lake} {negation}IN (SELECT unnest({array.lake})))")
        if not node.items:
            return self.fault(node, "syntax", "IN needs at least one value.")
        nodes = [node.operand, *node.items]
        value, *items = self.unify(node, [self.bind(part, scope) for part in nodes], nodes)
        return Value(BOOL, membership(value, items, is_negated=node.is_negated))

    def _like_any(self, node: LikeAny, scope: Scope) -> Value:
        nodes = [node.operand, *node.patterns]
        value, *patterns = self.unify(node, [self.bind(part, scope) for part in nodes], nodes)
        # NOT LIKE ANY is NOT (LIKE ANY ...) for ALL and the reverse for ANY: each pattern is negated.
        word = "NOT LIKE" if node.is_negated else "LIKE"
        tests = [f"{value.lake} {word} {pattern.lake} ESCAPE '\\'" for pattern in patterns]
        joiner = " AND " if node.quantifier == "ALL" else " OR "
        return Value(BOOL, f"({joiner.join(tests)})")
