"""``refeed sql check``: what the gate says of a query, without running it."""

from typing import Annotated

import typer

from cli.backfill import read_query
from cli.invocation import HomeGroup, command_settings
from cli.parameters import ParameterOption, parse_parameters
from cli.query import validate
from cli.terminal import ExitCode, out, print_error, print_json
from model.errors import RefeedError

app = typer.Typer(cls=HomeGroup, help="Look at queries.", no_args_is_help=True)


@app.command("check")
def check(
    query: Annotated[
        str, typer.Argument(metavar="SQL", help="GoogleSQL, @FILE or - (stdin).", show_default=False)
    ],
    *,
    param: ParameterOption = None,
    free: Annotated[
        bool, typer.Option("--free", help="Judge it as 'refeed query' does, not as a replay.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say whether a query may run, and every reason why not; exit 4 when it may not."""
    settings = command_settings()
    try:
        validated = validate(settings, read_query(query), parse_parameters(param or ()), replay=not free)
    except RefeedError as error:
        if error.code != "query_refused":
            raise
        if as_json:
            print_json({"ok": False, "violations": error.details.get("violations")})
        else:
            print_error(error)
        raise typer.Exit(ExitCode.REFUSED) from None
    window = validated.window
    found = None if window is None else {"from": window.start.isoformat(), "to": window.end.isoformat()}
    if as_json:
        print_json({"ok": True, "window": found, "tables": list(validated.tables)})
    else:
        out.print("ok" + (f", reads what was ingested from {found['from']} to {found['to']}" if found else ""))
