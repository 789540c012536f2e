"""What there is to replay: topics, their past and their messages."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from starlette.types import Receive

from api.answers import Caller, OpenInventory, SlowCalls, problems
from api.payloads import PAYLOAD_ANSWER, answer_payload
from api.schemas import End, Rfc3339Time
from api.schemas_catalog import MessagesOut, TopicsOut
from inventory.catalog import HistogramOut
from inventory.messages import (
    DEFAULT_MAX_BYTES_BILLED,
    DEFAULT_PAGE_SIZE,
    MAX_PAGE_SIZE,
    MessageRequest,
)
from model.errors import RequestInvalidError
from warehouse.counts import Step
from warehouse.figures import MAX_SHOWN_BYTES

router: Final = APIRouter(tags=["topics"])
_FAILED: Final = "The warehouse or Pub/Sub returned an error."
_FULL: Final = "The disk is full."
_NO_SUCH_TOPIC: Final = "The topic is not in Pub/Sub and not in the archive."
_QUERY: Final = "A parameter is not valid, or the query would read too many bytes. `errors` lists every violation."

TopicName = Annotated[str, Query(description="The topic's id.", examples=["orders"])]
MessageId = Annotated[str, Path(max_length=1024, description="The message's id in Pub/Sub.", examples=["1234"])]
MaxBytesBilled = Annotated[
    int,
    Query(
        ge=1,
        description="The maximum number of bytes that the query may read on BigQuery. A query that would read "
        "more fails.",
    ),
]


async def watch_caller(call: Request) -> AsyncIterator[Callable[[], bool]]:
    """Yield whether the caller has left, or has its answer already; a FastAPI dependency of routes without a body.

    A route in a thread is not cancelled when its caller closes the connection: it has to look.
    """
    has_left = threading.Event()
    watching = asyncio.create_task(_wait_until_left(call.receive, has_left))
    try:
        yield has_left.is_set
    finally:
        watching.cancel()


CallerLeft = Annotated[Callable[[], bool], Depends(watch_caller)]


async def _wait_until_left(receive: Receive, has_left: threading.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    has_left.set()


@router.get(
    "/topics",
    response_model=TopicsOut,
    responses=problems(s422=_QUERY, s502=_FAILED, s507=_FULL),
)
def list_topics(inventory: OpenInventory, caller: Caller, slow: SlowCalls) -> Any:
    """List topics with the lag of their backup, their newest archived message and their recent volume."""
    with slow:
        return {"topics": inventory.list_topics(principal=caller)}


@router.get(
    "/topics/{topic}/histogram",
    response_model=HistogramOut,
    responses=problems(s404=_NO_SUCH_TOPIC, s422=_QUERY, s502=_FAILED, s507=_FULL),
)
def get_topic_histogram(
    topic: Annotated[str, Path(description="The topic's id.", examples=["orders"])],
    inventory: OpenInventory,
    caller: Caller,
    slow: SlowCalls,
    *,
    start: Annotated[
        Rfc3339Time | None,
        Query(
            alias="from",
            description="Start of the window (RFC 3339). The default depends on the value of `step`. `minute`: "
            "one hour before `to`. `hour`: one day before `to`. `day`: 30 days before `to`.",
        ),
    ] = None,
    end: End = None,
    step: Annotated[Step, Query(description="The length of a bucket.")] = "hour",
) -> Any:
    """Count a topic's archived messages by minute, hour or day of ingestion."""
    with slow:
        return inventory.histogram(topic, principal=caller, step=step, start=start, end=end)


@router.get(
    "/messages",
    response_model=MessagesOut,
    responses=problems(s404=_NO_SUCH_TOPIC, s422=_QUERY, s502=_FAILED, s507=_FULL),
)
def list_messages(
    call: Request,
    topic: TopicName,
    inventory: OpenInventory,
    caller: Caller,
    slow: SlowCalls,
    *,
    has_left: CallerLeft,
    start: Annotated[
        Rfc3339Time | None,
        Query(
            alias="from",
            description="List only messages that were archived at this time (RFC 3339) or later. The default "
            "is one hour before `to`.",
        ),
    ] = None,
    end: End = None,
    attribute: Annotated[
        list[Annotated[str, Query(max_length=2000)]] | None,
        Query(
            description="List only messages with this attribute, as KEY=VALUE. Repeat the parameter for "
            "several attributes.",
            max_length=10,
        ),
    ] = None,
    message_id: Annotated[str | None, Query(max_length=1024)] = None,
    text: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=1024,
            description="List only messages with a UTF-8 payload that contains this text. Case matters.",
        ),
    ] = None,
    preview_bytes: Annotated[
        int, Query(ge=1, le=MAX_SHOWN_BYTES, description="The number of bytes after which each payload is cut.")
    ] = MAX_SHOWN_BYTES,
    full: Annotated[
        bool, Query(description="Whether to show whole payloads. A page then has at most 10 messages.")
    ] = False,
    as_text: Annotated[
        bool, Query(description="Whether to show payloads as their exact text or as base64, and never as JSON.")
    ] = False,
    page_size: Annotated[int, Query(ge=1, le=MAX_PAGE_SIZE)] = DEFAULT_PAGE_SIZE,
    page_token: Annotated[
        str | None,
        Query(
            max_length=4000,
            description="The `next_page_token` of the previous page. Send the other parameters unchanged.",
        ),
    ] = None,
    max_bytes_billed: MaxBytesBilled = DEFAULT_MAX_BYTES_BILLED,
) -> Any:
    """List a topic's archived messages, latest arrival first. Each page is a query of the window's partitions."""
    request = MessageRequest(
        topic=topic,
        start=start,
        end=end,
        attributes=_parse_attributes(attribute or ()),
        message_id=message_id,
        text=text,
        preview_bytes=preview_bytes,
        is_full=full,
        is_text=as_text,
        page_size=page_size,
        page_token=page_token,
        max_bytes_billed=max_bytes_billed,
    )
    with slow:
        page = inventory.read_messages(request, principal=caller, should_stop=has_left)
    call.state.read = f"{len(page.messages)} of {topic} from {page.window['from']} to {page.window['to']}"
    return page


@router.get(
    "/messages/{message_id}/data",
    response_class=Response,
    responses={
        **PAYLOAD_ANSWER,
        **problems(s404="The window has no such message.", s422=_QUERY, s502=_FAILED, s507=_FULL),
    },
)
def download_message(
    call: Request,
    message_id: MessageId,
    topic: TopicName,
    *,
    inventory: OpenInventory,
    caller: Caller,
    slow: SlowCalls,
    has_left: CallerLeft,
    start: Annotated[
        Rfc3339Time | None,
        Query(
            alias="from",
            description="Search messages that were archived at this time (RFC 3339) or later. The message's "
            "`ingest_time` is enough. The default is one hour before `to`.",
        ),
    ] = None,
    end: End = None,
    max_bytes_billed: MaxBytesBilled = DEFAULT_MAX_BYTES_BILLED,
) -> Response:
    """Download the payload of one archived message, byte for byte."""
    request = MessageRequest(
        topic=topic, start=start, end=end, message_id=message_id, max_bytes_billed=max_bytes_billed
    )
    with slow:
        found = inventory.read_message_data(request, principal=caller, should_stop=has_left)
    window = found.window
    return answer_payload(call, found.data, f"{topic} from {window['from']} to {window['to']}", message_id)


def _parse_attributes(texts: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or key in found:
            message = f"attribute {text[:80]!r} is not KEY=VALUE, or its key occurs twice."
            raise RequestInvalidError.of("attribute_invalid", message, "query:attribute")
        found[key] = value
    return found
