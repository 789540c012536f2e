"""The request for a backfill as somebody writes it: with a query, or with a topic and a range of times."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Final

from backfill.plan.request import BackfillRequest
from model.declaration import Declared, FieldSpec, declared_fields, example_of, json_name
from model.errors import RequestInvalidError, fault_at
from model.moment import CLOCK_SKEW, TIME_FORMS, parse_moment, render_moment
from sql.violation import QueryRefusedError, Violation

_QUERY, _TOPIC = (each.spec for each in declared_fields(BackfillRequest) if each.name in {"query", "topic"})
# Before it there was no Pub/Sub to take messages from.
_EARLIEST: Final = datetime(2000, 1, 1, tzinfo=UTC)
_EITHER: Final = "Give either query, or source_topic, from and to."
_RANGE: Final = ("source_topic", "from", "to")
_OF_RANGE: Final = (*_RANGE, "source_attributes", "where")
_READS: Final = "The query reads the partitions from a day before the range until 31 days after it."
_EXAMPLE: Final = {
    "source_topic": "orders",
    "from": "2026-01-01T02:00:00Z",
    "to": "2026-01-01T03:00:00Z",
    "source_attributes": {"region": "eu"},
}


def find_faults(given: Collection[str]) -> list[dict[str, Any]]:
    """Return what is missing or too much in a request of which these fields have a value.

    Example:
        >>> [each["pointer"] for each in find_faults({"source_topic", "from", "where"})]
        ['/to']
    """
    of_range = [name for name in _OF_RANGE if name in given]
    is_range = bool(of_range) and "query" not in given
    errors = (
        [] if is_range else [_fault(each, f"The request has a query and {each}. {_EITHER}") for each in of_range]
    )
    for name in _RANGE if is_range else ("query", "topic"):
        if name not in given:
            hint = "It is the topic to publish to." if name == "topic" else _EITHER
            errors.append(_fault(name, f"{name} is missing. {hint}", "field_missing"))
    return errors


@dataclass(frozen=True, slots=True)
class BackfillCreate(BackfillRequest):
    """The messages to replay, the target topic and the options. The request for a plan has the same body.

    The messages are those that `query` selects, or those of `source_topic` that were published in a range of time.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {
        **Declared.__pydantic_config__,
        "json_schema_extra": {"examples": [_EXAMPLE, example_of(BackfillRequest)]},
    }

    query: Annotated[
        str,
        FieldSpec(
            description=f"{_QUERY.description} Without a query, give `source_topic`, `from` and `to`.",
            example=_QUERY.example,
        ),
    ] = ""
    # None, as an empty name must not be that of the source.
    topic: Annotated[
        str | None,
        FieldSpec(
            description=f"{_TOPIC.description} The default is `source_topic`.",
            longest=_TOPIC.longest,
            example=_TOPIC.example,
            help="The topic to publish to. Default: the topic that is replayed.",
            flag="to_topic",
            shortest=1,
        ),
    ] = None  # type: ignore[assignment]
    source_topic: Annotated[
        str | None,
        FieldSpec(
            description="The archived topic to replay. Refeed writes the query: it selects the messages of this "
            "topic that were published from `from` until `to`.",
            longest=1000,
            example=_EXAMPLE["source_topic"],
        ),
    ] = None
    from_: Annotated[
        str | None,
        FieldSpec(
            description=f"The first publish time. Write it like this: {TIME_FORMS}. Times without an offset are "
            "in UTC.",
            longest=64,
            example=_EXAMPLE["from"],
            help="Replay messages that were published at this time (UTC) or later: an RFC 3339 time, a date, "
            "today, yesterday, an age such as 2h, or a time of day. 02:00 is the last 02:00 in UTC.",
            flag="from",
            metavar="TIME",
        ),
    ] = None
    to: Annotated[
        str | None,
        FieldSpec(
            description="The end of the publish times, exclusive.",
            longest=64,
            example=_EXAMPLE["to"],
            help="Replay messages that were published before this time. Default: now.",
            metavar="TIME",
        ),
    ] = None
    source_attributes: Annotated[
        Mapping[str, str],
        FieldSpec(
            description="Only messages that have all these attributes are replayed.",
            example=_EXAMPLE["source_attributes"],
            help="Replay only messages that have this attribute. May be repeated.",
            flag="attribute",
        ),
    ] = field(default_factory=dict)
    where: Annotated[
        str | None,
        FieldSpec(
            description="A further condition in GoogleSQL that the messages must fulfil.",
            longest=20_000,
            help="Replay only messages that fulfil this condition in GoogleSQL.",
            metavar="SQL",
        ),
    ] = None

    @property
    def has_range(self) -> bool:
        """Whether a part of a range is given, so that a query is to be written."""
        return any(getattr(self, each.name) for each in fields(self) if json_name(each.name) in _OF_RANGE)

    def write(self, table: str, now: datetime | None = None) -> BackfillRequest:
        """Return the request with its query, which is written here unless it was given; ``table`` is the archive.

        Raises:
            RequestInvalidError: it has both a query and a range, or neither, or the range is none; every fault is
                in the details.
        """
        given = {json_name(each.name) for each in fields(self) if getattr(self, each.name)}
        # An empty condition is one that somebody meant to give.
        errors = find_faults(given if self.where is None else {*given, "where"})
        query = self.query
        if not query and not errors:
            query = self._write_query(table, now or datetime.now(UTC), errors)
        if errors:
            raise RequestInvalidError.of_all(errors)
        kept = {each.name: getattr(self, each.name) for each in fields(BackfillRequest)}
        return BackfillRequest(**{**kept, "query": query, "topic": self.topic or str(self.source_topic)})

    def explain(self, query: str, refused: QueryRefusedError) -> RequestInvalidError:
        """Return what the gate says of the written query as faults of the fields that it was written of."""
        from sql.range_query import place_in_condition

        errors = []
        for each in refused.violations:
            place = place_in_condition(query, self.where, each) if self.where else None
            if place is not None:
                errors.append(_fault_in_where(each, place))
            else:
                errors.append(_fault("from", f"{each.message} {_READS}", each.code))
        return RequestInvalidError.of_all(errors)

    def _write_query(self, table: str, now: datetime, errors: list[dict[str, Any]]) -> str:
        # Commands declare their options by this module, and sqlglot is slow to import.
        from sql.range_query import check_condition, write_range_query

        start = self._moment("from_", now, errors)
        end = self._moment("to", now, errors, after=start)
        if start is not None and end is not None and start >= end:
            errors.append(_fault("to", f"to ({render_moment(end)}) is not after from ({render_moment(start)})."))
        try:
            if self.where is not None:
                check_condition(self.where)
        except QueryRefusedError as exc:
            errors += [_fault_in_where(each, (each.line, each.column)) for each in exc.violations]
        if start is None or end is None or errors:
            return ""
        attributes = self.source_attributes
        return write_range_query(
            table, str(self.source_topic), start, end, attributes=attributes, where=self.where
        )

    def _moment(
        self, name: str, now: datetime, errors: list[dict[str, Any]], *, after: datetime | None = None
    ) -> datetime | None:
        pointer = json_name(name)
        try:
            found = parse_moment(getattr(self, name), now, after=after)
        except ValueError as exc:
            errors.append(_fault(pointer, f"{pointer}: {exc}."))
            return None
        if found > now + CLOCK_SKEW:
            errors.append(_fault(pointer, f"{pointer} ({render_moment(found)}) is in the future."))
        elif found < _EARLIEST:
            errors.append(_fault(pointer, f"{pointer} is before the year {_EARLIEST:%Y}."))
        else:
            return found
        return None


def _fault_in_where(violation: Violation, place: tuple[int, int]) -> dict[str, Any]:
    line, column = place
    message = f"In where, line {line}, column {column}: {violation.message}"
    return _fault("where", message, violation.code)


def _fault(name: str, message: str, code: str = "range_invalid") -> dict[str, Any]:
    return fault_at(f"/{name}", code, message)
