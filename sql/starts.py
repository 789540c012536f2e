"""Comparisons of a partition's time with a moment at which no partition starts: nearly always a mistake."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, date, datetime
from typing import Final

from model.table import PARTITION_TIME
from sql.binder import Policy, Scan
from sql.bounds import Leaf, TimeBound, leaves
from sql.constants import ConstantError, as_moment, truncate
from sql.edits import Edit, PlacedViolation
from sql.lexer import SourceText, Token
from sql.syntax import Between, Comparison, Node, Path
from sql.values import Value
from sql.violation import Violation

_INGEST_TIME: Final = "ingest_time"
# Columns of a scan that cut within a day, so that a partition that is read whole is on purpose.
_EXACT: Final = frozenset({_INGEST_TIME, "publish_time"})
# Cut to one of these a partition's time is what it was.
_FINE: Final = frozenset({"MICROSECOND", "MILLISECOND", "SECOND", "MINUTE", "HOUR"})
# What may follow an operand that is written as one name, call, parameter or literal.
_FOLLOWERS: Final = frozenset({"AND", "OR", "GROUP", "ORDER", "LIMIT", "HAVING", "QUALIFY", "WINDOW", "UNION"})


def find_cut_partitions(
    source: SourceText, tokens: Sequence[Token], scans: Sequence[Scan], values: Mapping[int, Value], policy: Policy
) -> Iterator[PlacedViolation]:
    """Yield every comparison of ``_PARTITIONTIME`` with a moment within a partition, in the order of the text.

    A partition's time is its start, so that ``>= 14:00`` leaves out the whole day, and ``< 14:00`` takes it in.
    The edits compare it with the start of the moment's partition, and ``ingest_time`` with the moment. They are
    still to be tried; there are none where the text is not simple enough. They read the partition that begins at
    the end, too: a row that is written around midnight may lie in the partition after its ``ingest_time``.
    """
    found: dict[int, PlacedViolation] = {}
    for scan in scans:
        is_exact = any(_reads_exact_time(item, scan, values) for item in scan.filters)
        partition = policy.partitioning_of(scan.table).upper()
        for leaf in leaves(scan.filters, scan.numbers, values):
            unit = partition if leaf.unit in _FINE else leaf.unit
            wrong = [b for b in leaf.bounds if _is_within(b, unit) and _matters(b, policy.now, is_exact=is_exact)]
            if not wrong or leaf.node.at in found:
                continue
            said = "; ".join(f"{bound.operator} {_shown(bound)} {_effect(bound, unit)}" for bound in wrong)
            message = f"A partition's time is the start of its {unit.lower()}: {said}."
            edits = _edits(source.text, tokens, leaf, unit)
            line, column = source.locate(leaf.node.at)
            rewrite = edits[0].text if edits else None
            violation = Violation("partition_cut", message, line, column, rewrite)
            end = edits[0].end if edits else _end_of(tokens, leaf.node.at)
            found[leaf.node.at] = PlacedViolation(violation, leaf.node.at, end, edits)
    yield from (found[at] for at in sorted(found))


def _is_within(bound: TimeBound, unit: str) -> bool:
    """Return whether the bound is a moment, and not the start of a ``unit``."""
    if not isinstance(bound.constant, date | datetime):
        return False
    moment = as_moment(bound.constant)
    try:
        return truncate(moment, unit) != moment
    except ConstantError:
        return False


def _matters(bound: TimeBound, now: datetime, *, is_exact: bool) -> bool:
    """Return whether the bound selects other rows than were meant.

    An upper end that is the plan's moment or later takes in nothing more. One of a scan that is also filtered by
    ``ingest_time`` or ``publish_time`` only says which partitions to read.
    """
    return bound.operator not in {"<", "<="} or not (is_exact or as_moment(bound.constant) >= now)


def _effect(bound: TimeBound, unit: str) -> str:
    if bound.operator == "=":
        return "is never true"
    if bound.operator in {"<", "<="}:
        return f"includes all of that {unit.lower()}"
    return f"leaves out all of that {unit.lower()}"


def _shown(bound: TimeBound) -> str:
    return as_moment(bound.constant).astimezone(UTC).isoformat().replace("+00:00", "Z")


def _reads_exact_time(node: object, scan: Scan, values: Mapping[int, Value]) -> bool:
    if isinstance(node, tuple):
        return any(_reads_exact_time(item, scan, values) for item in node)
    if isinstance(node, Path):
        value = values.get(id(node))
        origin = None if value is None else value.origin
        return origin is not None and origin.column in _EXACT
    if isinstance(node, Node):
        return any(_reads_exact_time(getattr(node, member.name), scan, values) for member in fields(node))
    return False


def _edits(text: str, tokens: Sequence[Token], leaf: Leaf, unit: str) -> tuple[Edit, ...]:
    """Return what puts two comparisons in place of ``leaf``; nothing where its parts can't be told in the text."""
    column = leaf.column
    if not isinstance(column, Path) or column.names[-1].text.upper() != PARTITION_TIME:
        return ()
    name = column.names[-1]
    prefix = text[column.at : name.at]
    written = text[column.at : name.at + len(name.text)]
    ends = [_operand_end(tokens, bound.operand.at) for bound in leaf.bounds]
    if None in ends:
        return ()
    operands = [text[bound.operand.at : end] for bound, end in zip(leaf.bounds, ends, strict=True)]
    end = max(name.at + len(name.text), *(each or 0 for each in ends))
    if isinstance(leaf.node, Between) and text[leaf.node.at : leaf.node.at + len(written)] == written:
        low, high = operands
        new = (
            f"{written} BETWEEN TIMESTAMP_TRUNC({low}, {unit}) AND {high} "
            f"AND {prefix}{_INGEST_TIME} BETWEEN {low} AND {high}"
        )
    elif isinstance(leaf.node, Comparison) and leaf.bounds[0].operator != "=":
        [operand] = operands
        operator = leaf.bounds[0].operator
        new = f"{prefix}{_INGEST_TIME} {operator} {operand}"
        if operator in {"<", "<="}:
            new = f"{written} <= {operand} AND {new}"
        else:
            new = f"{written} >= TIMESTAMP_TRUNC({operand}, {unit}) AND {new}"
    else:
        return ()
    return (Edit(leaf.node.at, end, new),)


def _operand_end(tokens: Sequence[Token], at: int) -> int | None:
    """Return where the operand that begins ``at`` ends: a parameter, a literal, a call; None for all else."""
    place = next((place for place, token in enumerate(tokens) if token.start == at), None)
    if place is None:
        return None
    first = tokens[place]
    if first.kind == "name" and tokens[place + 1].value == "(":
        depth = 0
        for last in range(place + 1, len(tokens)):
            depth += {"(": 1, ")": -1}.get(str(tokens[last].value), 0) if tokens[last].kind == "symbol" else 0
            if depth == 0:
                break
    elif first.kind == "name" and tokens[place + 1].kind == "string":
        last = place + 1
    elif first.kind in {"string", "parameter"}:
        last = place
    else:
        return None
    after = tokens[last + 1]
    is_free = after.kind == "end" or after.upper in _FOLLOWERS or str(after.value) in {")", ";", "|>", *_COMPARED}
    return tokens[last].end if is_free else None


# After the left side of a comparison.
_COMPARED: Final = ("=", "<", "<=", ">", ">=")


def _end_of(tokens: Sequence[Token], at: int) -> int:
    return next((token.end for token in tokens if token.start == at), at + 1)
