"""What there is to replay: topics, their past, and the streams that bring it."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query
from pydantic import AwareDatetime

from api.answers import Caller, Service, SlowCalls, problems
from api.schemas_catalog import HistogramOut, StreamsOut, TopicsOut
from backfill.catalog import Step

router: Final = APIRouter(tags=["topics"])
_FAILED: Final = "The warehouse or Pub/Sub failed or refused."
_FULL: Final = "The disk is full."
_QUERY: Final = "A parameter is not valid, or counting took too much; `errors` has every violation."


@router.get(
    "/topics",
    operation_id="listTopics",
    response_model=TopicsOut,
    responses=problems(s422=_QUERY, s502=_FAILED, s507=_FULL),
)
def list_topics(service: Service, caller: Caller, slow: SlowCalls) -> Any:
    """List topics: whether they are backed up, how fresh that is, how far behind, and how much came in lately."""
    with slow:
        return {"topics": [topic.to_json() for topic in service.list_topics(principal=caller)]}


@router.get(
    "/topics/{topic}/histogram",
    operation_id="getTopicHistogram",
    response_model=HistogramOut,
    responses=problems(s422=_QUERY, s502=_FAILED, s507=_FULL),
)
def get_topic_histogram(
    topic: Annotated[str, Path(description="A topic's id.", examples=["orders"])],
    service: Service,
    caller: Caller,
    slow: SlowCalls,
    *,
    start: Annotated[
        AwareDatetime | None,
        Query(
            alias="from", description="RFC 3339; an hour before `to` by minutes, a day by hours, 30 days by days."
        ),
    ] = None,
    end: Annotated[AwareDatetime | None, Query(alias="to", description="RFC 3339, exclusive; now.")] = None,
    step: Annotated[Step, Query(description="Width of a bucket.")] = "hour",
) -> Any:
    """Count a topic's archived messages by minute, hour or day of ingestion: where something can be replayed."""
    with slow:
        return service.histogram(topic, principal=caller, step=step, start=start, end=end).to_json()


@router.get(
    "/streams",
    operation_id="listStreams",
    response_model=StreamsOut,
    responses=problems(s502=_FAILED),
)
def list_streams(service: Service, caller: Caller, slow: SlowCalls) -> Any:
    """List the streams of this home: state, lag and rates."""
    with slow:
        return {"streams": [stream.to_json() for stream in service.list_streams(principal=caller)]}
