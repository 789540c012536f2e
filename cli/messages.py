"""``refeed messages``: archived messages of one topic, newest first, from the API."""

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cli.api import print_answer
from cli.inventory import TopicArgument
from cli.moments import FromOption, ToOption, parse_range, render_minute
from cli.options import JsonOption, PageTokenOption
from cli.parameters import parse_pairs
from cli.terminal import COLUMNS
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
    max_bytes_billed: Annotated[
        int | None,
        typer.Option(min=1, help="On BigQuery, refuse a query that would read more than N bytes. Default: 10 GB."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List archived messages of a topic, newest first. The default is the last hour.

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
        "max_bytes_billed": max_bytes_billed,
    }
    print_answer(
        lambda api: _read(api, topic, wanted, limit=limit, page_token=page_token),
        lambda page: map(_printable, _lines(topic, page, is_full=full)),
        as_json=as_json,
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


def _lines(topic: str, page: Mapping[str, Any], *, is_full: bool) -> Iterator[str]:
    window = f"{render_minute(page['window']['from'])} to {render_minute(page['window']['to'])} UTC"
    if not page["messages"]:
        yield f"No such message of {topic} arrived from {window}."
        yield f"To see when messages arrived: refeed histogram {topic} --step day"
        return
    for message in page["messages"]:
        yield from _whole_lines(message) if is_full else _short_lines(message)
    yield ""
    yield f"{counted(len(page['messages']), 'message')} of {topic} that arrived from {window}"
    if page["next_page_token"]:
        yield f"more: --page-token {page['next_page_token']}"
    if not is_full:
        yield (
            f"a whole message: refeed messages {topic} --full --id {page['messages'][0]['message_id']} --from ..."
        )
    yield f"replay: refeed backfill {topic} --from ... --to ..."


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
    yield from _payload(message, indent=2).splitlines()


def _payload(message: Mapping[str, Any], *, indent: int | None = None) -> str:
    if message["encoding"] == "json":
        return json.dumps(message["data"], ensure_ascii=False, indent=indent)
    text = str(message["data"])
    return text if message["encoding"] == "text" else f"base64 {text}"


def _printable(text: str) -> str:
    """Return the text without characters that would steer a terminal."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _cut(line: str) -> str:
    return line if len(line) <= COLUMNS else line[: COLUMNS - 3] + "..."
