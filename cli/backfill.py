"""``refeed backfill``: plan, create, watch and steer backfills through the HTTP API."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final
from uuid import uuid4

import typer

from backfill.plan.request import CHANGEABLE, BackfillRequest
from cli.api import open_api, print_answer
from cli.backfill_topic import TOPIC, TopicGroup, replay_topic
from cli.backfill_view import backfill_lines, plan_lines, whole_backfill_lines
from cli.backfill_watch import watch_live
from cli.flags import flag_of, read_given, takes_fields
from cli.jobs import JobCommands, print_page
from cli.moments import parse_moment
from cli.options import (
    EXIT_CODES,
    REPLAY_EXIT_CODES,
    WATCH_EXIT_CODES,
    CreatedSinceOption,
    JsonOption,
    PageSizeOption,
    PageTokenOption,
    StateOption,
    WatchOption,
)
from cli.parameters import parse_label
from cli.terminal import ExitCode, print_found, render_table
from model.declaration import declared_fields
from model.errors import InputError, RequestRefusedError

_RATES: Final = ("published", "rate_messages_per_second", "rate_limit_messages_per_second")

app = typer.Typer(
    cls=TopicGroup,
    help="Replay the messages of a topic and a range of time, or those that a query selects. The commands call "
    "the API at REFEED_API_URL, with the key in REFEED_API_KEY.",
    subcommand_metavar="TOPIC|COMMAND [ARGS]...",
    epilog=EXIT_CODES,
    no_args_is_help=True,
)

IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The backfill's id, which begins with bf_.", show_default=False)
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
_RATE: Final = "rate_limit_messages_per_second"
_CHANGE_FLAGS: Final = tuple(dict.fromkeys((_RATE, *CHANGEABLE)))


commands: Final = JobCommands(
    app=app,
    noun="backfill",
    id_prefix="bf",
    calls=lambda api: api.backfills,
    lines=backfill_lines,
    watch=lambda api, found: watch_live(api, found["id"]),
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
    exact: Annotated[
        bool,
        typer.Option("--exact", help="On BigQuery, run the query to count its rows. BigQuery bills the query."),
    ] = False,
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
        commands.finish(api, backfill, watch=watch, as_json=as_json)


def _asks_whether_empty_is_meant(refused: RequestRefusedError) -> bool:
    faults = refused.details.get("errors") or ()
    return [(each.get("code"), each.get("pointer")) for each in faults] == [("nothing_selected", "/allow_empty")]


@app.command("list", epilog=EXIT_CODES)
def list_(
    *,
    state: StateOption = None,
    topic: Annotated[str | None, typer.Option(help="List only backfills to this topic.")] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="KEY=VALUE", help="List only backfills with this label. May be repeated."),
    ] = None,
    since: CreatedSinceOption = None,
    order_by: Annotated[
        str | None, typer.Option(help="Columns to sort by, such as: topic, created_at desc.")
    ] = None,
    page_size: PageSizeOption = 50,
    page_token: PageTokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """List backfills, newest first."""
    begin = parse_moment(since, "--since")
    with open_api() as api:
        page = api.backfills.list(
            page_size=page_size,
            page_token=page_token,
            order_by=order_by,
            state=state,
            topic=topic,
            label=[":".join(parse_label(text)) for text in label or ()],
            since=begin,
        )
    columns = ["id", "state", "topic", "published / selected", "created"]
    print_page(page, "backfills", columns, _list_cells, as_json=as_json, since=begin)


def _list_cells(backfill: Mapping[str, Any]) -> list[str]:
    progress = backfill.get("progress") or {}
    counts = f"{progress.get('published') or 0} / {progress.get('selected') or 0}"
    return [backfill["id"], backfill["state"], backfill["topic"], counts, backfill["created_at"]]


@app.command("show", epilog=EXIT_CODES)
def show(backfill_id: IdArgument, as_json: JsonOption = False) -> None:
    """Show one backfill: its state, figures, request, author and reason, and the command to run next."""
    print_answer(lambda api: api.backfills.read(backfill_id), whole_backfill_lines, as_json=as_json)


@app.command("watch", epilog=WATCH_EXIT_CODES)
def watch(backfill_id: IdArgument, as_json: JsonOption = False) -> None:
    """Watch a backfill until it has ended. The exit code is 0 only if the backfill SUCCEEDED."""
    with open_api() as api:
        commands.finish(api, api.backfills.read(backfill_id), watch=True, as_json=as_json)


@app.command("change", epilog=EXIT_CODES)
@takes_fields(
    BackfillRequest,
    _CHANGE_FLAGS,
    help_texts={
        _RATE: "The maximum number of messages to publish in a second. 0 removes the limit.",
        "description": "The new description.",
    },
)
def change(backfill_id: IdArgument, *, as_json: JsonOption = False, **given: Any) -> None:
    """Change a backfill's rate limit, description or labels, even while the backfill runs."""
    changes = read_given(BackfillRequest, given)
    if not changes:
        *flags, last = (flag_of(BackfillRequest, name) for name in _CHANGE_FLAGS)
        raise InputError(f"There is nothing to change. Give {', '.join(flags)} or {last}.")
    if changes.get(_RATE) == 0:
        changes[_RATE] = None
    print_answer(lambda api: api.backfills.change(backfill_id, changes), backfill_lines, as_json=as_json)


