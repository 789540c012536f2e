"""The meaning of OVER (...): which windows a function takes, and what the lake's engine calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sql import literals
from sql.datatypes import INT64
from sql.sorting import direction, order_item

if TYPE_CHECKING:
    from sql.expression_binder import ExpressionBinder
    from sql.functions.registry import Function
    from sql.names import Scope
    from sql.syntax import Call, FrameBound, OrderItem, WindowSpec

_NEEDS_ORDER: Final = {
    "RANK", "DENSE_RANK", "PERCENT_RANK", "CUME_DIST", "NTILE", "LAG", "LEAD",
    "FIRST_VALUE", "LAST_VALUE", "NTH_VALUE",
}  # fmt: skip
_TAKES_FRAME: Final = {"FIRST_VALUE", "LAST_VALUE", "NTH_VALUE"}
_TAKES_NO_ORDER: Final = {"PERCENTILE_CONT", "PERCENTILE_DISC"}
# The ends of a frame from the first row on; a frame may not end before it begins.
_ENDS: Final = ("UNBOUNDED PRECEDING", "PRECEDING", "CURRENT ROW", "FOLLOWING", "UNBOUNDED FOLLOWING")


class WindowBinding:
    """Binds the window of one call."""

    def __init__(self, binder: ExpressionBinder, node: Call, scope: Scope) -> None:
        self._binder = binder
        self._node = node
        self._scope = scope

    def bind(self, function: Function, written: WindowSpec) -> str:
        """Return the window for the lake, named windows written out."""
        before = self._binder.fault_count
        spec = self._binder.window(written, self._scope)
        if self._binder.fault_count == before:
            self._check_shape(function, spec)
        parts = []
        if spec.partition_by:
            keys = []
            for key in spec.partition_by:
                value = self._binder.bind(key, self._scope)
                if value.type.is_known and not value.type.is_groupable:
                    self._binder.fault(key, "type_mismatch", f"Values of {value.type} can't be compared.")
                if value.type.name == "FLOAT64":
                    self._binder.fault(key, "type_mismatch", "PARTITION BY does not accept FLOAT64.")
                keys.append(value.lake)
            parts.append("PARTITION BY " + ", ".join(keys))
        if spec.order_by:
            items = [order_item(self._binder, item, self._scope) for item in spec.order_by]
            if spec.frame == "RANGE" and len(items) == 1 and any(b and b.amount for b in (spec.low, spec.high)):
                items = [self._range_item(spec.order_by[0])]
            parts.append("ORDER BY " + ", ".join(items))
        if spec.frame and spec.low:
            self._check_frame(spec, spec.low, spec.high)
            low, high = self._bound(spec, spec.low), self._bound(spec, spec.high) if spec.high else None
            parts.append(f"{spec.frame} {low}" if high is None else f"{spec.frame} BETWEEN {low} AND {high}")
        return " ".join(parts)

    def _range_item(self, item: OrderItem) -> str:
        """Return the one sort key of a frame by amounts, in a type that holds a key moved by them."""
        value = self._binder.bind(item.key, self._scope)
        lake = f"CAST({value.lake} AS HUGEINT)" if value.type == INT64 else value.lake
        if value.type.name == "FLOAT64":
            self._binder.gap(item, "RANGE by an amount of FLOAT64")
        return lake + direction(item)

    def _refuse(self, message: str) -> None:
        self._binder.fault(self._node, "window_not_allowed", message)

    def _check_shape(self, function: Function, spec: WindowSpec) -> None:
        name, node = function.name, self._node
        what = f"{name} of DISTINCT values" if node.is_distinct else name
        if name in _NEEDS_ORDER and not spec.order_by:
            self._refuse(f"{name} needs ORDER BY in its window.")
        if spec.order_by and (name in _TAKES_NO_ORDER or node.is_distinct):
            self._refuse(f"{what} does not accept ORDER BY in its window.")
        is_free = function.kind == "aggregate" and not node.is_distinct
        if spec.frame and not (is_free or name in _TAKES_FRAME):
            self._refuse(f"{what} does not accept {spec.frame} in its window.")
        if node.order_by or node.limit:
            self._refuse(f"{name} with OVER does not accept ORDER BY or LIMIT between its parentheses.")

    def _check_frame(self, spec: WindowSpec, low: FrameBound, high: FrameBound | None) -> None:
        first, last = _ENDS.index(low.kind), _ENDS.index(high.kind if high else "CURRENT ROW")
        if first > last or first == len(_ENDS) - 1 or last == 0:
            self._refuse(f"A frame can't go from {low.kind} to {_ENDS[last]}.")
        has_amount = low.amount is not None or (high is not None and high.amount is not None)
        if spec.frame == "RANGE" and has_amount:
            keys = [self._binder.bind(item.key, self._scope).type for item in spec.order_by]
            if len(keys) != 1 or (keys[0].is_known and not keys[0].is_number):
                self._refuse("RANGE with an amount needs exactly one number in ORDER BY. Otherwise use ROWS.")

    def _bound(self, spec: WindowSpec, bound: FrameBound) -> str:
        if bound.amount is None:
            return bound.kind
        value = self._binder.bind(bound.amount, self._scope)
        number = literals.number_of(bound.amount, value)
        is_right = value.type == INT64 or (spec.frame == "RANGE" and value.type.is_number)
        if value.type.is_known and (not value.is_literal or number is None or number < 0 or not is_right):
            self._refuse(f"The amount in {spec.frame} must be a constant that is not negative.")
        return f"{value.lake} {bound.kind}"
