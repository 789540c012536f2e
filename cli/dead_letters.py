"""``refeed dead-letters``: messages that the pipeline could make no row of, counted and sent again."""

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import uuid4

import typer

from backfill.plan.request import BackfillRequest
from cli.api import open_api
from cli.backfill import confirm_plans, list_dead_letters
from cli.backfill_view import plan_lines
from cli.completion import complete_object
from cli.flags import read_given, takes_fields
from cli.jobs import BACKFILL, print_page
from cli.moments import FromOption, parse_moment, render_count, render_minute
from cli.options import JsonOption, OutputOption, PageSizeOption, PageTokenOption, WatchOption, YesOption
from cli.terminal import Columns, ExitCode, err, print_found, tabulate, terminal_width
from model.errors import InputError
from model.naming import did_you_mean

if TYPE_CHECKING:
    from client.api import RefeedApi

# Of one that has the start of a message in it.
_REASON_LINES: Final = 4
_CHOICE: Final = ("source", "code", "path", "message_id", "start", "dry_run")
SourceOption = Annotated[
    str, typer.Option(help="The source whose schema did not fit the messages.", show_default=False)
]
CodeOption = Annotated[
    list[str] | None,
    typer.Option(help="Send only dead letters with this code. May be repeated.", show_default=False),
]
IdOption = Annotated[
    list[str] | None,
    typer.Option("--id", metavar="ID", help="Send only the message with this id. May be repeated."),
]


PathOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATH", help="Send only dead letters whose fault is at this path in the message. May be repeated."
    ),
]