commands.add_action(
    "pause", "Pause a backfill until a resume, and print how many messages it still publishes before it stops."
)
commands.add_action(
    "resume", "Resume a backfill that a person paused, or that paused after its canary.", can_watch=True
)
commands.add_action("cancel", "Cancel a backfill. Published messages stay published.")


@app.command("retry", epilog=WATCH_EXIT_CODES)
def retry(
    backfill_id: IdArgument,
    *,
    only: Annotated[
        str,
        typer.Option(
            metavar="all|failed|missing",
            help="'all': all messages that are not published yet, including dead letters. 'failed': only dead "
            "letters. 'missing': only messages that are not in the target's staging table.",
        ),
    ] = "all",
    code: Annotated[
        str | None,
        typer.Option(
            help="With '--only failed': send only the dead letters that have this code.", show_default=False
        ),
    ] = None,
    row: Annotated[
        list[int] | None,
        typer.Option(min=0, help="With '--only failed': send only the dead letter of row N. May be repeated."),
    ] = None,
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """Continue an ended backfill where it stopped, with the same selected messages."""
    body = {"only": only, **({"code": code} if code else {}), **({"rows": row} if row else {})}
    with open_api() as api:
        commands.finish(api, api.backfills.act(backfill_id, "retry", body), watch=watch, as_json=as_json)


commands.add_action("approve", "Approve a large backfill that somebody else created.", can_watch=True)
commands.add_action(
    "revert",
    "Delete a backfill's rows from the target's staging table. The command fails if a merge has already read "
    "the rows.",
)
commands.add_logs()


@app.command("rates", epilog=EXIT_CODES)
def rates(backfill_id: IdArgument, as_json: JsonOption = False) -> None:
    """Show the rate, the rate limit, and the newest publish time of the replayed messages, for each minute."""
    print_answer(lambda api: api.backfills.read_part(backfill_id, "rates"), _rates_lines, as_json=as_json)


def _rates_lines(found: Mapping[str, Any]) -> list[str]:
    rows = [
        [
            one["end"],
            *("unknown" if one[name] is None else f"{one[name]:,}" for name in _RATES[:2]),
            "none" if one[_RATES[2]] is None else f"{one[_RATES[2]]:,}",
            one["event_time"] or "",
        ]
        for one in found["intervals"]
    ]
    return render_table(["until", "published", "msgs/s", "limit", "publish time"], rows)


@app.command("dead-letters", epilog=EXIT_CODES)
def dead_letters(
    backfill_id: IdArgument,
    by: Annotated[
        str | None, typer.Option(metavar="reason", help="Count the dead letters by reason.", show_default=False)
    ] = None,
    page_size: PageSizeOption = 50,
    page_token: PageTokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """List messages that could not be published, with the reasons.

    'refeed backfill retry ID --only failed' sends all dead letters again. With --code or --row, this command sends
    only some dead letters.
    """
    if by not in {None, "reason"}:
        raise InputError(f"--by accepts only 'reason', not {by!r}.")
    if by is not None:
        part = "dead-letters/reasons"
        print_answer(lambda api: api.backfills.read_part(backfill_id, part), _reason_lines, as_json=as_json)
        return
    page = _page(backfill_id, "dead-letters", page_size, page_token)
    print_page(
        page,
        "dead_letters",
        ["row", "message_id", "code", "reason"],
        lambda one: [str(one["row"]), one["message_id"] or "", one["code"], one["reason"]],
        as_json=as_json,
    )


def _reason_lines(found: Mapping[str, Any]) -> list[str]:
    rows = [
        [one["code"], str(one["messages"]), str(one["example_row"]), one["example_reason"]]
        for one in found["reasons"]
    ]
    return render_table(["code", "messages", "first row", "its reason"], rows)


@app.command("missing", epilog=EXIT_CODES)
def missing(
    backfill_id: IdArgument,
    page_size: PageSizeOption = 50,
    page_token: PageTokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """List selected messages that are not in the staging table of the target topic."""
    page = _page(backfill_id, "missing", page_size, page_token)
    print_page(
        page,
        "messages",
        ["row", "message_id", "topic", "published"],
        lambda one: [str(one["row"]), *(one[name] or "" for name in ("message_id", "topic", "publish_time"))],
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
        return api.backfills.read_part(backfill_id, what, **params)
