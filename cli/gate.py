"""``refeed check``: what the gate says of a query, or of thousands, without running one."""

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, TextIO

import typer

from cli.backfill import read_query
from cli.invocation import command_settings
from cli.manifest import check_manifests
from cli.options import JsonObjectOption
from cli.parameters import ParameterOption, parse_parameters
from cli.query import gate_policy
from cli.terminal import out, print_json
from model.errors import InputError


def check(
    query: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE|-", help="A file, - for stdin, or the text of the query.", show_default=False
        ),
    ] = None,
    *,
    param: ParameterOption = None,
    jsonl: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|-",
            help="A file with one query in each line, as a JSON object with the fields id, sql and params. An "
            "entry of params is NAME: [TYPE, VALUE]. The command prints a verdict for each query.",
        ),
    ] = None,
    free: Annotated[
        bool, typer.Option("--free", help="Apply the rules of 'refeed query' instead of the rules of a replay.")
    ] = False,
    table_schema: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TABLE(COLUMN TYPE, ...)",
            help="Also allow this table. A table with the column _PARTITIONTIME is partitioned. May be repeated.",
            show_default=False,
        ),
    ] = None,
    rewrite: Annotated[
        bool,
        typer.Option(
            "--rewrite",
            help="Print the query with all corrections applied. The exit code is 0 if the corrected query may "
            "run.",
        ),
    ] = False,
    file: Annotated[
        list[Path],
        typer.Option(
            "--file",
            "-f",
            help="Check the manifests in this file or folder instead of a query, and print each fault with its "
            "line and column. Exit code 1: a file has faults. May be repeated.",
            show_default=False,
        ),
    ] = [],  # noqa: B006 - typer reads it
    manifest_schema: Annotated[
        bool, typer.Option("--manifest-schema", help="Print the JSON Schema of manifests for editors.")
    ] = False,
    as_json: JsonObjectOption = False,
) -> None:
    """Check whether a backfill may run a query, and print every reason against it. Exit code 2: it may not run.

    The API checks the query of each backfill in the same way. This command needs no API and no Java.
    """
    if (query is not None) + (jsonl is not None) + bool(file) + manifest_schema != 1:
        raise typer.BadParameter("needs one of a query, --jsonl, --file and --manifest-schema")
    if manifest_schema:
        from rollout.manifests import manifest

        print_json(manifest.manifest_schema())
        return
    if file:
        check_manifests(file)
        return
    from sql.check import check_lines, check_query
    from sql.tables import parse_table_schema

    declared = [parse_table_schema(text) for text in table_schema or ()]
    policy = gate_policy(command_settings(), replay=not free, declared=declared)
    if jsonl is not None:
        with nullcontext(sys.stdin) if jsonl == "-" else _open(jsonl) as lines:
            for verdict in check_lines(lines, policy):
                sys.stdout.write(json.dumps(verdict) + "\n")
        return
    assert query is not None
    # A long query is no file's name, and only this one says so without an error.
    is_file = os.path.isfile(query)  # noqa: PTH113
    text = read_query(f"@{query}" if is_file else query)
    report = check_query(text, parse_parameters(param or ()), policy, with_edits=rewrite or as_json)
    if rewrite and not as_json:
        sys.stdout.write((report.rewritten or text).rstrip("\n") + "\n")
        raise typer.Exit(report.exit_code if report.rewritten is None else 0 if report.is_mended else 2)
    if as_json:
        print_json(report.to_json())
    else:
        out.print(report.to_text())
    raise typer.Exit(report.exit_code)


def _open(path: str) -> TextIO:
    try:
        return Path(path).open(encoding="utf-8", errors="replace")
    except OSError as exc:
        raise InputError(f"The queries can't be read from {path}: {exc}") from exc
