"""The meaning of a function call: is it allowed, do its arguments fit, what comes out."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from sql import literals
from sql.arguments import ArgumentBinding
from sql.constants import MAX_ARRAY, fold
from sql.datatypes import DATE, INT64, NULL, STRING, UNKNOWN
from sql.functions.catalog import FUNCTIONS
from sql.functions.registry import DISTINCT, NULLS, ORDER, OVER, Function
from sql.names import Scope
from sql.safety import tried
from sql.sorting import order_item
from sql.syntax import Call, Expression, Interval, NamedArgument, OrderItem, Path
from sql.values import AGGREGATED_ITEMS, BROKEN, MANY_ITEMS, NOT_CONSTANT, LakeGapError, Partition, Value
from sql.windows import WindowBinding

if TYPE_CHECKING:
    from sql.expression_binder import ExpressionBinder

_SECRETIVE: Final = {
    "SESSION_USER": "shows who runs the query",
    "EXTERNAL_QUERY": "reads another database",
    "CURRENT_USER": "shows who runs the query",
}
_PREFIXES: Final = {
    "AEAD": "reads keys",
    "KEYS": "makes or reads keys",
    "ML": "calls a model",
    "AI": "calls a model",
}
# Aggregates that take ORDER BY and LIMIT, or IGNORE NULLS, between their parentheses.
_ORDERED: Final = {"ARRAY_AGG", "STRING_AGG", "ARRAY_CONCAT_AGG"}
_NOT_DISTINCT: Final = {"CORR", "COVAR_POP", "COVAR_SAMP"}
_NULLS: Final = {
    "ARRAY_AGG",
    "FIRST_VALUE",
    "LAST_VALUE",
    "NTH_VALUE",
    "LAG",
    "LEAD",
    "PERCENTILE_CONT",
    "PERCENTILE_DISC",
}
# What the lake's engine refuses inside of TRY.
# Aggregates that make an array of what they see.
_GATHERING: Final = frozenset({"ARRAY_AGG", "ARRAY_CONCAT_AGG", "STRING_AGG"})
# Functions that make values longer than what they get: the argument that says how long, None for arrays.
_GROWING: Final[dict[str, int | None]] = {
    "GENERATE_ARRAY": None,
    "GENERATE_DATE_ARRAY": None,
    "GENERATE_TIMESTAMP_ARRAY": None,
    "REPEAT": 1,
    "LPAD": 1,
    "RPAD": 1,
}
MAX_GROWTH: Final = 10_000
_DAYS: Final = frozenset({"DAY", "WEEK", "ISOWEEK", "MONTH", "QUARTER", "YEAR", "ISOYEAR"})
_CLOCK: Final = frozenset({"NANOSECOND", "MICROSECOND", "MILLISECOND", "SECOND", "MINUTE", "HOUR"})
# The date parts that EXTRACT alone takes.
_ONLY_EXTRACTED: Final = frozenset({"DATE", "DATETIME", "TIME", "DAYOFWEEK", "DAYOFYEAR", "NANOSECOND"})
# The date parts of functions that do not take all: https://cloud.google.com/bigquery/docs/reference/standard-sql/
_UNITS: Final[dict[str, frozenset[str]]] = {
    **dict.fromkeys(("DATE_ADD", "DATE_SUB", "GENERATE_DATE_ARRAY"), _DAYS),
    "LAST_DAY": _DAYS - {"DAY"},
    **dict.fromkeys(("TIME_ADD", "TIME_SUB", "TIME_DIFF", "TIME_TRUNC"), _CLOCK),
    **dict.fromkeys(
        ("TIMESTAMP_ADD", "TIMESTAMP_SUB", "TIMESTAMP_DIFF", "GENERATE_TIMESTAMP_ARRAY"), _CLOCK | {"DAY"}
    ),
}
# The arguments that are JSON paths. Google's analyzer refuses one that is not constant: "JSONPath must be a string
# literal or query parameter",
# https://github.com/google/zetasql/blob/master/zetasql/common/builtin_function_internal_1.cc
_PATHS: Final[dict[str, slice]] = {
    **dict.fromkeys(
        (
            "JSON_EXTRACT",
            "JSON_EXTRACT_ARRAY",
            "JSON_EXTRACT_SCALAR",
            "JSON_EXTRACT_STRING_ARRAY",
            "JSON_QUERY",
            "JSON_QUERY_ARRAY",
            "JSON_STRIP_NULLS",
            "JSON_VALUE",
            "JSON_VALUE_ARRAY",
        ),
        slice(1, 2),
    ),
    "JSON_REMOVE": slice(1, None),
    **dict.fromkeys(("JSON_ARRAY_APPEND", "JSON_ARRAY_INSERT", "JSON_SET"), slice(1, None, 2)),
}


class CallBinding:
    """Binds one call."""

    def __init__(self, binder: ExpressionBinder, node: Call, scope: Scope) -> None:
        self._binder = binder
        self._node = node
        self._scope = scope

    def bind(self) -> Value:
        """Return the value of the call."""
        node = self._node
        name = node.name
        is_safe = len(name) > 1 and name[0] == "SAFE"
        dotted = ".".join(name[1:] if is_safe else name)
        if dotted in {"CURRENT_DATE", "CURRENT_TIMESTAMP", "CURRENT_DATETIME"} and not is_safe:
            return self._now(dotted)
        function = FUNCTIONS.get(dotted)
        if function is None:
            return self._unknown(dotted)
        if is_safe and function.kind != "scalar":
            return self._fault(
                "function_not_allowed",
                f"SAFE.{dotted} is not allowed. Use the prefix SAFE only before a scalar function.",
            )
        if not self._check_shape(function):
            self._bind_all()
            return BROKEN
        if node.is_star:
            return self._finish(function, [], "count(*)")
        args = ArgumentBinding(self._binder, node, self._scope).bind(function)
        if args is None:
            return BROKEN
        before = self._binder.fault_count
        self._check_units(function, args)
        self._check_paths(function, args)
        if self._binder.fault_count > before:
            return BROKEN
        if any(not arg.type.is_known for arg in args):
            return Value(function.result(args) if function.kind != "window" or args else UNKNOWN, "NULL")
        known = self._known(function, args)
        if known is not None:
            return known
        try:
            lake = tried(dotted, function.lake, args) if is_safe else function.lake(args)
        except LakeGapError as exc:
            self._binder.gap(node, f"{'SAFE.' if is_safe else ''}{dotted}: {exc}")
            lake = "NULL"
        return self._finish(function, args, lake)

    def _fault(self, code: str, message: str, rewrite: str | None = None) -> Value:
        return self._binder.fault(self._node, code, message, rewrite)

    def _unknown(self, dotted: str) -> Value:
        self._bind_all()
        why = _SECRETIVE.get(dotted) or _PREFIXES.get(dotted.partition(".")[0] if "." in dotted else "")
        reason = f" because it {why}" if why else "; built-in functions of GoogleSQL are"
        return self._fault("function_not_allowed", f"The function {dotted[:80]} is not allowed{reason}.")

    def _bind_all(self) -> None:
        """Look into the arguments of a call that is refused, for what else is wrong."""
        for argument in self._node.arguments:
            inner = argument.value if isinstance(argument, NamedArgument) else argument
            if isinstance(inner, Expression) and not isinstance(inner, Path):
                self._binder.bind(inner, self._scope)

    def _now(self, name: str) -> Value:
        node = self._node
        if node.over or node.is_star or len(node.arguments) > 1:
            return self._fault("function_arguments", f"{name} accepts only a time zone.")
        now = self._binder.policy.now
        if not node.arguments:
            return literals.moment(
                {"CURRENT_DATE": now.date(), "CURRENT_TIMESTAMP": now}.get(name, now.replace(tzinfo=None))
            )
        zone = (
            self._binder.bind(node.arguments[0], self._scope)
            if isinstance(node.arguments[0], Expression)
            else BROKEN
        )
        if name == "CURRENT_TIMESTAMP" or not isinstance(zone.constant, str):
            return self._fault("function_arguments", f"{name} accepts only a constant time zone.")
        day = fold(name.removeprefix("CURRENT_"), [now, zone.constant])
        if day is NOT_CONSTANT:
            return self._fault("function_arguments", f"{name} does not know the time zone {zone.constant[:40]}.")
        return literals.moment(day)

    def _check_shape(self, function: Function) -> bool:
        """Say whether the call has only what this kind of function may have."""
        node, name = self._node, function.name
        before = self._binder.fault_count
        if node.is_star and name != "COUNT":
            self._fault("function_arguments", f"{name} does not accept *.")
        if not node.is_star and not function.takes(len(node.arguments) - self._count_named()):
            self._fault("function_arguments", f"{name} does not take {len(node.arguments)} arguments.")
        if function.kind == "scalar" and (
            node.is_distinct or node.order_by or node.limit or node.having or node.nulls or node.over
        ):
            self._fault(
                "function_arguments",
                f"{name} is not an aggregate: DISTINCT, ORDER BY, LIMIT and OVER are not allowed.",
            )
        if node.is_distinct and name in _NOT_DISTINCT:
            self._fault("function_arguments", f"{name} does not accept DISTINCT.")
        if (node.order_by or node.limit) and name not in _ORDERED:
            self._fault("function_arguments", f"{name} does not accept ORDER BY or LIMIT.")
        if node.nulls and name not in _NULLS:
            self._fault("function_arguments", f"{name} does not accept IGNORE NULLS or RESPECT NULLS.")
        if node.having and (function.kind != "aggregate" or node.over):
            self._fault("function_arguments", f"{name} does not accept HAVING here.")
        if function.kind == "window" and node.over is None:
            self._fault(
                "function_arguments", f"{name} needs OVER (...).", f"{name}(...) OVER (ORDER BY publish_time)"
            )
        self._scope.has_windows |= node.over is not None
        if node.over is not None and not self._scope.allows_windows:
            self._fault("window_not_allowed", f"Window functions are not allowed in {self._scope.clause}.")
        if function.kind == "aggregate" and node.over is None and not self._scope.allows_aggregates:
            self._fault("aggregate_not_allowed", f"Aggregates are not allowed in {self._scope.clause}.")
        if function.kind == "aggregate" and node.over is None and self._scope.in_aggregate:
            self._fault("aggregate_not_allowed", "An aggregate can't be an argument of another aggregate.")
        return self._binder.fault_count == before

    def _check_units(self, function: Function, args: list[Value]) -> None:
        """Refuse a date part that the function does not take: a DATE has no hours, a TIMESTAMP no months."""
        kind = args[0].type.name if args else ""
        for value in args if "PART" in function.parameters else ():
            if value.lake == "NULL" and value.type == STRING and value.constant in _ONLY_EXTRACTED:
                self._fault("date_part", f"{function.name} does not take {value.constant}.")
        self._check_clock_of_a_date(function, args)
        units = _UNITS.get(function.name) or (_UNITS["DATE_ADD"] if kind == "DATE" else None)
        if function.name == "DATE_DIFF" and kind == "TIMESTAMP":
            units = _UNITS["TIMESTAMP_DIFF"]
        if units is None or not (function.name in _UNITS or function.name in {"DATE_DIFF", "DATE_TRUNC"}):
            return
        for argument, value in zip(self._node.arguments, args, strict=False):
            unit = argument.unit if isinstance(argument, Interval) else None
            if (
                function.name.endswith(("_DIFF", "_TRUNC", "LAST_DAY"))
                and value.lake == "NULL"
                and value.type == STRING
            ):
                unit = value.constant
            if unit is not None and unit.partition("(")[0] not in units:
                self._fault("date_part", f"{function.name} does not take {unit} of {args[0].type}.")

    def _check_clock_of_a_date(self, function: Function, args: list[Value]) -> None:
        """Refuse to move or cut a DATE by parts of a day where a DATETIME is moved or cut."""
        if function.name not in {"DATETIME_ADD", "DATETIME_SUB", "DATETIME_TRUNC"}:
            return
        moved = self._binder.values.get(id(self._node.arguments[0]))
        by = self._node.arguments[1]
        unit = by.unit if isinstance(by, Interval) else args[1].constant
        if moved is not None and moved.type == DATE and unit in _CLOCK:
            self._fault("date_part", f"{function.name} does not take {unit} of DATE.")

    def _check_paths(self, function: Function, args: list[Value]) -> None:
        """Refuse a JSON path that is not constant."""
        paths = [arg for arg in args if not arg.named][_PATHS.get(function.name, slice(0))]
        if any(path.constant is NOT_CONSTANT and path.type.is_known and path.type != NULL for path in paths):
            self._fault(
                "function_arguments",
                f"{function.name} takes only a constant JSON path: a literal or a parameter. For a path that "
                f"depends on the message, use [ ] after a JSON value.",
            )

    def _count_named(self) -> int:
        return sum(isinstance(argument, NamedArgument) for argument in self._node.arguments)

    def _known(self, function: Function, args: list[Value]) -> Value | None:
        """Return a date or time that is known before the query runs."""
        kind = function.result(args)
        constants = literals.known_arguments(args)
        if constants is None or self._node.name[0] == "SAFE" or kind.name not in {"DATE", "TIMESTAMP", "DATETIME"}:
            return None
        value = fold(function.name, constants)
        if not isinstance(value, date):
            return None
        return literals.moment(value)

    # --- what comes out ------------------------------------------------------------------------------------------

    def _finish(self, function: Function, args: list[Value], lake: str) -> Value:
        node = self._node
        if node.is_star:
            self._scope.has_aggregates |= node.over is None
            kind = INT64
        else:
            kind = function.result(args)
        if function.kind != "scalar":
            return Value(kind, self._over_rows(function, args, lake), items=self._gathered(function))
        constants = literals.known_arguments(args)
        known: Any = (
            fold(function.name, constants) if constants is not None and node.name[0] != "SAFE" else NOT_CONSTANT
        )
        items = self._check_growth(function, args, known) if function.name in _GROWING else None
        if function.name == "ARRAY_SLICE" and all(isinstance(arg.constant, int) for arg in args[1:]):
            first, last = args[1].constant, args[2].constant
            items = max(last - first + 1, 1) if 0 <= first <= last or first <= last < 0 else items
        if function.name == "ANY_VALUE":
            return Value(kind, lake)
        return Value(kind, lake, partition=self._partition(function, args), constant=known, items=items)

    def _gathered(self, function: Function) -> int | None:
        """Return how many elements an array that an aggregate makes may have."""
        if function.name not in _GATHERING:
            return None
        limit = self._binder.values.get(id(self._node.limit)) if self._node.limit is not None else None
        if limit is not None and isinstance(limit.constant, int):
            return limit.constant
        return AGGREGATED_ITEMS if self._node.over is None else MANY_ITEMS

    def _check_growth(self, function: Function, args: list[Value], known: object) -> int | None:
        """Refuse what makes much out of nothing: arrays and strings of a length not known to be small.

        Return what of a string's length an array of its pieces could have.
        """
        place = _GROWING[function.name]
        if place is None:
            # What is no list was too long to be made here, or has ends that only the rows know.
            if not isinstance(known, list):
                message = f"{function.name} needs constant bounds and at most {MAX_ARRAY:,} elements."
                self._fault("row_amplification", message)
            return None
        length = args[place].constant
        if not isinstance(length, int) or length > MAX_GROWTH:
            self._fault("row_amplification", f"{function.name} needs a constant length of at most {MAX_GROWTH:,}.")
            return None
        # What is repeated may be a repetition itself.
        return length * max([1, *(arg.items for arg in args if arg.items is not None)])

    def _partition(self, function: Function, args: list[Value]) -> Partition | None:
        """Return what of a pseudo column is left when it is cut to a unit."""
        if not args or args[0].partition is None or self._node.name[0] == "SAFE":
            return None
        whole = args[0].partition
        unit = whole.unit
        if unit is not None:
            # What is a day already can still be cut to a month.
            is_date = function.name == "DATE_TRUNC" and unit == "DAY" and len(args) == 2
            return replace(whole, unit=str(args[1].constant)) if is_date else None
        if function.name == "DATE" and (len(args) == 1 or args[1].constant == "UTC"):
            return replace(whole, unit="DAY")
        is_cut = function.name in {"TIMESTAMP_TRUNC", "DATE_TRUNC"}
        if is_cut and (len(args) == 2 or args[2].constant == "UTC"):
            return replace(whole, unit=str(args[1].constant))
        return None

    def _over_rows(self, function: Function, args: list[Value], lake: str) -> str:
        node = self._node
        order = ""
        if node.order_by:
            inside = self._scope.in_aggregate
            self._scope.in_aggregate = True
            order = " ORDER BY " + self._order_text(node.order_by, args)
            self._scope.in_aggregate = inside
        lake = lake.replace(DISTINCT, "DISTINCT " if node.is_distinct else "").replace(ORDER, order)
        lake = lake.replace(NULLS, " IGNORE NULLS" if node.nulls == "IGNORE" else "")
        if node.having:
            self._scope.in_aggregate = True
            self._binder.bind(node.having[1], self._scope)
            self._scope.in_aggregate = False
            self._binder.gap(node, f"{function.name} with HAVING")
        if function.name == "ARRAY_AGG" and node.nulls == "IGNORE" and args:
            lake += f" FILTER (WHERE {args[0].lake} IS NOT NULL)"
        window = ""
        if node.over is not None:
            window = f" OVER ({WindowBinding(self._binder, node, self._scope).bind(function, node.over)})"
        lake = lake.replace(OVER, window) if OVER in lake else lake + window
        if function.name == "SUM" and args and args[0].type == INT64:
            # The engine sums integers into a wider type.
            lake = f"CAST({lake} AS BIGINT)"
        if node.limit is not None:
            count = self._binder.bind(node.limit, self._scope)
            if not isinstance(count.constant, int):
                self._fault("limit_not_constant", "LIMIT needs a constant.")
            elif function.name == "ARRAY_AGG":
                lake = f"list_slice({lake}, 1, {count.constant})"
            else:
                self._binder.gap(node, f"{function.name} with LIMIT")
        return lake

    def _order_text(self, items: tuple[OrderItem, ...], args: list[Value]) -> str:
        """Return sort keys for the lake."""
        keys = [order_item(self._binder, item, self._scope) for item in items]
        if self._node.is_distinct and any(not key.startswith(f"{args[0].lake} ") for key in keys):
            self._fault("function_arguments", "DISTINCT values can only be ordered by themselves.")
        return ", ".join(keys)
