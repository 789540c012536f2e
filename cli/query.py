"""``refeed query``: GoogleSQL over the archive."""

import base64
import json
import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from cli.invocation import command_settings, open_deployment
from cli.parameters import ParameterOption, parse_parameters
from cli.terminal import Output, err, out, print_as, print_json, render_table
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
# A column that holds longer values gets at least this width.
_MIN_WIDTH: Final = 16
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
    count: Annotated[
        bool, typer.Option("--count", help="With --view: print only the number of rows of the view.")
    ] = False,
    param: ParameterOption = None,
    max_rows: Annotated[
        int, typer.Option("--limit", "--max-rows", min=1, metavar="N", help="Print at most N rows.")
    ] = 100,
    output: Annotated[
        Output | None,
        typer.Option(
            "--output",
            "-o",
            help="Print JSON or YAML, one object per row, or a table with all columns and whole values (wide).",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per row, with bytes as base64.")
    ] = False,
) -> None:
    """Run one SELECT over the archive, or over the view of a source, and print the rows of the result.

    To count the rows of a view: refeed query --view orders --count. A SELECT counts too: SELECT COUNT(*) FROM
    reporting.orders_view WHERE status = 'paid'. On BigQuery, the limit on read bytes applies to both.

    To read a staging or reporting table itself, name it for this command:
    REFEED_QUERY_TABLES=staging.orders refeed query 'SELECT COUNT(*) FROM staging.orders'. In staging, _message_id
    names a row's message, and _backfill_id the backfill that replayed it.
    """
    settings = command_settings()
    if output is Output.NAME:
        raise InputError("Rows have no names. Use -o json, -o yaml or -o wide.")
    text, views = _find_views(settings, sql, view, is_count=count)
    try:
        validated = validate(settings, text, parse_parameters(param or ()), views=views)
    except QueryRefusedError as refused:
        raise _name_views(settings, text, refused) from None
    answer = run(settings, validated, max_rows=max_rows, views=views)
    for note in answer.notes:
        err.print(note.message)
    if as_json or output is Output.JSON:
        for row in answer.rows.to_pylist():
            print_json(_to_json(row))
    elif output is Output.YAML:
        print_as(output, [_to_json(row) for row in answer.rows.to_pylist()], ())
    else:
        _print_rows(answer.rows, is_wide=output is Output.WIDE)
    if answer.is_cut:
        err.print(f"The result has more than {counted(max_rows, 'row')}. --limit shows more.{_how_to_count(view)}")


def _how_to_count(view: str | None) -> str:
    return "" if view is None else f" To count all: refeed query --view {view} --count"


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


def _find_views(
    settings: "Settings", sql: str | None, source: str | None, *, is_count: bool
) -> "tuple[str, UnionViews | None]":
    """Return the query, and the union views that it may read when it looks as if it read one.

    Raises:
        InputError: there is no query, or no such source.
    """
    from model.entity import VIEW_SUFFIX

    if is_count and source is None:
        raise InputError("--count needs --view SOURCE. In a SELECT, write COUNT(*).")
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
    what = "COUNT(*) AS row_count" if is_count else "*"
    text = sql or f"SELECT {what} FROM {sources[0].view}"  # noqa: S608 - the gate judges it
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


def _print_rows(rows: "pa.Table", *, is_wide: bool) -> None:
    """Print a table: one with long lines, or one as wide as the terminal that names the columns it leaves out."""
    limit = None if is_wide else _MAX_CELL_CHARACTERS
    lines = [[_to_cell(value, limit) for value in row.values()] for row in rows.to_pylist()]
    if is_wide or not lines:
        for text in render_table(rows.column_names, lines) if lines else ["no rows"]:
            out.print(text)
        return
    names = rows.column_names
    # A narrow column is shown whole, and a wide one in part.
    least = [
        max(cell_len(name), min(_MIN_WIDTH, max(map(cell_len, cells))))
        for name, *cells in zip(names, *lines, strict=True)
    ]
    # Each column has a border and two blanks beside it, and the last one a border more.
    shown = max(1, bisect_right([*accumulate(width + 3 for width in least)], out.width - 1))
    table = Table()
    for name, width in zip(names[:shown], least, strict=False):
        table.add_column(name, no_wrap=True, overflow="ellipsis", min_width=width)
    for line in lines:
        table.add_row(*map(Text, line[:shown]))
    out.print(table)
    if left := names[shown:]:
        columns = counted(len(left), "more column")
        err.print(f"… {columns}: {', '.join(left)}. -o wide or -o json prints all columns.")


def _to_cell(value: object, limit: int | None) -> str:
    """Return what a person reads, up to ``limit`` characters: bytes as the text they are, or as base64."""
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
    return text if limit is None or len(text) <= limit else text[: limit - 1] + "…"


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
