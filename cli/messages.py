"""``refeed messages``: archived messages of one topic, latest arrival first, from the API."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cli.api import open_api
from cli.inventory import TopicArgument
from cli.jobs import print_page
from cli.moments import FromOption, ToOption, parse_range, render_minute
from cli.options import JsonOption, OutputOption, PageTokenOption
from cli.parameters import parse_pairs
from cli.terminal import COLUMNS, Output
from model.naming import counted

if TYPE_CHECKING:
    from client.api import RefeedApi

_DEFAULT_LIMIT: Final = 20
_MAX_LIMIT: Final = 1000


def messages(
    topic: TopicArgument,
    *,
    start: FromOption = None,
    end: ToOption = None,
    attribute: Annotated[
        list[str] | None,
        typer.Option(
            "--attribute",
            "-a",
            metavar="KEY=VALUE",
            help="List only messages with this attribute. May be repeated.",
        ),
    ] = None,
    message_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="List only the message with this id.")
    ] = None,
    text: Annotated[
        str | None,
        typer.Option("--text", metavar="TEXT", help="List only messages with this text in their payload."),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Print whole payloads and every attribute.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=_MAX_LIMIT, help="Show at most N messages.")] = _DEFAULT_LIMIT,
    page_token: PageTokenOption = None,
    output: OutputOption = None,
    max_bytes_billed: Annotated[
        int | None,
        typer.Option(min=1, help="On BigQuery, refuse a query that would read more than N bytes. Default: 10 GB."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List archived messages of a topic, latest arrival first. The default is the last hour.

    A message arrives when it is archived, and that is later than it was published. --from and --to choose by
    arrival.

    Payloads are printed as they were sent: as text, or as base64 if they are not UTF-8. With -o json, data is the
    exact text too.

    If the API has keys, your key needs the scope messages.read.
    """
    first, last = parse_range(start, end)
    wanted = {
        "from": first,
        "to": last,
        "attribute": [f"{key}={value}" for key, value in (parse_pairs(attribute, "--attribute") or {}).items()],
        "message_id": message_id,
        "text": text,
        "full": "true" if full else None,
        "as_text": "true",
        "max_bytes_billed": max_bytes_billed,
    }
    with open_api() as api:
        page = _read(api, topic, wanted, limit=limit, page_token=page_token)
    is_whole = full or output is Output.WIDE
    print_page(
        page,
        lambda page: map(_printable, _lines(topic, page, attribute or (), is_full=is_whole)),
        as_json=as_json,
        output=output,
        names=[each["message_id"] for each in page["messages"]],
    )


def _read(
    api: "RefeedApi", topic: str, wanted: Mapping[str, Any], *, limit: int, page_token: str | None
) -> dict[str, Any]:
    """Return up to ``limit`` messages as one page; the API gives few whole ones at a time."""
    page = api.list_messages(topic, **wanted, page_size=limit, page_token=page_token)
    while page["next_page_token"] and len(page["messages"]) < limit:
        left = limit - len(page["messages"])
        more = api.list_messages(topic, **wanted, page_size=left, page_token=page["next_page_token"])
        page = {**more, "messages": [*page["messages"], *more["messages"]]}
    return page


def _lines(topic: str, page: Mapping[str, Any], attributes: Sequence[str], *, is_full: bool) -> Iterator[str]:
    window = f"{render_minute(page['window']['from'])} to {render_minute(page['window']['to'])} UTC"
    found = page["messages"]
    if not found:
        yield f"No such message of {topic} arrived from {window}."
        yield f"To see when messages arrived: refeed histogram {topic} --step day"
        return
    for message in found:
        yield from _whole_lines(message) if is_full else _short_lines(message)
    yield ""
    yield f"{counted(len(found), 'message')} of {topic} that arrived from {window}, latest arrival first"
    if not is_full:
        since = _second(found[0]["ingest_time"])
        yield f"a whole message: refeed messages {topic} --full --id {found[0]['message_id']} --from {since}"
    times = [each["publish_time"] for each in found]
    chosen = "".join(f" --attribute {shlex.quote(each)}" for each in attributes)
    yield (
        f"replay all messages of that time: refeed backfill {topic} --from {_second(min(times))} "
        f"--to {_second(max(times), later=1)}{chosen}"
    )


def _second(time: str, *, later: int = 0) -> str:
    """Return a time cut to whole seconds, plus ``later`` seconds."""
    moment = datetime.fromisoformat(time).replace(microsecond=0) + timedelta(seconds=later)
    return moment.isoformat().replace("+00:00", "Z")


def _short_lines(message: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message in three lines of a terminal's width at most."""
    yield f"{message['message_id']}  published {message['publish_time']}"
    if message["attributes"]:
        yield _cut("  " + " ".join(f"{key}={value}" for key, value in sorted(message["attributes"].items())))
    yield _cut("  " + _payload(message).replace("\n", " "))


def _whole_lines(message: Mapping[str, Any]) -> Iterator[str]:
    yield f"{message['message_id']}"
    yield f"  published  {message['publish_time']}"
    yield f"  ingested   {message['ingest_time']}"
    if message["ordering_key"]:
        yield f"  key        {message['ordering_key']}"
    for key, value in sorted(message["attributes"].items()):
        yield f"  attribute  {key}={value}"
    yield f"  data       {message['data_bytes']:,} bytes, {message['encoding']}"
    yield from _payload(message).splitlines()


def _payload(message: Mapping[str, Any]) -> str:
    return f"base64 {message['data']}" if message["encoding"] == "base64" else str(message["data"])


def _printable(text: str) -> str:
    """Return the text without characters that would steer a terminal."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _cut(line: str) -> str:
    return line if len(line) <= COLUMNS else line[: COLUMNS - 3] + "..."
