"""What waits for the pipelines of a topic: messages that Pub/Sub has not delivered to them yet."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from backfill.steer.verification import Waiting
from connectors.pubsub.backlog import BacklogSample
from connectors.pubsub.stats import SubscriptionStats
from inventory.status import work_of
from inventory.streams import ENDED, StreamOut
from model.naming import counted
from model.stream import PIPELINE_PREFIX
from model.stream_record import StreamState
from pipeline.registry import Source


def find_waiting(
    sources: Iterable[Source],
    streams: Sequence[StreamOut],
    stats: Mapping[str, SubscriptionStats] | None,
    until: datetime,
) -> Waiting | None:
    """Return what waits for the sources of a topic, if some of it was published until a moment, else None.

    Messages that were published later are counted too. Without ``stats`` the streams' own samples count, and
    messages are taken to wait for a stream that does not run.
    """
    reading = {work_of(stream): stream for stream in streams}
    counts: list[int | None] = []
    advice: list[str] = []
    for source in sources:
        stream = reading.get(f"{PIPELINE_PREFIX}{source.group}")
        found = _sample(stream) if stats is None else _count(stats.get(source.subscription))
        if found is None or found.sampled_at - found.oldest_unacked_seconds > until.timestamp():
            continue
        # A sample of before the moment did not count everything.
        counts.append(found.messages if found.sampled_at > until.timestamp() else None)
        advice.append(_render_advice(source, stream, counts[-1]))
    known = [count for count in counts if count is not None]
    messages = sum(known) if len(known) == len(counts) else None
    return Waiting(messages, " ".join(advice)) if advice else None


def _count(own: SubscriptionStats | None) -> BacklogSample | None:
    if own is None or not own.messages:
        return None
    return BacklogSample(own.oldest_unacked_seconds, own.messages, time.time())


def _sample(stream: StreamOut | None) -> BacklogSample | None:
    """Return what a stream measured last; without a sample, messages of any age wait unless it runs."""
    if stream is None:
        return None
    if stream.lag_seconds is not None and stream.lag_measured_at is not None:
        at = stream.lag_measured_at.timestamp()
        return BacklogSample(stream.lag_seconds, stream.backlog_messages, at)
    return None if stream.state == StreamState.RUNNING else BacklogSample(math.inf, None, 0.0)


def describe_idle(
    sources: Iterable[Source], streams: Sequence[StreamOut], receives: Mapping[str, bool]
) -> list[str]:
    """Return what becomes of messages that are published now to the sources of a topic whose stream does not run.

    ``receives`` says whether each subscription of the topic receives them.
    """
    reading = {work_of(stream): stream for stream in streams}
    found: list[str] = []
    for source in sources:
        stream, name = reading.get(f"{PIPELINE_PREFIX}{source.group}"), source.subscription
        if (stream is not None and stream.state is StreamState.RUNNING) or not receives.get(name, True):
            continue
        waits = f"The messages wait in {name} until its stream runs."
        if name not in receives:
            waits = (
                f"The subscription {name} does not exist yet, so the pipeline gets no message that is published "
                "before its stream runs."
            )
        found.append(f"{waits} {_render_stream(source, stream)}")
    return found


def _render_advice(source: Source, stream: StreamOut | None, messages: int | None) -> str:
    """Return how many messages wait for which stream, and the command to run."""
    number = "Messages" if messages is None else counted(messages, "message")
    said = f"{number} in {source.subscription} {'is' if messages == 1 else 'are'} not delivered yet."
    return f"{said} {_render_stream(source, stream)}"


def _render_stream(source: Source, stream: StreamOut | None) -> str:
    """Return the state of the stream that reads a source, and the command to run."""
    if stream is None:
        launch = f"refeed launch {PIPELINE_PREFIX}{source.group} --kind pipeline --group {source.group}"
        return f"No stream reads the group {source.group}. To launch one: {launch}"
    said = f"The stream {stream.name} is {stream.state}."
    if stream.state in ENDED and stream.state != StreamState.FAILED:
        return f"{said} To launch it again: refeed launch {stream.name}"
    return f"{said} To see its backlog: refeed describe stream/{stream.name}"
