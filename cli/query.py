"""``refeed query``: GoogleSQL over the archive."""

import base64
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table
from rich.text import Text

from cli.invocation import command_settings, open_deployment
from cli.parameters import ParameterOption, parse_parameters
from cli.terminal import err, out, print_json
from model.errors import InputError, RegistryError
from model.naming import counted
from sql.violation import QueryRefusedError, Violation

if TYPE_CHECKING:
    import pyarrow as pa

    from model.query_parameter import QueryParameter
    from model.settings import Settings
    from model.table import TableSchema
    from sql.validate import Policy, ValidatedQuery
    from warehouse.merges import MergeSource, UnionViews
    from warehouse.queries import Queries, QueryAnswer

_MAX_CELL_CHARACTERS: Final = 80
_TABLE_NAME: Final = re.compile(r"[\w.`-]+")


def query(
    sql: Annotated[
        str | None, typer.Argument(metavar="SQL", help="One SELECT, in GoogleSQL.", show_default=False)
    ] = None,
    *,
    view: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help="Print all rows of this source's view, instead of running a query."),
    ] = None,
    param: ParameterOption = None,
    max_rows: Annotated[int, typer.Option(min=1, help="Print at most N rows.")] = 100,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per row, with bytes as base64.")
    ] = False,
) -> None:
    """Run one SELECT over the archive, or over the view of a source, and print the rows of the result.

    To read a staging or reporting table itself, name it for this command:
    REFEED_QUERY_TABLES=staging.orders refeed query 'SELECT COUNT(*) FROM staging.orders'. In staging, _message_id
    names a row's message, and _backfill_id the backfill that replayed it.
    """
    settings = command_settings()
    text, views = _find_views(settings, sql, view)
    try:
        validated = validate(settings, text, parse_parameters(param or ()), views=views)
    except QueryRefusedError as refused:
        raise _name_views(settings, text, refused) from None
    answer = run(settings, validated, max_rows=max_rows, views=views)
    for note in answer.notes:
        err.print(note.message)
    if as_json:
        for row in answer.rows.to_pylist():
            print_json(_to_json(row))
    else:
        _print_rows(answer.rows)
    if answer.is_cut:
        err.print(f"The result has more than {counted(max_rows, 'row')}. --max-rows shows more.")


def validate(
    settings: "Settings",
    sql: str,
    parameters: "Mapping[str, QueryParameter]",
    *,
    views: "UnionViews | None" = None,
) -> "ValidatedQuery":
    """Return the query as the gate judged it, with the tables of the warehouse as they are now.

    Raises:
        QueryRefusedError: it is not allowed; every violation is in it.
    """
    from sql.validate import parse_parameters, validate_query

    declared = () if views is None else views.read_schemas()
    policy = gate_policy(settings, replay=False, declared=declared, must_exist=True)
    return validate_query(sql, parse_parameters(parameters), policy)


def _find_views(settings: "Settings", sql: str | None, source: str | None) -> "tuple[str, UnionViews | None]":
    """Return the query, and the union views that it may read when it looks as if it read one.

    Raises:
        InputError: there is no query, or no such source.
    """
    from model.entity import VIEW_SUFFIX

    if sql is None and source is None:
        raise InputError("Give a SELECT, or use --view SOURCE for all rows of the source's view.")
    if source is None and (sql is None or VIEW_SUFFIX not in sql.lower()):
        return sql or "", None
    from pipeline.registry import Registry
    from reporting.request import choose_sources

    names = None if source is None else [source]
    try:
        sources = choose_sources(names, Registry(settings.registry).read_valid().merge_sources())
    except RegistryError:
        if sql is None:
            raise
        # It may well read no view; if it does, the gate knows no such table.
        return sql, None
    if sql is not None and source is not None:
        raise InputError(
            f"--view prints all rows of {sources[0].view}. To run a SELECT, leave --view out, and "
            "name the view in the SELECT."
        )
    text = sql or f"SELECT * FROM {sources[0].view}"  # noqa: S608 - the gate judges it
    # A view is named by its last part at least, in backticks or not.
    read = [source for source in sources if source.view.rpartition(".")[2].lower() in text.lower()]
    return text, open_deployment(settings).warehouse.open_views(read)


def _name_views(settings: "Settings", text: str, refused: QueryRefusedError) -> QueryRefusedError:
    """Return the refusal; for a source's own tables it names the source's union view instead of the archive."""
    if not any(each.code == "table_not_allowed" for each in refused.violations):
        return refused
    from pipeline.registry import Registry

    try:
        found = Registry(settings.registry).read_valid().merge_sources()
    except RegistryError:
        return refused
    sources = [source for source in found.values() if source is not None]
    return QueryRefusedError([_name_view(each, text, sources) for each in refused.violations])


