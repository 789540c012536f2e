"""``refeed backfill``: create, watch and cancel backfills through the HTTP API."""

import sys
import time
from pathlib import Path
from typing import Annotated, Any, Final
from uuid import uuid4

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cli.client import RefeedApi
from cli.invocation import HomeGroup
from cli.parameters import ParameterOption, parse_parameters
from cli.terminal import ExitCode, err, out, print_json, print_table
from model.errors import InputError
from model.job import JobState

app = typer.Typer(
    cls=HomeGroup, help="Replay messages with SQL (through the API at REFEED_API_URL).", no_args_is_help=True
)

_POLL_SECONDS: Final = 0.5

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="A backfill's id, bf_...", show_default=False)]


@app.command("create")
def create(
    query: Annotated[
        str, typer.Argument(metavar="SQL", help="GoogleSQL, @FILE or - (stdin).", show_default=False)
    ],
    *,
    topic: Annotated[str, typer.Option(help="The topic to publish to.", show_default=False)],
    param: ParameterOption = None,
    description: Annotated[str | None, typer.Option(help="Why; for whoever reads the list later.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Stay until it has ended.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Publish the rows of a query over the archive to a topic again, tagged."""
    request: dict[str, Any] = {"query": read_query(query), "topic": topic}
    if param:
        request["parameters"] = parse_parameters(param)
    if description is not None:
        request["description"] = description
    with RefeedApi.from_environment() as api:
        backfill = api.create_backfill(request, idempotency_key=str(uuid4()))
        if watch:
            backfill = wait_for_end(api, backfill["id"])
    _print_backfill(backfill, as_json=as_json)
    if watch:
        _exit_by_state(backfill)


@app.command("list")
def list_(
    page_size: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 50,
    page_token: Annotated[str | None, typer.Option(help="next_page_token of the page before.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List backfills, the newest first."""
    with RefeedApi.from_environment() as api:
        page = api.list_backfills(page_size=page_size, page_token=page_token)
    if as_json:
        print_json(page)
        return
    rows = []
    for backfill in page["backfills"]:
        progress = backfill.get("progress") or {}
        counts = [progress.get(key) or 0 for key in ("published", "selected")]
        rows.append(
            [
                backfill["id"],
                backfill["state"],
                backfill["topic"],
                f"{counts[0]} / {counts[1]}",
                backfill["created_at"],
            ]
        )
    print_table(["id", "state", "topic", "published / selected", "created"], rows)
    if page.get("next_page_token"):
        err.print(f"more: --page-token {page['next_page_token']}", markup=False)


@app.command("show")
def show(backfill_id: IdArgument, as_json: JsonOption = False) -> None:
    """Show one backfill."""
    with RefeedApi.from_environment() as api:
        _print_backfill(api.read_backfill(backfill_id), as_json=as_json)


@app.command("watch")
def watch(backfill_id: IdArgument, as_json: JsonOption = False) -> None:
    """Watch a backfill until it has ended; exit 0 only if it SUCCEEDED."""
    with RefeedApi.from_environment() as api:
        backfill = wait_for_end(api, backfill_id)
    _print_backfill(backfill, as_json=as_json)
    _exit_by_state(backfill)


@app.command("cancel")
def cancel(backfill_id: IdArgument, as_json: JsonOption = False) -> None:
    """Cancel a backfill; what is published stays published."""
    with RefeedApi.from_environment() as api:
        _print_backfill(api.cancel_backfill(backfill_id), as_json=as_json)


def wait_for_end(api: RefeedApi, backfill_id: str) -> dict[str, Any]:
    """Return the backfill once its state is final, with a progress bar on stderr meanwhile."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(backfill_id, total=None)
        while True:
            backfill = api.read_backfill(backfill_id)
            progress = backfill.get("progress") or {}
            bar.update(
                task,
                description=f"{backfill_id} {backfill['state']}",
                total=progress.get("selected"),
                completed=progress.get("published") or 0,
            )
            if JobState(backfill["state"]).is_final:
                return backfill
            time.sleep(_POLL_SECONDS)


def _exit_by_state(backfill: dict[str, Any]) -> None:
    if backfill["state"] != JobState.SUCCEEDED:
        raise typer.Exit(ExitCode.FAILED)


def read_query(text: str) -> str:
    """Return the query: ``text`` itself, what @FILE holds, or stdin for ``-``.

    Raises:
        InputError: the file can't be read.
    """
    if text == "-":
        return sys.stdin.read()
    if text.startswith("@"):
        try:
            return Path(text[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise InputError(f"The query can't be read from {text[1:]}: {exc}") from exc
    return text


def _print_backfill(backfill: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(backfill)
        return
    progress = backfill.get("progress") or {}
    out.print(f"{backfill['id']}  {backfill['state']}  -> {backfill['topic']}", markup=False)
    counts = ", ".join(
        f"{progress[key]} {key}" for key in ("selected", "published", "failed") if progress.get(key) is not None
    )
    if counts:
        out.print(f"  {counts}", markup=False)
    if backfill.get("error"):
        out.print(f"  {backfill['error']['code']}: {backfill['error']['message']}", markup=False)
