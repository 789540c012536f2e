"""Writes the query of a replay that names a topic and a range of publish times, and reads its extra condition."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlglot import exp

from sql.lexer import SourceText, check_size, read_tokens
from sql.violation import Fault, QueryRefusedError, Violation

_DIALECT: Final = "bigquery"
_DAY: Final = timedelta(days=1)
# Pub/Sub keeps no message longer, in a topic or in a subscription:
# https://cloud.google.com/pubsub/docs/subscription-message-retention
LATEST_DAYS: Final = 31
_LATEST: Final = timedelta(days=LATEST_DAYS)
_PAIRS: Final = {")": "(", "]": "["}


def write_range_query(
    table: str,
    topic: str,
    start: datetime,
    end: datetime,
    *,
    attributes: Mapping[str, str] | None = None,
    where: str | None = None,
) -> str:
    r"""Return the query of a topic's messages that were published within [start, end).

    The partitions begin a day earlier, because clocks differ, and end when Pub/Sub can't have any of the messages
    any more: a backup that was down archives a message long after its publication. ``where`` stands on lines of
    its own, the last but one of the query, and must have passed :func:`check_condition`.

    Example:
        >>> start, end = datetime(2026, 1, 10, 2, tzinfo=UTC), datetime(2026, 1, 10, 3, tzinfo=UTC)
        >>> print(write_range_query("backup.messages", "o'r", start, end, attributes={"a": "b"}, where="x OR y"))
        SELECT data, attributes, message_id, topic, publish_time, ordering_key
        FROM backup.messages
        -- Up to 31 days can pass between publication and archiving: Pub/Sub keeps messages so long.
        WHERE _PARTITIONTIME >= TIMESTAMP '2026-01-09T00:00:00Z'
          AND _PARTITIONTIME < TIMESTAMP '2026-02-11T00:00:00Z'
          AND topic = 'o\'r'
          AND publish_time >= TIMESTAMP '2026-01-10T02:00:00Z'
          AND publish_time < TIMESTAMP '2026-01-10T03:00:00Z'
          AND EXISTS (SELECT 1 FROM UNNEST(attributes) AS a WHERE a.key = 'a' AND a.value = 'b')
          AND (
        x OR y
          )
    """
    lines = [
        "SELECT data, attributes, message_id, topic, publish_time, ordering_key",
        f"FROM {exp.to_table(table, dialect=_DIALECT).sql(_DIALECT)}",
        f"-- Up to {LATEST_DAYS} days can pass between publication and archiving: Pub/Sub keeps messages so long.",
        f"WHERE _PARTITIONTIME >= {_moment(_midnight(start - _DAY))}",
        f"  AND _PARTITIONTIME < {_moment(_midnight(end + _LATEST) + _DAY)}",
        f"  AND topic = {_text(topic)}",
        f"  AND publish_time >= {_moment(start)}",
        f"  AND publish_time < {_moment(end)}",
        *(
            f"  AND EXISTS (SELECT 1 FROM UNNEST(attributes) AS a "
            f"WHERE a.key = {_text(key)} AND a.value = {_text(value)})"
            for key, value in (attributes or {}).items()
        ),
    ]
    if where is not None:
        # A comment at its end must not hide the bracket.
        lines += ["  AND (", where, "  )"]
    return "\n".join(lines)


def check_condition(text: str) -> None:
    """Raise unless ``text`` is something that two brackets around it keep together.

    Whether it is a condition, and which tables it reads, is for the gate to say of the whole query.

    Raises:
        QueryRefusedError: it is empty, it ends the brackets around it, or a string or a comment has no end.

    Example:
        >>> check_condition("a = ')' OR (b)  -- )")
        >>> check_condition("a) OR (b")
        Traceback (most recent call last):
        ...
        sql.violation.QueryRefusedError: The query is not allowed: line 1, column 2: This ) has no ( before it.
    """
    source = SourceText(text)
    size = check_size(text)
    tokens, faults = ([], [size]) if size is not None else read_tokens(source)
    faults += [token.fault for token in tokens if token.fault is not None]
    begun: list[int] = []
    for token in tokens:
        sign = text[token.start : token.end] if token.kind == "symbol" else ""
        if sign == ";":
            faults.append(Fault("syntax", "A condition can't contain ;.", token.start))
        elif sign in _PAIRS.values():
            begun.append(token.start)
        elif sign in _PAIRS and not (begun and text[begun.pop()] == _PAIRS[sign]):
            faults.append(Fault("syntax", f"This {sign} has no {_PAIRS[sign]} before it.", token.start))
            break
    else:
        faults += [Fault("syntax", f"This {text[at]} has no end.", at) for at in begun]
    if not faults and all(token.kind == "end" for token in tokens):
        faults.append(Fault("syntax", "The condition is empty.", 0))
    if faults:
        raise QueryRefusedError([source.violation(fault) for fault in faults])


def place_in_condition(query: str, where: str, violation: Violation) -> tuple[int, int] | None:
    r"""Return the line and column within ``where`` of a violation of the query that has it; None elsewhere.

    What is said of a bracket around it is about its beginning or its end.

    Example:
        >>> query, where = "SELECT 1\n  AND (\na\n OR b\n  )", "a\n OR b"
        >>> [place_in_condition(query, where, Violation("c", "m", line, 5)) for line in (1, 2, 4, 5)]
        [None, (1, 1), (2, 5), (2, 6)]
    """
    lines = where.split("\n")
    line = violation.line - (query.count("\n") - len(lines))
    if line == 0:
        return 1, 1
    if line > len(lines):
        return len(lines), len(lines[-1]) + 1
    return (line, violation.column) if line > 0 else None


def _midnight(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def _moment(moment: datetime) -> str:
    return f"TIMESTAMP {_text(moment.astimezone(UTC).isoformat().replace('+00:00', 'Z'))}"


def _text(text: str) -> str:
    return exp.Literal.string(text).sql(_DIALECT)
