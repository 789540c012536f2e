"""``refeed demo``: its options, its temporary home and its verdict table."""

import os
import shutil
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal
from uuid import uuid4

import typer
from rich.table import Table
from rich.text import Text

from cli.lines import read_messages
from cli.processes import free_port
from cli.terminal import ExitCode, err, out, print_json
from model.errors import InputError, RefeedError

if TYPE_CHECKING:
    from cli.demo.verdict import Verdict

# The variables that name a stand-in for a warehouse: where google-cloud-bigquery looks for one, and where Refeed
# does for its other half.
_STANDIN: Final[Mapping[str, tuple[str, ...]]] = {
    "lake": (),
    "bigquery": ("BIGQUERY_EMULATOR_HOST", "REFEED_BIGQUERY_STORAGE_HOST"),
}
_MESSAGES: Final = 20_000
# As many as an hour of the two weeks has at most: a larger one would be all that the heat map shows.
_CONSOLE_MESSAGES: Final = 600


def demo(
    *,
    input_file: Annotated[
        Path | None,
        typer.Option(
            "--input",
            help="Publish the messages in this file. The file must have the format that 'refeed publish' reads.",
        ),
    ] = None,
    messages: Annotated[
        int | None,
        typer.Option(min=1, help="The number of messages to generate. Default: 20,000, or 600 with --console."),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="The seed of the generator. The same seed generates the same messages.")
    ] = 1,
    warehouse: Annotated[
        Literal["lake", "bigquery"],
        typer.Option(
            help="The warehouse: lake or bigquery. For bigquery, start an emulator, and set "
            "BIGQUERY_EMULATOR_HOST and REFEED_BIGQUERY_STORAGE_HOST."
        ),
    ] = "lake",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary home.")] = False,
    console: Annotated[
        bool,
        typer.Option(
            "--console",
            help="After the verdict, archive two weeks of a shop's messages, and run all services and the "
            "console until Ctrl-C.",
        ),
    ] = False,
) -> None:
    """Back up and replay sample messages in a temporary home, compare the results, and print a verdict.

    The demo publishes the messages of a web shop and backs them up. Halfway, the demo kills the backup with
    SIGKILL and starts the backup again. The demo replays a day of one topic through the HTTP API and compares
    every byte. The exit code is 0 only if the verdict is clean.

    With --console, the demo then archives two weeks of the shop's messages, and runs all services and the console
    until Ctrl-C.
    """
    from cli.demo.console import DemoConsole
    from cli.demo.run import Demo
    from cli.demo.shop import generate_messages
    from cli.stack import Stack
    from rollout.child import Children

    # SIGTERM ends the processes too, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    environment = _own_environment(warehouse)
    if console and _STANDIN[warehouse]:
        raise InputError("--console works only with a lake. Leave --warehouse out.")
    messages = messages or (_CONSOLE_MESSAGES if console else _MESSAGES)
    source = generate_messages(messages, seed) if input_file is None else read_messages(input_file)
    lines = list(source)
    if not lines:
        raise InputError(f"{input_file} has no messages.")
    home = Path(tempfile.mkdtemp(prefix="refeed-demo-"))
    is_kept = keep
    try:
        stack = Stack(
            home,
            pubsub_port=free_port(),
            api_port=free_port(),
            environment=environment,
        )
        err.print(f"home {home}, API {stack.api_url}, Pub/Sub {stack.emulator_host}")
        with Children() as children:
            try:
                verdict = Demo(stack, children, lines).run()
            finally:
                children.stop()
                stack.close()
        is_kept = keep or not verdict.is_clean
        (err if as_json else out).print(_render(verdict))
        if as_json:
            print_json(verdict.as_json())
        if console and verdict.is_clean:
            DemoConsole(stack, seed).run(err.print)
    except RefeedError:
        is_kept = True
        raise
    finally:
        if is_kept:
            err.print(f"kept: {home} (logs in {home / 'logs'})")
        else:
            shutil.rmtree(home, ignore_errors=True)
    raise typer.Exit(ExitCode.OK if verdict.is_clean else ExitCode.FAILED)


def _own_environment(warehouse: str) -> dict[str, str]:
    """Return this process's environment with Refeed's defaults, and leases that run out while one watches.

    Raises:
        InputError: no stand-in for BigQuery is named; Google's own is not for a demo.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REFEED_")}
    kept.pop("GOOGLE_CLOUD_PROJECT", None)
    kept["REFEED_ACK_DEADLINE_SECONDS"] = "10"
    standin = _STANDIN[warehouse]
    if not standin:
        return kept
    if missing := [name for name in standin if not os.environ.get(name)]:
        raise InputError(
            "The demo writes only to an emulator of BigQuery, never to Google's. Set "
            f"{' and '.join(missing)}, or run 'make demo-bigquery', which starts an emulator."
        )
    return {
        **kept,
        **{name: os.environ[name] for name in standin},
        "REFEED_WAREHOUSE": warehouse,
        # A dataset of its own: a stand-in may keep those of earlier runs.
        "REFEED_ARCHIVE_TABLE": f"demo_{uuid4().hex[:12]}.messages",
    }


def _render(verdict: "Verdict") -> Table:
    table = Table("", "messages", "", title="verdict", title_justify="left")
    table.columns[1].justify = "right"
    whole = verdict.published
    rows = (
        ("published", verdict.published, verdict.published > 0),
        ("archived", verdict.archived, verdict.archived == whole),
        ("lost", verdict.lost, verdict.lost == 0),
        ("duplicates", verdict.duplicates, verdict.duplicates == 0),
        ("bytes not equal", verdict.payload_mismatches, verdict.payload_mismatches == 0),
        ("selected by SQL", verdict.selected, verdict.selected == verdict.expected_selected),
        ("republished", verdict.republished, verdict.republished == verdict.selected),
        ("archived again", verdict.rearchived, verdict.rearchived == 0),
    )
    for name, count, is_right in rows:
        table.add_row(name, f"{count:,}", Text("ok", "green") if is_right else Text("wrong", "bold red"))
    table.add_section()
    for step, seconds in verdict.seconds.items():
        table.add_row(step, f"{seconds:.1f} s", "")
    table.add_section()
    shown = Text("clean", "bold green") if verdict.is_clean else Text("not clean", "bold red")
    table.add_row("verdict", "", shown)
    return table
