"""The verdict on a query, from the first byte to the last rule, without leaving this process."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from model.table import PARTITION_TIME, TableRead
from model.window import Window
from sql import rules
from sql.binder import Policy, Scan
from sql.bounds import prove
from sql.buffer import leaves_out, with_buffer
from sql.edits import PlacedViolation, apply_edits
from sql.from_binder import INGEST_TIME, LAKE_VIEW
from sql.grammar import GrammarError, read_statement
from sql.lexer import SourceText, Token, check_size, read_tokens
from sql.literals import parameter_value
from sql.parameters import Parameter
from sql.query_binder import QueryBinder
from sql.relation import Relation
from sql.starts import find_cut_partitions
from sql.syntax import Query
from sql.values import map_code, quote_name, without_quotes
from sql.violation import Fault, QueryRefusedError, Violation

# A scan in a text for the lake, with its sample: only a table can be sampled.
_SCAN_TEXT: Final = re.compile(
    r"\b(refeed_archive|refeed_table_\d+) AS (t\d+)\b( TABLESAMPLE SYSTEM \(\d+ PERCENT\))?"
)
# What a selection keeps of each message beside the three columns of a replay.
KEPT_COLUMNS = ("topic", "publish_time", "ordering_key")
# What people see of a message.
_SHOWN_COLUMNS: Final = ("topic", "message_id", "attributes", "data")


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A column of the result."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class ValidatedQuery:
    """A query that passed the gate.

    ``text`` is what was written and what BigQuery gets. ``window`` holds every partition the query can read;
    it is None only for ``refeed query``. Tables beside the archive are ``extra_reads``. ``lake_sql`` is the same
    query for the lake, of which ``lake_violations`` say what it can't do there; use
    ``sql.dialect.render_lake_query``. ``missing_columns`` are those of topic, publish_time and ordering_key that
    the text does not give back and that ``lake_sql`` adds under their own names, after the others;
    ``looks_up_columns`` says that it takes a second reading of the archive to find them. A query that does not
    read the archive gets no column added.

    ``unbuffered_until`` is the end of the partitions of the archive that ``text`` reads without the rows in
    BigQuery's write buffer, None where it leaves out none. ``buffered_text`` is then the same query with them, or
    None where it can't be written.

    ``replayed_times`` are the column and the times between which all messages lie that the query lets through,
    None where it bounds no column but the partitions.

    ``is_as_archived`` is whether each row of the result is one row of the archive with its own topic, payload and
    attributes: no other row had a part in them.

    ``warnings`` are what it may not have been meant to say, with edits that were tried together.
    """

    text: str
    parameters: Mapping[str, Parameter]
    window: Window | None
    tables: tuple[str, ...]
    output: tuple[OutputColumn, ...]
    rewrites_data: bool
    rewrites_attributes: bool
    rewrites_topic: bool
    is_as_archived: bool
    missing_columns: tuple[str, ...]
    looks_up_columns: bool
    reads_archive: bool
    extra_reads: tuple[TableRead, ...]
    lake_sql: str
    lake_parameters: Mapping[str, object]
    lake_violations: tuple[Violation, ...]
    unbuffered_until: datetime | None = None
    buffered_text: str | None = None
    replayed_times: tuple[str, Window] | None = None
    warnings: tuple[PlacedViolation, ...] = ()

    @property
    def leaves_out_buffer(self) -> bool:
        """Whether ``text`` may leave out rows of the archive that are in BigQuery's write buffer."""
        return self.unbuffered_until is not None


def judge_query(text: str, parameters: Mapping[str, Parameter], policy: Policy) -> ValidatedQuery:
    """Return ``text`` as a query that may run under ``policy``.

    Raises:
        QueryRefusedError: it may not; every violation is in it, with its place and a way out where there is one.

    Example:
        >>> from datetime import UTC, datetime
        >>> policy = Policy("backup.messages", None, datetime(2026, 1, 3, tzinfo=UTC))
        >>> query = judge_query("SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2026-01-02'", {}, policy)
        >>> query.window.start.isoformat(), query.rewrites_data
        ('2026-01-02T00:00:00+00:00', False)
    """
    verdict = _judge_text(text, parameters, policy)
    if verdict.buffered_text is not None:
        again = _judge_own(verdict.buffered_text, verdict, policy)
        if again is None or again.leaves_out_buffer:
            verdict = replace(verdict, buffered_text=None)
    edits = [edit for warning in verdict.warnings for edit in warning.edits]
    if edits:
        again = _judge_own(apply_edits(text, edits), verdict, policy)
        if again is None or any(warning.edits for warning in again.warnings):
            warnings = tuple(
                replace(each, edits=(), violation=replace(each.violation, rewrite=None))
                for each in verdict.warnings
            )
            verdict = replace(verdict, warnings=warnings)
    return verdict


