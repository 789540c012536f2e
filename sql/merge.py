"""The merge of one source in GoogleSQL: its texts in sql/queries, and what they are filled with."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Final, Literal

from sqlglot import exp

from model.entity import DELETED, MESSAGE_COLUMNS, OPERATION, REMOVE, REPLAY_COLUMNS, EntityRules
from sql.template import Part, fill
from sql.text_order import kind_of, sort_parts

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

PartitionType = Literal["DATE", "DATETIME", "TIMESTAMP"]


@dataclass(frozen=True, slots=True)
class MergeTables:
    """The tables of one source, each ``project.dataset.table``; the merge's own are ``changes`` and the last two.

    ``replays`` are those that may repair a row, ``displaced`` the rows of reporting that they do repair; None
    where there are none.
    """

    staging: str
    reporting: str
    changes: str
    audits: str
    watermark: str
    view: str
    replays: str | None = None
    displaced: str | None = None


@dataclass(frozen=True, slots=True)
class MergeQueries:
    """The statements that merge one kind of entity; ``columns`` are reporting's, without ``_deleted``.

    ``partition_type`` is the type of the rules' partition field, None where reporting has one partition. Days
    are given as dates, None among them standing for entities without one. ``staged`` has the GoogleSQL that reads
    a column of the staging table ``s``, for those that it does not have as they are. ``floats`` are the columns of
    type FLOAT64, ``texts`` those of the order that are of type STRING and are ordered by what they say.
    ``may_lack_key`` is False once it is known that no change is a row without a key.
    """

    tables: MergeTables
    columns: tuple[str, ...]
    rules: EntityRules
    partition_type: PartitionType | None
    staged: Mapping[str, str] = field(default_factory=dict)
    floats: frozenset[str] = frozenset()
    texts: frozenset[str] = frozenset()
    may_lack_key: bool = True

    @property
    def has_replays(self) -> bool:
        """Whether rows say which message they are of: without these columns no replay repairs a row."""
        return set(REPLAY_COLUMNS) <= set(self.columns)

    def replays(self) -> str:
        """Return the query whose rows are the replays; parameters: partitions_from, until."""
        return self._fill("replays")

    def changes(self) -> str:
        """Return the query whose rows are the changes; parameters: partitions_from, until."""
        return self._fill("changes")

    def displaced(self) -> str:
        """Return the query for the rows of reporting that replays repair, and whether each has a newer change."""
        return self._fill("displaced")

    def orphans(self) -> str:
        """Return the query that counts the displaced rows whose key has no newer change; one row."""
        return self._fill("orphans")

    def heirs(self) -> str:
        """Return the query for the changes again, those of such keys found in all of staging.

        Its parameters are those of :meth:`changes`; partitions_from is the beginning.
        """
        return self._fill("heirs")

    def days(self) -> str:
        """Return the query for the days that a merge of the changes may touch, a row each."""
        # It reads all of reporting: not what tells rows without a key apart, where none is looked for.
        if self.may_lack_key or self.tables.displaced is not None:
            return self._fill("days")
        return self._fill("days", {"reporting_key": lambda: self._entity_key("r")})

    def without_key(self) -> str:
        """Return the query that counts the changes that are rows of no entity; one row."""
        return self._fill("without_key", {"is_without_key": lambda: self._is_without_key("c")})

    def compare(self, days: Sequence[date | None]) -> str:
        """Return the query that counts what a merge within ``days`` would do; one row."""
        return self._fill("compare", {"in_days": lambda: self._in_days("r", days)})

    def merge(self, days: Sequence[date | None]) -> str:
        """Return the script that merges within ``days``, audits, and moves the watermark, in one transaction."""
        return self._fill("merge", {"in_days": lambda: self._in_days("r", days)})

    def view(self, since: datetime | None) -> str:
        """Return the statement that makes the view of both tables, ``since`` being where the last merge ended."""
        return self._fill("view", {"since": lambda: _timestamp(since or _EPOCH)})

    def _fill(self, name: str, more: Mapping[str, Callable[[], Part]] | None = None) -> str:
        every = (*self.columns, DELETED)
        parts: dict[str, Callable[[], Part]] = {
            "columns": lambda: [exp.to_identifier(column, quoted=True) for column in every],
            "values": lambda: [_column("c", column) for column in every],
            "columns_of_both": lambda: [_column("b", column) for column in every],
            "reporting_columns": lambda: [_column("r", column) for column in every],
            "staged_columns": lambda: [self._staged(column) for column in self.columns],
            "replay_columns": lambda: [_column("s", column) for column in REPLAY_COLUMNS],
            "changed_columns": lambda: [self._changed("s", column) for column in self.columns],
            "order_columns": lambda: [_column("r", column) for column in self.rules.order],
            "is_removed": lambda: self._is_removed("s"),
            "is_shown": lambda: exp.true() if self.rules.is_soft_delete else exp.not_(_is_deleted("b")),
            "staged_key": lambda: self._key("s"),
            "reporting_key": lambda: self._key("r"),
            "key_of_both": lambda: self._key("b"),
            "newest_first": lambda: self._newest_first("s"),
            "newest_of_both_first": lambda: self._newest_first("b"),
            "is_newer": lambda: self._is_newer("c", "r"),
            "is_newer_than_held": lambda: self._is_newer("c", "h"),
            "is_unordered": lambda: self._is_unordered("c", "r"),
            "is_unordered_with_held": lambda: self._is_unordered("c", "h"),
            "has_unordered": lambda: self._has_unordered("s"),
            "repairs_staged": lambda: self._repairs("y", "s"),
            "repairs_reporting": lambda: self._repairs("y", "r"),
            "reporting_day": lambda: self._day("r"),
            "change_day": lambda: self._day("c"),
            **(more or {}),
        }
        return fill(name, asdict(self.tables), parts)

    def _staged(self, column: str) -> exp.Expr:
        if column not in self.staged:
            return _column("s", column)
        # As it is: it was made for BigQuery, and is not parsed to be written again.
        return exp.alias_(exp.Var(this=self.staged[column]), column, quoted=True)

    def _changed(self, alias: str, column: str) -> exp.Expr:
        """Return a staged column; a removed entity loses all but what says which it was and when it went."""
        rules, value = self.rules, _column(alias, column)
        kept = {*rules.key, *rules.order, rules.partition_field}
        if not rules.has_operation or rules.is_soft_delete or column in kept or column.startswith("_"):
            return value
        wiped = exp.If(this=self._is_removed(alias), true=exp.null(), false=value)
        return exp.alias_(wiped, column, quoted=True)

    def _is_removed(self, alias: str) -> exp.Expr:
        if not self.rules.has_operation:
            return exp.false()
        is_removal = exp.EQ(this=_column(alias, OPERATION), expression=exp.Literal.string(REMOVE))
        return exp.Coalesce(this=is_removal, expressions=[exp.false()])

    def _key(self, alias: str) -> exp.Expr:
        """Return an expression that is the same text for rows of one entity and for no others.

        A row without a key is one of its own, by its message.
        """
        if not self.has_replays:
            return self._entity_key(alias)
        message = _json_of(alias, MESSAGE_COLUMNS)
        return exp.If(this=self._is_without_key(alias), true=message, false=self._entity_key(alias))

    def _entity_key(self, alias: str) -> exp.Expr:
        return _json_of(alias, self.rules.key)

    def _is_without_key(self, alias: str) -> exp.Expr:
        return exp.and_(*(_is_null(_column(alias, column)) for column in self.rules.key))

    def _sorted_by(self, alias: str, order: Sequence[str]) -> list[tuple[exp.Expr, bool]]:
        """Return the expressions that order versions, the first one first, and whether NaN may be among them."""
        return [part for name in order for part in self._sort_parts(alias, name)]

    def _sort_parts(self, alias: str, name: str) -> list[tuple[exp.Expr, bool]]:
        column = _column(alias, name)
        if name in self.texts:
            return [(part, False) for part in sort_parts(column)]
        return [(column, name in self.floats)]

    def _newest_first(self, alias: str) -> list[exp.Expr]:
        parts = self._sorted_by(alias, self.rules.order)
        return [exp.Ordered(this=part, desc=True, nulls_first=False) for part, _ in parts]

    def _is_newer(self, new: str, old: str) -> exp.Expr:
        """Compare part by part as ORDER BY does, null being oldest and then NaN; a tie is not newer."""
        found: exp.Expr = exp.false()
        pairs = zip(self._sorted_by(new, self.rules.order), self._sorted_by(old, self.rules.order), strict=True)
        for (mine, is_float), (theirs, _) in reversed(list(pairs)):
            is_greater: exp.Expr = exp.GT(this=mine.copy(), expression=theirs.copy())
            if is_float:
                # No comparison with NaN holds, not even that a number is greater.
                is_greater = exp.or_(exp.Anonymous(this="IS_NAN", expressions=[theirs.copy()]), is_greater)
            found = (
                exp.Case()
                .when(exp.NullSafeEQ(this=mine.copy(), expression=theirs.copy()), found, copy=False)
                .when(_is_null(theirs), exp.true(), copy=False)
                .when(_is_null(mine), exp.false(), copy=False)
                .else_(is_greater, copy=False)
            )
        return found

    def _kind(self, alias: str, name: str) -> exp.Expr:
        return kind_of(_column(alias, name), is_moment=name == self.rules.event_time)

    def _is_unordered(self, one: str, other: str) -> exp.Expr:
        """Whether the first column that tells two versions apart has texts of two kinds."""
        found: exp.Expr = exp.false()
        for name in reversed(self.rules.order if self.texts else ()):
            pairs = zip(self._sort_parts(one, name), self._sort_parts(other, name), strict=True)
            if not isinstance(found, exp.Boolean):
                is_same = exp.and_(
                    *(exp.NullSafeEQ(this=mine, expression=theirs) for (mine, _), (theirs, _) in pairs)
                )
                found = exp.Case().when(is_same, found, copy=False).else_(exp.false(), copy=False)
            if name in self.texts:
                differ = exp.NEQ(this=self._kind(one, name), expression=self._kind(other, name))
                found = exp.Case().when(differ, exp.true(), copy=False).else_(found, copy=False)
        return found

    def _has_unordered(self, alias: str) -> exp.Expr:
        """Whether the versions that are as new as a row by its earlier columns have texts of several kinds."""
        found: list[exp.Expr] = [exp.false()]
        for place, name in enumerate(self.rules.order):
            if name not in self.texts:
                continue
            same = [self._key(alias)]
            # NaN can't be partitioned by: as text it can.
            for part, is_float in self._sorted_by(alias, self.rules.order[:place]):
                same.append(exp.cast(part, "TEXT") if is_float else part)
            least, most = (
                exp.Window(this=kind(this=self._kind(alias, name)), partition_by=[each.copy() for each in same])
                for kind in (exp.Min, exp.Max)
            )
            found.append(exp.Coalesce(this=exp.NEQ(this=least, expression=most), expressions=[exp.false()]))
        return exp.paren(exp.or_(*found))

    def _repairs(self, replay: str, row: str) -> exp.Expr:
        """Whether a replay was written after a row of its message, and is no other part of the same replay."""
        if not self.has_replays:
            return exp.false()

        def pair(name: str) -> dict[str, exp.Expr]:
            return {"this": _column(replay, name), "expression": _column(row, name)}

        is_original = exp.and_(exp.EQ(**pair("ingest_time")), _is_null(_column(row, "_backfill_id")))
        is_other_part = exp.and_(exp.NullSafeEQ(**pair("_backfill_id")), exp.NullSafeNEQ(**pair("_backfill_row")))
        return exp.and_(
            exp.EQ(**pair("_topic")),
            exp.EQ(**pair("_message_id")),
            exp.or_(exp.GT(**pair("ingest_time")), is_original),
            exp.not_(is_other_part),
            # Of the replays of the view nothing else says that they are some.
            exp.not_(_is_null(_column(replay, "_backfill_id"))),
        )

    def _day(self, alias: str) -> exp.Expr:
        field = self.rules.partition_field
        if field is None or self.partition_type is None:
            return exp.cast(exp.null(), "DATE")
        value = _column(alias, field)
        return value if self.partition_type == "DATE" else exp.Anonymous(this="DATE", expressions=[value])

    def _in_days(self, alias: str, days: Sequence[date | None]) -> exp.Expr:
        """Return a condition of constants on the partitioning column: no other prunes partitions."""
        field = self.rules.partition_field
        if not days:
            return exp.false()
        if field is None or self.partition_type is None:
            return exp.true()
        value = _column(alias, field)
        choices = [
            _within(value, first, last, self.partition_type)
            for first, last in _ranges([day for day in days if day is not None])
        ]
        if None in days:
            choices.append(_is_null(value))
        return exp.paren(exp.or_(*choices))


def _column(table: str, name: str) -> exp.Column:
    return exp.column(exp.to_identifier(name, quoted=True), table=table)


def _json_of(alias: str, columns: Sequence[str]) -> exp.Expr:
    struct = exp.Struct(expressions=[_column(alias, column) for column in columns])
    return exp.Anonymous(this="TO_JSON_STRING", expressions=[struct])


def _is_null(value: exp.Expr) -> exp.Expr:
    return exp.Is(this=value.copy(), expression=exp.null())


def _is_deleted(alias: str) -> exp.Expr:
    return exp.Coalesce(this=_column(alias, DELETED), expressions=[exp.false()])


def _timestamp(moment: datetime) -> exp.Expr:
    return exp.cast(
        exp.Literal.string(moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f+00:00")), "TIMESTAMPTZ"
    )


def _start(day: date, kind: PartitionType) -> exp.Expr:
    if kind == "DATE":
        return exp.cast(exp.Literal.string(day.isoformat()), "DATE")
    if kind == "DATETIME":
        return exp.cast(exp.Literal.string(f"{day.isoformat()} 00:00:00"), "TIMESTAMP")
    return _timestamp(datetime(day.year, day.month, day.day, tzinfo=UTC))


def _within(value: exp.Expr, first: date, last: date, kind: PartitionType) -> exp.Expr:
    begin = exp.GTE(this=value.copy(), expression=_start(first, kind))
    if last == date.max:
        # No literal names the day after it.
        return begin
    end = exp.LT(this=value.copy(), expression=_start(last + timedelta(days=1), kind))
    return exp.and_(begin, end)


def _ranges(days: Sequence[date]) -> list[tuple[date, date]]:
    """Return runs of consecutive days as (first, last)."""
    ranges: list[tuple[date, date]] = []
    for day in sorted(set(days)):
        if ranges and day - ranges[-1][1] == timedelta(days=1):
            ranges[-1] = (ranges[-1][0], day)
        else:
            ranges.append((day, day))
    return ranges
