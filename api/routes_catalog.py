"""What there is to replay: topics, their past, their messages and dead letters."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query

from api.answers import Caller, OpenInventory, Service, SlowCalls, problems
from api.schemas import Rfc3339Time
from api.schemas_catalog import HistogramOut, LettersOut, MessagesOut, TopicsOut
from inventory.messages import (
    DEFAULT_MAX_BYTES_BILLED,
    DEFAULT_PAGE_SIZE,
    MAX_PAGE_SIZE,
    MessageRequest,
)
from model.errors import RequestInvalidError
from warehouse.counts import Step

router: Final = APIRouter(tags=["topics"])
_FAILED: Final = "The warehouse or Pub/Sub failed or refused."
_FULL: Final = "The disk is full."
_NO_SUCH_TOPIC: Final = "Neither Pub/Sub nor the archive has this topic."
_QUERY: Final = "A parameter is not valid, or counting took too much; `errors` has every violation."


@router.get(
    "/topics",
    operation_id="listTopics",
    response_model=TopicsOut,
    responses=problems(s422=_QUERY, s502=_FAILED, s507=_FULL),
)
def list_topics(inventory: OpenInventory, caller: Caller, slow: SlowCalls) -> Any:
    """List topics: whether each is backed up, the archive's freshness, the backup's lag, and the recent volume."""
    with slow:
        return {"topics": [topic.to_json() for topic in inventory.list_topics(principal=caller)]}


@router.get(
    "/topics/{topic}/histogram",
    operation_id="getTopicHistogram",
    response_model=HistogramOut,
    responses=problems(s404=_NO_SUCH_TOPIC, s422=_QUERY, s502=_FAILED, s507=_FULL),
)
def get_topic_histogram(
    topic: Annotated[str, Path(description="A topic's id.", examples=["orders"])],
    inventory: OpenInventory,
    caller: Caller,
    slow: SlowCalls,
    *,
    start: Annotated[
        Rfc3339Time | None,
        Query(
            alias="from", description="RFC 3339; an hour before `to` by minutes, a day by hours, 30 days by days."
        ),
    ] = None,
    end: Annotated[Rfc3339Time | None, Query(alias="to", description="RFC 3339, exclusive; now.")] = None,
    step: Annotated[Step, Query(description="Width of a bucket.")] = "hour",
) -> Any:
    """Count a topic's archived messages by minute, hour or day of ingestion: where something can be replayed."""
    with slow:
        return inventory.histogram(topic, principal=caller, step=step, start=start, end=end).to_json()


@router.get(
    "/dead-letters",
    operation_id="countDeadLetters",
    response_model=LettersOut,
    responses=problems(s422=_QUERY, s502=_FAILED, s507=_FULL),
)
def count_dead_letters(
    service: Service,
    caller: Caller,
    slow: SlowCalls,
    *,
    start: Annotated[
        Rfc3339Time | None, Query(alias="from", description="RFC 3339, by ingestion; 30 days ago.")
    ] = None,
) -> Any:
    """Count the pipeline's dead letters by source and reason, each with the backfill that sends them again."""
    since = datetime.now(UTC) - timedelta(days=30) if start is None else start
    with slow:
        return {"reasons": [reason.to_json() for reason in service.count_letters(since, principal=caller)]}


@router.get(
    "/messages",
    operation_id="listMessages",
    response_model=MessagesOut,
    responses=problems(s404=_NO_SUCH_TOPIC, s422=_QUERY, s502=_FAILED, s507=_FULL),
)
def list_messages(
    topic: Annotated[str, Query(description="A topic's id.", examples=["orders"])],
    inventory: OpenInventory,
    caller: Caller,
    slow: SlowCalls,
    *,
    start: Annotated[
        Rfc3339Time | None, Query(alias="from", description="RFC 3339, by ingestion; an hour before `to`.")
    ] = None,
    end: Annotated[Rfc3339Time | None, Query(alias="to", description="RFC 3339, exclusive; now.")] = None,
    attribute: Annotated[
        list[Annotated[str, Query(max_length=2000)]] | None,
        Query(description="KEY=VALUE; again for another one, and a message has all of them.", max_length=10),
    ] = None,
    message_id: Annotated[str | None, Query(max_length=1024)] = None,
    full: Annotated[
        bool, Query(description="Whole payloads, at most 10 messages a page; else 4 KiB of each.")
    ] = False,
    page_size: Annotated[int, Query(ge=1, le=MAX_PAGE_SIZE)] = DEFAULT_PAGE_SIZE,
    page_token: Annotated[
        str | None, Query(max_length=4000, description="next_page_token of a page of the same messages.")
    ] = None,
    max_bytes_billed: Annotated[
        int, Query(ge=1, description="BigQuery fails a query that would read more, unbilled.")
    ] = DEFAULT_MAX_BYTES_BILLED,
) -> Any:
    """List a topic's archived messages, newest first: one query over the window's partitions a page."""
    request = MessageRequest(
        topic=topic,
        start=start,
        end=end,
        attributes=_parse_attributes(attribute or ()),
        message_id=message_id,
        is_full=full,
        page_size=page_size,
        page_token=page_token,
        max_bytes_billed=max_bytes_billed,
    )
    with slow:
        return inventory.read_messages(request, principal=caller).to_json()


def _parse_attributes(texts: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or key in found:
            message = f"attribute {text[:80]!r} is not KEY=VALUE, or its key comes twice."
            fault = {"code": "attribute_invalid", "message": message, "pointer": "query:attribute"}
            raise RequestInvalidError(message, errors=[fault])
        found[key] = value
    return found