def _judge_own(text: str, verdict: ValidatedQuery, policy: Policy) -> ValidatedQuery | None:
    """Return the verdict on ``text``, which this program made of a query, judged as if it had not.

    None where it is refused, or gives other columns, or reads other tables.
    """
    try:
        again = _judge_text(text, verdict.parameters, policy)
    except QueryRefusedError:
        return None
    return again if (again.tables, again.output) == (verdict.tables, verdict.output) else None


def _judge_text(text: str, parameters: Mapping[str, Parameter], policy: Policy) -> ValidatedQuery:
    fault = check_size(text)
    if fault is not None:
        raise QueryRefusedError([Violation(fault.code, fault.message, 1, 1, fault.rewrite)])
    source = SourceText(text)
    tokens, faults = read_tokens(source)
    if faults:
        raise _refusal(source, faults)
    try:
        query = read_statement(source, tokens)
    except GrammarError as exc:
        raise _refusal(source, [exc.fault]) from exc
    binder = QueryBinder(policy, parameters)
    relation = binder.bind_query(query, None, {})
    return _judge(source, tokens, query, relation, binder)


def _refusal(source: SourceText, faults: list[Fault]) -> QueryRefusedError:
    violations = [source.violation(fault) for fault in faults]
    return QueryRefusedError(sorted(set(violations), key=lambda v: (v.line, v.column, v.code, v.message)))


def _judge(
    source: SourceText, tokens: Sequence[Token], query: Query, relation: Relation, binder: QueryBinder
) -> ValidatedQuery:
    policy = binder.policy
    bound = rules.Bound(query, relation, binder, policy)
    windows: dict[str, Window] = {}
    faults = list(binder.faults)
    if policy.replay:
        windows, found = rules.check_window(bound)
        faults += [*found, *rules.check_reads_table(bound), *rules.check_output(bound)]
    if faults:
        raise _refusal(source, faults)
    window = rules.replay_window(bound, windows) if policy.replay else None
    lacking, unbuffered_until = _scans_without_buffer(binder)
    missing: tuple[str, ...] = ()
    if policy.replay and binder.reads_archive:
        missing = tuple(name for name in KEPT_COLUMNS if all(column.key != name for column in relation.columns))
    added = _add_columns(relation, missing)
    lake_sql = _until_the_plan(_lake_sql(relation, added, binder), binder)
    looks_up = len(added) < len(missing)
    if looks_up and window is not None:
        lake_sql = _join_columns(lake_sql, relation, missing, window)
    origins = {c.key: c.value.origin.column if c.value.origin else None for c in relation.columns}
    # A parameter that only moved a bound or a LIMIT is in the text as a constant already.
    placed = set(re.findall(r"\$(p\d+)", without_quotes(lake_sql)))
    used = {
        key: parameter_value(binder.parameters[name])
        for name, key in binder.used_parameters.items()
        if key in placed
    }
    return ValidatedQuery(
        text=source.text,
        parameters=dict(binder.parameters),
        window=window,
        tables=tuple(dict.fromkeys(binder.tables)),
        output=tuple(OutputColumn(c.name or "", str(c.value.type)) for c in relation.columns),
        rewrites_data=policy.replay and binder.reads_archive and origins["data"] != "data",
        rewrites_attributes=policy.replay and binder.reads_archive and origins["attributes"] != "attributes",
        rewrites_topic=policy.replay and binder.reads_archive and origins.get("topic", "topic") != "topic",
        # With two readings of it, the topic could be that of another row.
        is_as_archived=binder.reads_archive
        and binder.readings == 1
        and all(origins.get(name, name) == name for name in _SHOWN_COLUMNS),
        missing_columns=missing,
        looks_up_columns=looks_up,
        reads_archive=binder.reads_archive,
        extra_reads=binder.extra_reads(windows),
        lake_sql=lake_sql,
        lake_parameters=used,
        lake_violations=tuple(source.violation(fault) for fault in dict.fromkeys(binder.gaps)),
        unbuffered_until=unbuffered_until,
        replayed_times=rules.replayed_times(bound) if policy.replay else None,
        buffered_text=with_buffer(source.text, lacking, binder.values, policy.partitioning) if lacking else None,
        warnings=tuple(find_cut_partitions(source, tokens, binder.scans, binder.values, policy)),
    )


