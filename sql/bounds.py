"""The proof that a scan is bounded: what a filter says about the partitions that a row can come from."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from sql.constants import ConstantError, as_moment, next_start, truncate
from sql.syntax import Between, Chain, Comparison, Expression, In
from sql.values import Value

_TICK: Final = timedelta(microseconds=1)
_FLIPPED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}
BEGINNING: Final = datetime.min.replace(tzinfo=UTC)
END: Final = datetime.max.replace(tzinfo=UTC)
MAX_SPANS: Final = 1_000


@dataclass(frozen=True, order=True, slots=True)
class Span:
    """Partition times [start, end); BEGINNING and END stand for no bound."""

    start: datetime
    end: datetime


EVERYTHING: Final[tuple[Span, ...]] = (Span(BEGINNING, END),)
NOTHING: Final[tuple[Span, ...]] = ()


def prove(filters: list[Expression], scan: Collection[int], values: Mapping[int, Value]) -> tuple[Span, ...]:
    """Return spans that hold every row of a scan that passes all ``filters``, oldest first.

    ``scan`` are the numbers that the scan's pseudo column went by.

    What is not understood bounds nothing: the answer may be too wide, never too narrow.
    """
    spans = EVERYTHING
    for item in filters:
        spans = _both(spans, _spans(item, scan, values))
    return spans


def _both(left: tuple[Span, ...], right: tuple[Span, ...]) -> tuple[Span, ...]:
    if len(left) * len(right) > MAX_SPANS * 10:
        return left if len(left) < len(right) else right
    out = [Span(max(a.start, b.start), min(a.end, b.end)) for a in left for b in right]
    return _merged([span for span in out if span.start < span.end])


def _merged(spans: list[Span]) -> tuple[Span, ...]:
    out: list[Span] = []
    for span in sorted(spans):
        if out and span.start <= out[-1].end:
            out[-1] = Span(out[-1].start, max(out[-1].end, span.end))
        else:
            out.append(span)
    return tuple(out)


def _spans(node: Expression, scan: Collection[int], values: Mapping[int, Value]) -> tuple[Span, ...]:
    if isinstance(node, Chain) and node.operators[0] == "AND":
        return prove(list(node.operands), scan, values)
    if isinstance(node, Chain) and node.operators[0] == "OR":
        return _merged([span for operand in node.operands for span in _spans(operand, scan, values)])
    if isinstance(node, Comparison):
        return _compared(node, scan, values)
    if isinstance(node, Between) and not node.is_negated:
        unit = _unit(node.operand, scan, values)
        if unit is None:
            return EVERYTHING
        low = _bound(">=", _constant(node.low, values), unit)
        return _both(low, _bound("<=", _constant(node.high, values), unit))
    if isinstance(node, In) and not node.is_negated:
        return _listed(node, scan, values)
    return EVERYTHING


def _compared(node: Comparison, scan: Collection[int], values: Mapping[int, Value]) -> tuple[Span, ...]:
    if node.operator not in _FLIPPED:
        return EVERYTHING
    unit = _unit(node.left, scan, values)
    if unit is not None:
        return _bound(node.operator, _constant(node.right, values), unit)
    unit = _unit(node.right, scan, values)
    if unit is not None:
        return _bound(_FLIPPED[node.operator], _constant(node.left, values), unit)
    return EVERYTHING


def _listed(node: In, scan: Collection[int], values: Mapping[int, Value]) -> tuple[Span, ...]:
    unit = _unit(node.operand, scan, values)
    if unit is None or node.query is not None:
        return EVERYTHING
    if node.array is not None:
        items = _constant(node.array, values)
        if not isinstance(items, list):
            return EVERYTHING
    else:
        items = [_constant(item, values) for item in node.items]
    spans: list[Span] = []
    for item in items:
        spans += _bound("=", item, unit)
    return _merged(spans)


def _unit(node: Expression, scan: Collection[int], values: Mapping[int, Value]) -> str | None:
    """Return the unit that ``node`` cuts the pseudo column of ``scan`` to; None when it is something else."""
    value = values.get(id(node))
    if value is None or value.partition is None or value.partition.scan not in scan:
        return None
    return value.partition.unit or "MICROSECOND"


def _constant(node: Expression, values: Mapping[int, Value]) -> Any:
    value = values.get(id(node))
    return None if value is None else value.constant


def _bound(operator: str, constant: Any, unit: str) -> tuple[Span, ...]:
    """Return where ``cut(partition time) operator constant`` can be true."""
    if constant is None:
        # A comparison with NULL is never true; but a bound that is NULL by mistake must not pass for one.
        return EVERYTHING
    if not isinstance(constant, date | datetime):
        return EVERYTHING
    moment = as_moment(constant)
    try:
        start = truncate(moment, unit)
        following = next_start(moment, unit) if unit != "MICROSECOND" else moment + _TICK
    except (ConstantError, OverflowError):
        return EVERYTHING
    # The first start of a unit at or after the constant.
    ceiling = start if start == moment else following
    if operator == "=":
        return (Span(start, following),) if start == moment else NOTHING
    if operator == ">=":
        return (Span(ceiling, END),)
    if operator == ">":
        return (Span(following, END),)
    if operator == "<=":
        return (Span(BEGINNING, following),)
    return (Span(BEGINNING, ceiling),)
