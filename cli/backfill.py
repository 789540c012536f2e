"""``refeed backfill``: replays a topic's messages of a range of time or of a query; and what did not arrive."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import uuid4

import typer

from backfill.plan.create import BackfillCreate
from cli.api import open_api
from cli.backfill_view import plan_lines, query_lines
from cli.completion import complete_object
from cli.flags import read_given, takes_fields
from cli.jobs import BACKFILL, print_page
from cli.kinds import KINDS
from cli.moments import parse_range
from cli.options import (
    JsonOption,
    OutputOption,
    PageSizeOption,
    PageTokenOption,
    WatchOption,
    YesOption,
    key_option,
)
from cli.terminal import Columns, ExitCode, Output, confirm, err, list_table, out, print_json
from model.declaration import declared_fields
from model.errors import InputError, RequestRefusedError
from model.moment import render_moment
from model.naming import counted, did_you_mean

if TYPE_CHECKING:
    from client.api import RefeedApi

IdArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The id of a backfill, the beginning of the id, or 'latest' for your newest backfill.",
        show_default=False,
        autocompletion=complete_object,
    ),
]
# In the order of --help.
_FIRST: Final = ("query", "from_", "to", "source_attributes", "where", "parameters", "topic")
_ALL: Final = tuple(each.name for each in declared_fields(BackfillCreate) if each.name != "source_topic")
_Request = dict[str, Any]
_REASON_COLUMNS: Final[Columns] = {
    "code": "code",
    "messages": "messages",
    "first row": "example_row",
    "its reason": "example_reason",
}
_LETTER_COLUMNS: Final[Columns] = {name: name for name in ("row", "message_id", "code", "reason")}
_MISSING_COLUMNS: Final[Columns] = {
    "row": "row",
    "message_id": "message_id",
    "topic": "topic",
    "published": "publish_time",
    "dead letter": "code",
    "reason": "reason",
}


@takes_fields(BackfillCreate, dict.fromkeys((*_FIRST, *_ALL)))
def backfill(
    topics: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC",
            help="The topics to replay. With --query, the one topic to publish to.",
            show_default=False,
        ),
    ],
    *,
    query: Annotated[
        str | None,
        typer.Option(
            metavar="SQL|@FILE|-",
            help="Replay the messages that this query in GoogleSQL selects, instead of a range. @FILE reads the "
            "query from a file, and - reads it from stdin.",
        ),
    ] = None,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="On BigQuery, run the query to count its rows. BigQuery bills the query."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only plan. Nothing is published.")] = False,
    yes: YesOption = False,
    idempotency_key: Annotated[str | None, key_option("create only one backfill")] = None,
    watch: WatchOption = False,
    as_json: JsonOption = False,
    **given: Any,
) -> None:
    """Replay the messages that were published to TOPIC between --from and --to, or that a query selects.

    The command prints the times in full, the query and the plan, and asks before it publishes. If you name several
    topics, the command creates one backfill for each. With --watch, it waits for the end of each backfill before
    it creates the next. docs/recipes.md has queries to copy.

    Times without an offset are in UTC. The messages go back to their own topic, or to the topic in --to-topic. If
    the backup was down, some messages of the range may have been archived late. To find them, the query also reads
    the partitions of the 31 days after the range.
    """
    wanted = _read_requests(list(dict.fromkeys(topics)), query, given)
    if len(wanted) > 1 and (idempotency_key or given["plan_id"]):
        raise InputError("--idempotency-key and --plan work only with one TOPIC.")
    if dry_run and given["plan_id"]:
        raise InputError("Give either --dry-run or --plan.")
    with open_api() as api:
        if given["plan_id"] is None:
            plans = _plan(api, wanted, given, exact=exact, dry_run=dry_run, as_json=as_json)
            if dry_run:
                return
            if not yes:
                confirm_plans(plans)
            if idempotency_key is None:
                # With a key, a repeated call must send the same request, and its plan is another one.
                wanted = [{**asked, "plan_id": plan["plan_id"]} for asked, plan in zip(wanted, plans, strict=True)]
        for number, asked in enumerate(wanted, start=1):
            made = api.backfills.create(asked, idempotency_key=idempotency_key or str(uuid4()))
            try:
                BACKFILL.finish(api, made, watch=watch, as_json=as_json)
            except typer.Exit:
                if left := [each["source_topic"] for each in wanted[number:]]:
                    err.print(f"Not created, because the command ends here: the backfill of {', '.join(left)}.")
                raise


def _read_requests(topics: Sequence[str], query: str | None, given: Mapping[str, Any]) -> list[_Request]:
    """Return the request of each backfill that the command line describes.

    Raises:
        InputError: it has neither a range nor a query, or a query and several topics.
    """
    request = read_given(BackfillCreate, given)
    if query is not None:
        if len(topics) > 1:
            raise InputError("--query works only with one TOPIC.")
        return [{"query": read_query(query), "topic": topics[0], **request}]
    if given["from_"] is None:
        raise InputError(
            f"To replay the topic {topics[0]}, give the range, such as --from 02:00 --to 03:00, or a --query."
        )
    request["from"], end = parse_range(given["from_"], given["to"])
    request["to"] = end or render_moment(datetime.now(UTC))
    return [{**request, "source_topic": each} for each in topics]


def _plan(
    api: "RefeedApi",
    wanted: Sequence[_Request],
    given: Mapping[str, Any],
    *,
    exact: bool,
    dry_run: bool,
    as_json: bool,
) -> list[_Request]:
    """Return the plan of each request, after all are shown.

    Raises:
        Exit: a plan selects nothing, and that is not allowed.
    """
    plans = [api.plan_backfill(each, exact=exact) for each in wanted]
    for asked, plan in zip(wanted, plans, strict=True) if dry_run or not as_json else ():
        _show(asked, plan, dry_run=dry_run, as_json=as_json)
    if dry_run and not as_json:
        out.print("Nothing was published. To publish, run the command without --dry-run.")
    _warn_of_backlog(api, wanted)
    empty = [asked for asked, plan in zip(wanted, plans, strict=True) if plan["rows"] == 0]
    for asked in empty:
        err.print(_nothing(api, asked))
    if empty and (given["fail_if_empty"] or not (dry_run or given["allow_empty"])):
        raise typer.Exit(ExitCode.FAILED)
    return plans


def confirm_plans(plans: Iterable[Mapping[str, Any]]) -> None:
    """Ask whether to publish the messages of the plans, and go on with a yes only.

    Raises:
        Abort: the answer is another one, or there is none.
    """
    confirm(f"Publish {' and '.join(map(_render_amount, plans))}?")


def _render_amount(plan: Mapping[str, Any]) -> str:
    messages = "an unknown number of messages" if plan["rows"] is None else counted(plan["rows"], "message")
    return f"{messages} to {plan['topic']}"


def _show(asked: _Request, plan: _Request, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json(plan)
        return
    is_range = "source_topic" in asked
    if is_range:
        out.print(f"{asked['source_topic']} from {asked['from']} to {asked['to']}, by publish time")
    for line in (
        *(query_lines(plan["query"]) if is_range else ()),
        # The next run of a range may end at another time.
        *plan_lines(plan, is_quoted=dry_run and not is_range),
    ):
        out.print(line)


def _warn_of_backlog(api: "RefeedApi", wanted: Iterable[_Request]) -> None:
    """Say how many messages the archive does not have yet: a replay does not wait for them."""
    replayed = [each["source_topic"] for each in wanted if "source_topic" in each]
    with suppress(RequestRefusedError):
        found = api.list_topics()["topics"] if replayed else ()
        waiting = {each["topic"]: each["backlog_messages"] for each in found}
        for topic in replayed:
            if count := waiting.get(topic):
                err.print(
                    f"warning: {count:,} messages of {topic} wait in its backup subscription, and the archive "
                    "does not have them yet. The replay leaves them out, even if they are of this range."
                )


def _nothing(api: "RefeedApi", asked: _Request) -> str:
    """Return that the request selects nothing, and of a range the topics whose names are close."""
    topic = asked.get("source_topic")
    if topic is None:
        return "The query selects nothing."
    narrowed = " that fulfils the conditions" if asked.get("source_attributes") or asked.get("where") else ""
    names = [each["topic"] for each in api.list_topics()["topics"]]
    close = "" if topic in names else did_you_mean(topic, names)
    return f"The archive has no message of {topic} in this range{narrowed}.{close}"


def list_dead_letters(
    backfill_id: str,
    by: str | None,
    page_size: int,
    page_token: str | None,
    *,
    as_json: bool,
    output: Output | None = None,
) -> None:
    """Print the messages that a backfill could not publish, or with ``by`` their reasons."""
    if by not in {None, "reason"}:
        raise InputError(f"--by accepts only 'reason', not {by!r}.")
    with open_api() as api:
        _, job = KINDS.find(api, backfill_id, "dead-letters")
        if by is None:
            page = api.list_dead_letters(job=job, page_size=str(page_size), page_token=page_token)
            name, columns = "dead_letters", _LETTER_COLUMNS
        else:
            page, name, columns = api.count_dead_letters(job=job), "reasons", _REASON_COLUMNS
        found = {} if page[name] or as_json else api.jobs.read(job)
    names = [each.get("message_id") or each["code"] for each in page[name]]
    print_page(page, list_table(name, columns), as_json=as_json, output=output, names=names)
    if count := (found.get("verification") or {}).get("dead_letters"):
        letters = counted(count, "missing message")
        err.print(f"The pipeline made dead letters of {letters} of this backfill: refeed missing {job}")


def missing(
    backfill_id: IdArgument,
    page_size: PageSizeOption = 50,
    page_token: PageTokenOption = None,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """List selected messages that are not in the staging table of the target topic.

    If the pipeline made a dead letter of a message, the list shows the code and the reason.
    """
    with open_api() as api:
        _, job = KINDS.find(api, backfill_id, "missing")
        page = api.jobs.read_part(job, "missing", page_size=str(page_size), page_token=page_token)
    table, names = list_table("messages", _MISSING_COLUMNS), [each["message_id"] for each in page["messages"]]
    print_page(page, table, as_json=as_json, output=output, names=names)
    if page.get("advice") and not as_json:
        err.print(page["advice"])


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