def _scans_without_buffer(binder: QueryBinder) -> tuple[list[Scan], datetime | None]:
    """Return the scans of the archive that may leave out rows without a partition, and where the last one ends."""
    policy = binder.policy
    if not policy.has_write_buffer:
        return [], None
    scans = [scan for scan in binder.scans if scan.table == policy.archive_table]
    lacking = [scan for scan in scans if leaves_out(scan, binder.values)]
    ends = [span.end for scan in lacking for span in prove(scan.filters, scan.numbers, binder.values).partitions]
    # No partition begins after now, so a scan without an upper end ends now.
    return (lacking, min(max(ends), policy.now)) if ends else ([], None)


def _until_the_plan(sql: str, binder: QueryBinder) -> str:
    """Return ``sql`` with every scan that has no upper end of its own ended at the moment of the plan.

    Its window says so, and a partition of a day still grows when the query runs.
    """
    if not binder.open_ended:
        return sql
    end = f"TIMESTAMPTZ '{binder.policy.now.isoformat(' ')}'"

    def ended(match: re.Match[str]) -> str:
        view, name, sample = match.groups("")
        if name not in binder.open_ended:
            return match[0]
        return f'(SELECT * FROM {view}{sample} WHERE "{INGEST_TIME}" < {end}) AS {name}'

    return map_code(lambda code: _SCAN_TEXT.sub(ended, code), sql)


def _add_columns(relation: Relation, missing: tuple[str, ...]) -> dict[str, str]:
    """Return texts for the columns that a plain SELECT lacks, read beside the message_id they belong to."""
    if not missing:
        return {}
    message_id = next(column.value for column in relation.columns if column.key == "message_id")
    if relation.scope is None or message_id.origin is None:
        return {}
    for item in relation.scope.items:
        if item.is_archive and item.scans[0].number == message_id.origin.scan:
            known = {column.name: column.value.lake for column in item.columns}
            return {name: known[name] for name in missing}
    return {}


def _join_columns(sql: str, relation: Relation, missing: tuple[str, ...], window: Window) -> str:
    """Return ``sql`` with the columns it lacks looked up in the archive, by message_id within the window.

    A message_id is unique within its topic only: one that two topics share is an error, not a guess.
    """
    has_topic = any(column.key == "topic" for column in relation.columns)
    keys = "message_id, topic" if has_topic else "message_id"
    found = ", ".join(f'any_value("{name}") AS "{name}"' for name in missing)
    moments = (f"TIMESTAMPTZ '{moment.isoformat(' ')}'" for moment in (window.start, window.end))
    low, high = moments
    lookup = (
        f"SELECT {keys}, count(DISTINCT topic) AS topics, {found} FROM {LAKE_VIEW} "
        f'WHERE "{PARTITION_TIME}" >= {low} AND "{PARTITION_TIME}" < {high} GROUP BY {keys}'
    )
    shared = "error('message_id ' || r.message_id || ' occurs in several topics; select topic as well')"
    kinds = {"publish_time": "TIMESTAMPTZ"}
    columns = ", ".join(
        f"CASE WHEN k.topics > 1 THEN CAST({shared} AS {kinds.get(name, 'VARCHAR')}) ELSE k.{name} END AS {name}"
        for name in missing
    )
    condition = "r.message_id = k.message_id" + (" AND r.topic = k.topic" if has_topic else "")
    numbered = f"SELECT *, row_number() OVER () AS refeed_row_number FROM ({sql}) AS s"
    return (
        f"SELECT r.* EXCLUDE (refeed_row_number), {columns} FROM ({numbered}) AS r "
        f"LEFT JOIN ({lookup}) AS k ON {condition} ORDER BY r.refeed_row_number"
    )


def _lake_sql(relation: Relation, added: Mapping[str, str], binder: QueryBinder) -> str:
    sql = relation.sql
    names = [(column.value.lake, column.name or f"column_{n}") for n, column in enumerate(relation.columns, 1)]
    if added:
        extra = []
        for name, text in added.items():
            fresh = binder.fresh("o")
            extra.append(f"{text} AS {fresh}")
            names.append((fresh, name))
        head = sql[: len(sql) - len(relation.rest)]
        sql = f"{head}, {', '.join(extra)}{relation.rest}"
    items = ", ".join(f"{binder_name} AS {quote_name(name)}" for binder_name, name in names)
    return f"SELECT {items} FROM ({sql}) AS result"