def dead_letters(
    backfill_id: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]",
            help="The id of a backfill, the beginning of the id, or 'latest' for your newest backfill.",
            autocompletion=complete_object,
        ),
    ] = None,
    *,
    start: FromOption = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="reason", help="Count the backfill's dead letters by reason.", show_default=False),
    ] = None,
    page_size: PageSizeOption = 50,
    page_token: PageTokenOption = None,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count the pipeline's dead letters by source and reason, or list the dead letters of a backfill.

    Without --from, the command counts the messages of the last 30 days, each once. A message counts as 'repaired'
    if it has become a row since then. 'refeed redrive' sends the pipeline's dead letters again. For the dead
    letters of a backfill, use 'refeed retry ID --only failed'.
    """
    if backfill_id is not None:
        if start is not None:
            raise InputError("--from does not work with the id of a backfill.")
        list_dead_letters(backfill_id, by, page_size, page_token, as_json=as_json, output=output)
        return
    if by is not None or page_token is not None:
        raise InputError("--by and --page-token work only with the id of a backfill.")
    begin = parse_moment(start, "--from")
    with open_api() as api:
        found = api.count_dead_letters(begin)
    if (count := len(found["reasons"])) > page_size:
        found = {**found, "reasons": found["reasons"][:page_size]}
        err.print(f"These are {page_size} of {count} reasons. --limit shows more.")
    names = [each["source"] for each in found["reasons"]]
    print_page(found, lambda it: dead_letter_lines(it["reasons"]), as_json=as_json, output=output, names=names)


@takes_fields(
    BackfillRequest,
    (*_CHOICE, "canary_messages", "rate_limit_messages_per_second"),
    help_texts={"canary_messages": "Publish N messages, and then pause until somebody resumes the backfill."},
)
def redrive(
    *,
    source: SourceOption,
    code: CodeOption = None,
    path: PathOption = None,
    message_id: IdOption = None,
    start: FromOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan. Nothing is published.")] = False,
    yes: YesOption = False,
    watch: WatchOption = False,
    as_json: JsonOption = False,
    **given: Any,
) -> None:
    """Create a backfill that sends dead letters of a source to the source's topic again.

    The command prints the plan, and asks before it publishes. Messages that are rows by now are not sent, if the
    number of repaired messages is known.
    """
    with open_api() as api:
        request, said = _request(api, source, (code, path, message_id), start)
        request |= {**read_given(BackfillRequest, given), "description": f"Dead letters of {source}."}
        plan = api.plan_backfill(request)
        if dry_run or not as_json:
            print_found(plan, lambda found: plan_lines(found, is_quoted=False), as_json=as_json)
        for text in said:
            err.print(text)
        if dry_run:
            return
        if plan["rows"] == 0:
            err.print(f"The source {source} has no dead letters to send: all that match are rows by now.")
            raise typer.Exit(ExitCode.FAILED)
        if not yes:
            confirm_plans([plan])
        quoted = {**request, "plan_id": plan["plan_id"]}
        made = api.backfills.create(quoted, idempotency_key=str(uuid4()))
        BACKFILL.finish(api, made, watch=watch, as_json=as_json)


def _request(
    api: "RefeedApi", source: str, chosen_by: tuple[list[str] | None, ...], start: str | None
) -> tuple[dict[str, Any], Sequence[str]]:
    """Return the backfill of the dead letters with these codes, paths and ids, and what to say of it.

    Raises:
        InputError: there are none of this source with these codes.
    """
    codes = chosen_by[0]
    reasons = api.count_dead_letters(parse_moment(start, "--from"))["reasons"]
    of_source = [one for one in reasons if one["source"] == source]
    chosen = [one for one in of_source if not codes or one["code"] in codes]
    if not chosen:
        known = {one["code"] for one in of_source} if of_source else {one["source"] for one in reasons}
        close = "".join(did_you_mean(each, known) for each in (codes or () if of_source else (source,)))
        raise InputError(
            f"The source {source} has no dead letters that match.{close} 'refeed dead-letters' lists all dead "
            "letters."
        )
    request: dict[str, Any] = chosen[0]["request"]
    lists = dict(zip(("codes", "paths", "message_ids"), chosen_by, strict=True))
    given = {name: {"type": "ARRAY<STRING>", "value": values or []} for name, values in lists.items()}
    said = (*_unknown_repairs(chosen), *_unrepaired(chosen))
    return {**request, "parameters": {**request["parameters"], **given}}, said


def dead_letter_lines(reasons: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a table of the reasons for dead letters, then each reason in words with ids of its messages."""
    if not reasons:
        yield "The pipeline has no dead letters in this period."
        return
    columns: Columns = {
        **{name: name for name in ("source", "code", "path")},
        "messages": lambda it: render_count(it["messages"]),
        "repaired": lambda it: render_count(it["repaired"]),
        "last": lambda it: render_minute(it["last_ingest_time"]),
        "example": "example_message_id",
    }
    yield from tabulate(columns, reasons, left=3)
    yield ""
    width = terminal_width()
    for one in reasons:
        said = f"{one['source']} {one['code']}: {one['example_reason']}"
        yield from wrap(said, width, max_lines=_REASON_LINES, placeholder="…", subsequent_indent="  ")
        if one["messages"] > 1:
            ids = f"messages {', '.join(one['example_message_ids'])}"
            yield from wrap(ids, width, initial_indent="  ", subsequent_indent="  ")
        if advice := one.get("advice"):
            yield from wrap(advice, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    for text in _unknown_repairs(reasons):
        yield ""
        yield from wrap(text, width)
    yield f"\nSend them again: refeed redrive --source {reasons[0]['source']}, first with --dry-run"


def _unrepaired(reasons: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a warning for each code whose messages would fail again, with how to repair them."""
    for code, advice in {one["code"]: one["advice"] for one in reasons if one.get("is_unchanged")}.items():
        yield f"warning: {code}: {advice}"


def _unknown_repairs(reasons: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what a redrive of sources does whose repaired messages are unknown."""
    if names := sorted({one["source"] for one in reasons if one["repaired"] is None}):
        yield (
            f"The number of repaired messages of {', '.join(names)} is unknown, so a redrive also sends messages "
            "that are rows by now. On BigQuery, it is known if REFEED_QUERY_TABLES names the staging tables. For "
            "a source with an inferred schema, it is never known."
        )
