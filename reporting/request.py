"""The request for a merge, and every fault of it."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, time
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Self

from model.declaration import Declared, FieldSpec
from model.errors import RequestInvalidError, fault_at
from model.moment import parse_moment

if TYPE_CHECKING:
    from warehouse.merges import MergeSource

ALL: Final = "all"
# Before it there was no Pub/Sub to take messages from.
_EARLIEST: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class MergeCreate(Declared):
    """A merge. By default, a merge reads the new rows of all sources that have a key."""

    # An example of every field would name the time twice.
    __pydantic_config__: ClassVar[dict[str, Any]] = {
        **Declared.__pydantic_config__,
        "json_schema_extra": {"examples": [{"source": "orders"}, {}]},
    }

    source: Annotated[
        str | None,
        FieldSpec(
            description='A source of the registry. Without this field, or with "all", the merge reads every '
            "source that has a key.",
            shortest=1,
            longest=100,
            example="orders",
            help="A source of the registry. Default: all.",
        ),
    ] = None
    since: Annotated[
        str | None,
        FieldSpec(
            description="Merge again all rows that were staged since this time: an RFC 3339 time, a day, "
            "`yesterday`, a time of day such as `02:00`, or an age such as `2h`. Correctly merged rows do not "
            "change.",
            longest=64,
            example="2026-01-01T00:00:00Z",
            help="Merge again all rows that were staged since this time (UTC): an RFC 3339 time, a day, a time of "
            "day such as 02:00, or an age such as 2h.",
            metavar="TIME",
        ),
    ] = None
    date: Annotated[
        str | None,
        FieldSpec(
            description="Merge again all rows that were staged since the beginning of this UTC day, which may be "
            "`today` or `yesterday`. Do not combine `date` with `since`.",
            longest=10,
            example="2026-01-01",
            help="Merge again all rows that were staged since the beginning of this UTC day, which may be today "
            "or yesterday.",
            metavar="DAY",
        ),
    ] = None
    dry_run: Annotated[
        bool,
        FieldSpec(
            description="Whether to change nothing, and only report the rows that would be merged.",
            help="Change nothing, and print what would be merged.",
        ),
    ] = False

    def parse(self) -> "MergeRequest":
        """Return the request that was written.

        Raises:
            RequestInvalidError: as :meth:`MergeRequest.parse`.
        """
        return MergeRequest.parse(self.source, since=self.since, day=self.date, is_dry_run=self.dry_run)


@dataclass(frozen=True, slots=True)
class MergeRequest:
    """One merge that somebody wants; ``source`` None is every source that has a key.

    ``since`` (aware UTC) reads staging again from an earlier moment than the last merge's end; None does not.
    """

    source: str | None = None
    since: datetime | None = None
    is_dry_run: bool = False

    @classmethod
    def parse(
        cls,
        source: str | None = None,
        *,
        since: str | None = None,
        day: str | None = None,
        is_dry_run: bool = False,
        now: datetime | None = None,
    ) -> Self:
        """Return the request that somebody wrote; ``day`` begins where its day begins, in UTC.

        Raises:
            RequestInvalidError: ``since`` and ``day`` are no time, one too many, or of the future; every fault is
                in the details.

        Example:
            >>> MergeRequest.parse("all", day="2026-01-02").since
            datetime.datetime(2026, 1, 2, 0, 0, tzinfo=datetime.timezone.utc)
        """
        errors: list[dict[str, Any]] = []
        found: datetime | None = None
        now = now or datetime.now(UTC)
        if since is not None and day is not None:
            errors.append(_fault("Give either since or date, not both.", "date"))
        elif since is not None or day is not None:
            pointer = "date" if since is None else "since"
            try:
                found = _parse_day(day or "", now) if since is None else parse_moment(since, now)
            except ValueError as exc:
                errors.append(_fault(f"{pointer}: {exc}.", pointer))
            else:
                if found > now:
                    errors.append(_fault(f"{pointer} is in the future.", pointer))
                elif found < _EARLIEST:
                    errors.append(_fault(f"{pointer} is before the year {_EARLIEST:%Y}.", pointer))
        if errors:
            raise RequestInvalidError("; ".join(error["message"] for error in errors), errors=errors)
        return cls(None if source in {None, ALL} else source, found, is_dry_run)

    def to_json(self) -> dict[str, Any]:
        """Return it as a job keeps it."""
        since = None if self.since is None else self.since.isoformat()
        return {"source": self.source, "since": since, "dry_run": self.is_dry_run}


def choose_sources(names: Iterable[str] | None, known: "Mapping[str, MergeSource | None]") -> "list[MergeSource]":
    """Return the sources with these names, or all that can be merged; ``known`` has None for the others.

    Raises:
        RequestInvalidError: there is no such source, or it has no key; every one is in the details.
    """
    if names is None:
        return [source for source in known.values() if source is not None]
    wanted = dict.fromkeys(names)
    errors: list[dict[str, Any]] = []
    for name in wanted:
        if name not in known:
            message = f"The registry has no valid source {name[:100]!r}. 'refeed source check' lists the sources."
            errors.append(fault_at("/source", "source_unknown", message))
        elif known[name] is None:
            message = (
                f"{name} has no key in sources.yaml, so it can't be merged. To merge it, add 'key:' to the "
                "source. To read its staging table itself, name the table in REFEED_QUERY_TABLES, as 'refeed "
                "query --help' shows."
            )
            errors.append(fault_at("/source", "source_without_key", message))
    if errors:
        raise RequestInvalidError("; ".join(error["message"] for error in errors), errors=errors)
    return [source for name in wanted if (source := known[name]) is not None]


def _parse_day(text: str, now: datetime) -> datetime:
    """Return the beginning of a day."""
    found = None
    with suppress(ValueError):
        found = parse_moment(text, now)
    # A time of day, and an age, are no days.
    if found is None or found.time() != time() or ":" in text:
        raise ValueError(f"{text[:40]!r} is not a day such as 2026-01-01, today or yesterday")
    return found


def _fault(message: str, pointer: str) -> dict[str, Any]:
    return fault_at(f"/{pointer}", "since_invalid", message)
