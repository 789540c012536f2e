"""The proof that a scan is bounded: what a filter says about the partitions that a row can come from."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from operator import or_
from typing import Any, Final

from sql.constants import ConstantError, as_moment, next_start, truncate
from sql.syntax import Between, Chain, Comparison, Expression, In, Is
from sql.values import Partition, Value

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


@dataclass(frozen=True, slots=True)
class Reach:
    """Which rows of a scan can pass: those in ``partitions``, and those ``buffered`` with these ingest_times.

    Rows in BigQuery's write buffer have no partition yet: their pseudo columns are NULL.
    """

    partitions: tuple[Span, ...]
    buffered: tuple[Span, ...]

    def __and__(self, other: "Reach") -> "Reach":
        return Reach(_both(self.partitions, other.partitions), _both(self.buffered, other.buffered))

    def __or__(self, other: "Reach") -> "Reach":
        return Reach(_merged([*self.partitions, *other.partitions]), _merged([*self.buffered, *other.buffered]))


_WHOLE: Final = Reach(EVERYTHING, EVERYTHING)


@dataclass(frozen=True, slots=True)
class TimeBound:
    """What a time is compared with: ``time operator operand``, and the operand's constant."""

    operator: str
    operand: Expression
    constant: Any


@dataclass(frozen=True, slots=True)
class Leaf:
    """One comparison of a scan's time, outside of everything but AND and OR, and where it can be true.

    ``column`` is the time as it is written there, cut to ``unit``.
    """

    node: Expression
    column: Expression
    unit: str
    is_ingest_time: bool
    bounds: tuple[TimeBound, ...]
    spans: tuple[Span, ...]


def prove(filters: list[Expression], scan: Collection[int], values: Mapping[int, Value]) -> Reach:
    """Return what holds every row of a scan that passes all ``filters``, the oldest span first.

    ``scan`` are the numbers that the scan's pseudo column went by.

    What is not understood bounds nothing: the answer may be too wide, never too narrow.
    """
    reach = _WHOLE
    for item in filters:
        reach &= _reach(item, scan, values)
    return reach


def leaves(filters: Iterable[Expression], scan: Collection[int], values: Mapping[int, Value]) -> Iterator[Leaf]:
    """Yield every comparison of the scan's pseudo column that :func:`prove` looks at."""
    for item in filters:
        if isinstance(item, Chain) and item.operators[0] in {"AND", "OR"}:
            yield from leaves(item.operands, scan, values)
        elif (leaf := _comparison(item, scan, values)) is not None and not leaf.is_ingest_time:
            yield leaf


def prove_times(
    filters: Iterable[Expression], scan: Collection[int], values: Mapping[int, Value], column: str
) -> tuple[Span, ...]:
    """Return the times of a scan's ``column`` at which a row can pass all ``filters``, the oldest span first.

    ``column`` is a TIMESTAMP of the archive that the query compares as it is. As with :func:`prove`, the answer
    may be too wide, never too narrow.
    """
    return reduce(_both, (_times(item, scan, values, column) for item in filters), EVERYTHING)


def _times(node: Expression, scan: Collection[int], values: Mapping[int, Value], column: str) -> tuple[Span, ...]:
    def is_column(operand: Expression) -> bool:
        value = values.get(id(operand))
        origin = None if value is None else value.origin
        return origin is not None and origin.column == column and origin.scan in scan

    def bound(operator: str, other: Expression) -> tuple[Span, ...]:
        return _bound(TimeBound(operator, other, _constant(other, values)), "MICROSECOND")

    if isinstance(node, Chain) and node.operators[0] == "AND":
        return prove_times(node.operands, scan, values, column)
    if isinstance(node, Chain) and node.operators[0] == "OR":
        return _merged([span for item in node.operands for span in _times(item, scan, values, column)])
    if isinstance(node, Comparison) and node.operator in _FLIPPED:
        if is_column(node.left):
            return bound(node.operator, node.right)
        if is_column(node.right):
            return bound(_FLIPPED[node.operator], node.left)
    if isinstance(node, Between) and not node.is_negated and is_column(node.operand):
        return _both(bound(">=", node.low), bound("<=", node.high))
    return EVERYTHING


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


def _reach(node: Expression, scan: Collection[int], values: Mapping[int, Value]) -> Reach:
    if isinstance(node, Chain) and node.operators[0] == "AND":
        return prove(list(node.operands), scan, values)
    if isinstance(node, Chain) and node.operators[0] == "OR":
        return reduce(or_, (_reach(operand, scan, values) for operand in node.operands))
    if isinstance(node, Is) and node.what == "NULL":
        time = _time(node.operand, scan, values)
        if time is None or time.is_ingest_time:
            return _WHOLE
        return Reach(EVERYTHING, NOTHING) if node.is_negated else Reach(NOTHING, EVERYTHING)
    leaf = _comparison(node, scan, values)
    if leaf is None:
        return _WHOLE
    # A comparison with NULL is never true, so that no row in the write buffer passes one of its pseudo column.
    return Reach(EVERYTHING, leaf.spans) if leaf.is_ingest_time else Reach(leaf.spans, NOTHING)


def _comparison(node: Expression, scan: Collection[int], values: Mapping[int, Value]) -> Leaf | None:
    """Return the comparison of a time of the scan that ``node`` is; None for all else."""
    sides: list[tuple[Expression, list[tuple[str, Expression]]]] = []
    if isinstance(node, Comparison) and node.operator in _FLIPPED:
        sides.append((node.left, [(node.operator, node.right)]))
        sides.append((node.right, [(_FLIPPED[node.operator], node.left)]))
    elif isinstance(node, Between) and not node.is_negated:
        sides.append((node.operand, [(">=", node.low), ("<=", node.high)]))
    elif isinstance(node, In) and not node.is_negated:
        sides.append((node.operand, [("=", item) for item in node.items]))
    for column, compared in sides:
        time = _time(column, scan, values)
        if time is not None:
            unit = time.unit or "MICROSECOND"
            bounds = [TimeBound(operator, other, _constant(other, values)) for operator, other in compared]
            if isinstance(node, In):
                found = _listed(node, bounds, values)
                bounds = found or []
                spans = EVERYTHING if found is None else _merged([s for each in found for s in _bound(each, unit)])
            else:
                spans = reduce(_both, (_bound(each, unit) for each in bounds))
            return Leaf(node, column, unit, time.is_ingest_time, tuple(bounds), spans)
    return None


def _listed(node: In, items: list[TimeBound], values: Mapping[int, Value]) -> list[TimeBound] | None:
    """Return what a list compares with; None where nobody knows it."""
    if node.query is not None:
        return None
    if node.array is None:
        return items
    array = _constant(node.array, values)
    return [TimeBound("=", node.array, item) for item in array] if isinstance(array, list) else None


def _time(node: Expression, scan: Collection[int], values: Mapping[int, Value]) -> Partition | None:
    """Return the time of ``scan`` that ``node`` is, cut to a unit or not; None when it is something else."""
    value = values.get(id(node))
    if value is None or value.partition is None or value.partition.scan not in scan:
        return None
    return value.partition


def _constant(node: Expression, values: Mapping[int, Value]) -> Any:
    value = values.get(id(node))
    return None if value is None else value.constant


def _bound(bound: TimeBound, unit: str) -> tuple[Span, ...]:
    """Return where the partition time, cut to ``unit``, can be within the bound."""
    operator, constant = bound.operator, bound.constant
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