def _name_view(violation: Violation, text: str, sources: "Iterable[MergeSource]") -> Violation:
    if violation.code != "table_not_allowed":
        return violation
    line = text.split("\n")[violation.line - 1]
    found = _TABLE_NAME.match(line, violation.column - 1)
    name = "" if found is None else found[0].replace("`", "").lower()
    for source in sources:
        tables = [table.lower() for table in (source.reporting, source.staging, source.view)]
        short = tables[-1].rpartition(".")[2]
        if name in {short, source.name.lower()} or any(f".{name}".endswith(f".{table}") for table in tables):
            message = f"The table {name} is not allowed. Read the view of the source {source.name} instead."
            if table := next((each for each in tables[:2] if f".{name}".endswith(f".{each}")), None):
                message += f" To read the table itself, set REFEED_QUERY_TABLES={table} for this command."
            return replace(violation, message=message, rewrite=f"FROM `{source.view}`")
    return violation


def gate_policy(
    settings: "Settings", *, replay: bool, declared: "Sequence[TableSchema]" = (), must_exist: bool = False
) -> "Policy":
    """Return what the gate lets through here; only a replay needs a window and the three output columns.

    What REFEED_QUERY_TABLES names is looked up where the warehouse tells it beforehand; ``declared`` tables are
    allowed as they are declared. Without ``must_exist``, a machine without a lake accepts queries for BigQuery.
    """
    from sql.validate import Policy

    names = tuple(name for name in settings.query_tables if name != settings.archive_table)
    policy = Policy(
        archive_table=settings.archive_table,
        project=settings.project,
        now=datetime.now(UTC),
        extra_tables=names,
        max_window_days=settings.max_window_days,
        replay=replay,
    )
    with closing(_open_queries(settings)) as queries:
        policy = queries.policy(policy, must_exist=must_exist)
    if not declared:
        return policy
    own = tuple(schema.table for schema in declared)
    return replace(
        policy,
        extra_tables=tuple(dict.fromkeys((*own, *names))),
        schemas=(*declared, *(schema for schema in policy.schemas if schema.table not in own)),
        missing_tables=tuple(name for name in policy.missing_tables if name not in own),
    )


def run(
    settings: "Settings", validated: "ValidatedQuery", *, max_rows: int, views: "UnionViews | None" = None
) -> "QueryAnswer":
    """Return up to ``max_rows`` rows of the result, and whether there are more; in BigQuery they are billed.

    Raises:
        QueryError: the query failed while it ran.
    """
    with closing(_open_queries(settings)) as queries:
        return queries.answer(validated, max_rows=max_rows, views=views)


def _open_queries(settings: "Settings") -> "Queries":
    from warehouse.queries import QuerySpace

    return open_deployment(settings).warehouse.open_queries(
        QuerySpace(settings.query_memory, settings.home / "run" / "spill")
    )


def _print_rows(rows: "pa.Table") -> None:
    table = Table(*rows.column_names)
    for row in rows.to_pylist():
        table.add_row(*(Text(_to_cell(value), overflow="ellipsis", no_wrap=True) for value in row.values()))
    out.print(table if rows.num_rows else "no rows")


def _to_cell(value: object) -> str:
    """Return what a person reads: bytes as the text they are, or as base64."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = base64.b64encode(value).decode()
    else:
        plain = _to_json(value)
        text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
    return text if len(text) <= _MAX_CELL_CHARACTERS else text[: _MAX_CELL_CHARACTERS - 1] + "…"


def _to_json(value: Any) -> Any:
    """Return ``value`` as JSON has it: bytes as base64, times as RFC 3339 in UTC, NUMERIC as its text."""
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z") if value.tzinfo else value.isoformat()
        case date() | time() | timedelta():
            return str(value)
        case dict():
            return {key: _to_json(inner) for key, inner in value.items()}
        case list():
            return [_to_json(inner) for inner in value]
        case _:
            return _number_to_json(value) if isinstance(value, Decimal | float) else value


def _number_to_json(value: Decimal | float) -> str | float:
    """Return a NUMERIC, and a FLOAT64 that JSON has not, as the text that BigQuery's API answers."""
    from pipeline.values import number_text, numeric_text

    if isinstance(value, Decimal):
        return numeric_text(value)
    return value if math.isfinite(value) else number_text(value)
