"""Sort keys of ORDER BY for the lake."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sql.expression_binder import ExpressionBinder
    from sql.names import Scope
    from sql.syntax import OrderItem


def order_item(binder: ExpressionBinder, item: OrderItem, scope: Scope) -> str:
    """Return one sort key for the lake; GoogleSQL sorts NULL as the smallest value."""
    value = binder.bind(item.key, scope)
    if not value.type.is_orderable and value.type.is_known:
        binder.fault(item, "type_mismatch", f"Values of {value.type} can't be sorted.")
    order = direction(item)
    if value.type.name == "FLOAT64" and not value.is_literal:
        # The engine sorts NaN above every number, GoogleSQL below.
        return f"NOT isnan({value.lake}){order}, {value.lake}{order}"
    return value.lake + order


def direction(item: OrderItem) -> str:
    """Return how a sort key is sorted, NULLs said outright.

    Example:
        >>> from sql.syntax import Expression, OrderItem
        >>> direction(OrderItem(0, Expression(0), is_descending=True, nulls_first=None))
        ' DESC NULLS LAST'
    """
    first = item.nulls_first if item.nulls_first is not None else not item.is_descending
    return f" {'DESC' if item.is_descending else 'ASC'} NULLS {'FIRST' if first else 'LAST'}"
