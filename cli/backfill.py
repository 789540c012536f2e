"""``refeed backfill``: plan, create, watch and steer backfills through the HTTP API."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import uuid4

import typer

from backfill.plan.request import BackfillRequest
from cli.api import open_api, print_answer
from cli.backfill_topic import TOPIC, ExactOption, TopicGroup, replay_topic
from cli.backfill_view import plan_lines
from cli.completion import complete_object
from cli.flags import read_given, takes_fields
from cli.jobs import BACKFILL, list_table, print_page
from cli.kinds import KINDS
from cli.options import (
    EXIT_CODES,
    REPLAY_EXIT_CODES,
    WATCH_EXIT_CODES,
    JsonOption,
    PageSizeOption,
    PageTokenOption,
    WatchOption,
)
from cli.terminal import ExitCode, print_found, render_table
from model.declaration import declared_fields
from model.errors import InputError, RequestRefusedError

if TYPE_CHECKING:
    from client.api import RefeedApi

app = typer.Typer(
    cls=TopicGroup,
    help="Replay the messages of a topic in a time range, or the messages that a query selects. The commands call "
    "the API at REFEED_API_URL, with the key in REFEED_API_KEY.",
    subcommand_metavar="TOPIC|COMMAND [ARGS]...",
    epilog=EXIT_CODES,
    no_args_is_help=True,
)

IdArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The id of a backfill, the beginning of the id, or 'latest' for your newest backfill.",
        show_default=False,
        autocompletion=complete_object,
    ),
]
QueryArgument = Annotated[
    str,
    typer.Argument(
        metavar="SQL",
        help="The query in GoogleSQL, @FILE to read the query from a file, or - to read it from stdin.",
        show_default=False,
    ),
]
# In the order of --help; exact is no field of a request.
_PLAN_FLAGS: Final = (
    "topic",
    "parameters",
    "attributes",
    "target_subscription",
    "exact",
    "max_bytes_billed",
    "create_topic",
    "fail_if_empty",
)

app.command(TOPIC, epilog=REPLAY_EXIT_CODES, context_settings={"allow_extra_args": True})(replay_topic)


@app.command("plan", epilog=EXIT_CODES)
@takes_fields(
    BackfillRequest,
    _PLAN_FLAGS,
    help_texts={
        "max_bytes_billed": "Only with --exact: refuse a query that would read more than N bytes.",
        "fail_if_empty": "End with exit code 1 if the query selects nothing.",
    },
)
def plan(
    query: QueryArgument,
    *,
    exact: ExactOption = False,
    as_json: JsonOption = False,
    **given: Any,
) -> None:
    """Show the messages, bytes, cost and receivers of a backfill. Nothing is published."""
    request = {"query": read_query(query), **read_given(BackfillRequest, given)}
    with open_api() as api:
        found = api.plan_backfill(request, exact=exact)
    print_found(found, plan_lines, as_json=as_json)
    if given["fail_if_empty"] and found["rows"] == 0:
        raise typer.Exit(ExitCode.FAILED)


@app.command("create", epilog=WATCH_EXIT_CODES)
@takes_fields(BackfillRequest, (field.name for field in declared_fields(BackfillRequest) if field.name != "query"))
def create(
    query: QueryArgument,
    *,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Repeated calls with the same key create only one backfill.")
    ] = None,
    watch: WatchOption = False,
    as_json: JsonOption = False,
    **given: Any,
) -> None:
    """Create a backfill: publish the messages that a query selects to a topic.

    docs/recipes.md has queries to copy.
    """
    request = {"query": read_query(query), **read_given(BackfillRequest, given)}
    key = idempotency_key or str(uuid4())
    with open_api() as api:
        try:
            backfill = api.backfills.create(request, idempotency_key=key)
        except RequestRefusedError as refused:
            if as_json or not sys.stdin.isatty() or not _asks_whether_empty_is_meant(refused):
                raise
            typer.confirm("The plan selects nothing. Create the backfill anyway?", abort=True, err=True)
            backfill = api.backfills.create({**request, "allow_empty": True}, idempotency_key=key)
        BACKFILL.finish(api, backfill, watch=watch, as_json=as_json)


def _asks_whether_empty_is_meant(refused: RequestRefusedError) -> bool:
    faults = refused.details.get("errors") or ()
    return [(each.get("code"), each.get("pointer")) for each in faults] == [("nothing_selected", "/allow_empty")]


def list_dead_letters(
    backfill_id: str, by: str | None, page_size: int, page_token: str | None, *, as_json: bool
) -> None:
    """Print the messages that a backfill could not publish, or with ``by`` their reasons."""
    if by not in {None, "reason"}:
        raise InputError(f"--by accepts only 'reason', not {by!r}.")
    if by is not None:
        print_answer(
            lambda api: _read_part(api, "dead-letters", backfill_id, "dead-letters/reasons"),
            _reason_lines,
            as_json=as_json,
        )
        return
    page = _page(backfill_id, "dead-letters", page_size, page_token)
    print_page(
        page,
        list_table(
            "dead_letters",
            ["row", "message_id", "code", "reason"],
            lambda one: [str(one["row"]), one["message_id"] or "", one["code"], one["reason"]],
        ),
        as_json=as_json,
    )


def _reason_lines(found: Mapping[str, Any]) -> list[str]:
    rows = [
        [one["code"], str(one["messages"]), str(one["example_row"]), one["example_reason"]]
        for one in found["reasons"]
    ]
    return render_table(["code", "messages", "first row", "its reason"], rows)


def missing(
    backfill_id: IdArgument,
    page_size: PageSizeOption = 50,
    page_token: PageTokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """List selected messages that are not in the staging table of the target topic.

    If the pipeline made a dead letter of a message, the list shows the code and the reason.
    """
    page = _page(backfill_id, "missing", page_size, page_token)
    columns = {"message_id": "message_id", "topic": "topic", "published": "publish_time"}
    columns |= {"dead letter": "code", "reason": "reason"}
    print_page(
        page,
        list_table(
            "messages",
            ["row", *columns],
            lambda one: [str(one["row"]), *(one.get(name) or "" for name in columns.values())],
        ),
        as_json=as_json,
    )


def read_query(text: str) -> str:
    """Return the query: ``text`` itself, what @FILE holds, or stdin for ``-``.

    Raises:
        InputError: the file can't be read.
    """
    if text != "-" and not text.startswith("@"):
        return text
    source = "stdin" if text == "-" else text[1:]
    try:
        found = sys.stdin.buffer.read() if text == "-" else Path(source).read_bytes()
        # Editors of other systems put a byte order mark in front.
        return found.decode("utf-8-sig")
    except OSError as exc:
        raise InputError(f"The query can't be read from {source}: {exc}") from exc
    except UnicodeDecodeError as exc:
        raise InputError(f"The query in {source} is not UTF-8 ({exc}). Save the file as UTF-8.") from exc


def _page(backfill_id: str, what: str, page_size: int, page_token: str | None) -> dict[str, Any]:
    params = {"page_size": str(page_size)} | ({"page_token": page_token} if page_token else {})
    with open_api() as api:
        return _read_part(api, what, backfill_id, what, **params)


def _read_part(api: "RefeedApi", verb: str, name: str, part: str, **params: str) -> dict[str, Any]:
    _, backfill_id = KINDS.find(api, name, verb)
    return api.backfills.read_part(backfill_id, part, **params)
