"""Answers questions about topics, archived messages and streams: one service for the API."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from backfill.steer.verification import Waiting
from connectors.pubsub.client import PubSub
from connectors.pubsub.stats import SubscriptionStats, read_stats
from inventory.catalog import Catalog, HistogramOut, TopicOut
from inventory.gaps import GapItems
from inventory.history import Over, history_start, render_history
from inventory.messages import MessageBrowser, MessageData, MessagePage, MessageRequest
from inventory.refused import REFUSED_WITHIN, judge_refused
from inventory.retention import retentions_of
from inventory.status import (
    GROWS_WITHIN,
    StatusProblem,
    StreamCondition,
    count_attached,
    growing_item,
    judge_collected,
    judge_snapshots,
    judge_streams,
    waiting_item,
    without_replaced,
    work_of,
)
from inventory.streams import ENDED, InstanceTotal, StreamOut
from inventory.volumes import VolumesOut, VolumeStep, read_volumes
from inventory.waiting import describe_idle, find_waiting
from jobs.inbox_items import InboxItem
from jobs.store.figures import KEEP_HOURS, FigurePoint, stream_subject
from model.errors import RefeedError, RequestInvalidError, StreamNotFoundError, TopicUnknownError
from model.event import HistoryEvent
from model.message import parse_resource_id
from model.naming import did_you_mean
from model.principal import MESSAGES, READ, STREAMS_READ, Principal
from model.stream import PIPELINE_PREFIX, StoredReport
from model.stream_record import StreamRecord, StreamState
from model.stream_snapshot import SnapshotRecord
from model.window import Window
from pipeline.registry import Source
from warehouse.counts import STEPS, Step
from warehouse.queries import Queries

# No message is older: Pub/Sub was opened to everybody in 2015.
_EARLIEST: Final = datetime(2000, 1, 1, tzinfo=UTC)
# The window without bounds: an hour of minutes, a day of hours, a month of days.
_USUAL_BUCKETS: Final = {"minute": 60, "hour": 24, "day": 30}


class Inventory:
    """Answers from Pub/Sub, the archive and the reports of the streams.

    It closes neither ``pubsub`` nor ``queries``: they are shared with the other services of the process.

    Raises:
        ForbiddenError: any call whose ``principal`` lacks the scope that it needs.
        PubSubError: any call, when Pub/Sub fails or does not answer.
        WarehouseError, QueryError: any call, when the archive can't be read.
        StoreUnavailableError: any call about streams, when the job store, which has their reports, is away.
    """

    def __init__(
        self,
        pubsub: PubSub,
        queries: Queries,
        *,
        home: Path,
        replay_secret: str,
        reports: Callable[[], Sequence[StoredReport]],
        groups: Callable[[], frozenset[str] | None],
        records: Callable[[], Sequence[StreamRecord]] = tuple,
        snapshots: Callable[[], Sequence[SnapshotRecord]] = tuple,
        snapshot_seconds: float = 0.0,
        collected: Sequence[str] = (),
        figures: Callable[[Collection[str], datetime], Mapping[str, Sequence[FigurePoint]]] = lambda *_: {},
        events: Callable[[datetime], Sequence[HistoryEvent]] = lambda _: (),
    ) -> None:
        self._pubsub = pubsub
        self._counts = queries.counts
        self._records = records
        self._snapshots = snapshots
        self._snapshot_every = timedelta(seconds=snapshot_seconds)
        self._figures = figures
        self._collected = collected
        self._gaps = GapItems(self._counts)
        self._browser = MessageBrowser(queries.messages)
        self._catalog = Catalog(
            self._counts,
            home=home,
            secret=replay_secret,
            reports=reports,
            groups=groups,
            records=records,
            events=events,
        )

    def list_topics(self, *, principal: Principal) -> list[TopicOut]:
        """Return every topic that Pub/Sub has or the archive has lately heard of, by name."""
        principal.require(READ)
        stats = read_stats(self._pubsub.channel, self._pubsub.project)
        return self._catalog.list_topics(self._pubsub.list_topics(), self._pubsub.list_subscriptions(), stats)

    def histogram(
        self,
        topic: str,
        *,
        principal: Principal,
        step: Step = "hour",
        start: datetime | None = None,
        end: datetime | None = None,
    ) -> HistogramOut:
        """Count a topic's messages by their ingestion; without bounds those of the last hour, day or month.

        Raises:
            InvalidNameError: that is no topic's id.
            RequestInvalidError: the bounds are no window, or one with too many buckets.
            TopicUnknownError: Pub/Sub has no such topic, and the archive has never heard of it.
        """
        principal.require(READ)
        last = datetime.now(UTC) if end is None else _utc(end, "to")
        first = max(_EARLIEST, last - STEPS[step] * _USUAL_BUCKETS[step]) if start is None else _utc(start, "from")
        if last < first:
            raise RequestInvalidError.of("window_invalid", "from must not be after to.", "query:from")
        found = self._catalog.histogram(topic, Window(first, last), step)
        if not found.messages:
            self._check_known(topic)
        return found

    def read_volumes(
        self,
        *,
        principal: Principal,
        step: VolumeStep = "hour",
        start: datetime | None = None,
        end: datetime | None = None,
        topics: Sequence[str] = (),
    ) -> VolumesOut:
        """Return messages and payload bytes of every topic by step; no row is read, and no query runs.

        Raises:
            InvalidNameError: one of ``topics`` is no topic's id.
            RequestInvalidError: the bounds are no window, or one with too many steps.
        """
        principal.require(READ)
        for topic in topics:
            parse_resource_id(topic)
        return read_volumes(self._counts, step=step, start=start, end=end, topics=topics)

    def read_messages(
        self, request: MessageRequest, *, principal: Principal, should_stop: Callable[[], bool] = lambda: False
    ) -> MessagePage:
        """Return a page of archived messages, newest first, by one query, which ends when ``should_stop``.

        Raises:
            QueryStoppedError: ``should_stop`` ended it.
            ForbiddenError: the caller may not read messages, or not those of this topic.
            InvalidNameError, RequestInvalidError: the topic, the window, the attributes or the token is wrong.
            TopicUnknownError: Pub/Sub has no such topic, and the archive has never heard of it.
        """
        principal.require(MESSAGES)
        principal.require_reading(request.topic)
        page = self._browser.read_page(request, should_stop)
        if not page.messages:
            self._check_known(request.topic)
        return page

    def read_message_data(
        self, request: MessageRequest, *, principal: Principal, should_stop: Callable[[], bool] = lambda: False
    ) -> MessageData:
        """Return the whole payload of one archived message, bit for bit, by one query as of :meth:`read_messages`.

        Raises:
            QueryStoppedError: ``should_stop`` ended it.
            ForbiddenError: the caller may not read messages, or not those of this topic.
            MessageNotFoundError: no such message came in within the window.
            InvalidNameError, RequestInvalidError: the topic or the window is wrong.
        """
        principal.require(MESSAGES)
        principal.require_reading(request.topic)
        return self._browser.read_data(request, should_stop)

    def list_streams(self, *, principal: Principal) -> list[StreamOut]:
        """Return every stream that was launched or has ever reported, by name."""
        principal.require_any(READ, STREAMS_READ)
        stats = read_stats(self._pubsub.channel, self._pubsub.project)
        return self._catalog.list_streams(stats, retentions_of(self._pubsub.list_subscriptions()))

    def list_histories(
        self, over: Over, *, principal: Principal, name: str | None = None
    ) -> dict[str, list[dict[str, Any]]]:
        """Return the rate, lag and backlog of every stream, or of ``name``, at even steps; None where unknown.

        Raises:
            StreamNotFoundError: there is no stream of that name.
        """
        principal.require_any(READ, STREAMS_READ)
        names = [stream.name for stream in self._catalog.list_streams(None)]
        if name is not None and name not in names:
            raise StreamNotFoundError(
                f"There is no stream {name[:80]}.{did_you_mean(name, names)}", name=name[:80]
            )
        now = datetime.now(UTC)
        wanted = [each for each in names if name in {None, each}]
        found = self._figures([stream_subject(each) for each in wanted], history_start(over, now))
        return {each: render_history(found.get(stream_subject(each), ()), over, now) for each in wanted}

    def show_stream(self, record: StreamRecord) -> StreamOut:
        """Return a stream that was launched; its lag is unknown while Pub/Sub does not answer."""
        return self._catalog.show_stream(record, self._find_stats(), self._find_retentions())

    def list_inbox(self, *, principal: Principal) -> list[InboxItem]:
        """Return streams that ended with messages waiting or whose dead letters grow, and gaps of topics.

        A stream whose work another stream does is left out: the messages wait for that one.
        """
        principal.require(READ)
        return [*self._list_ended(), *self._list_growing(), *self._gaps.list_items()]

    def _list_growing(self) -> list[InboxItem]:
        streams = [stream for stream in self._catalog.list_streams(None) if not stream.is_over]
        totals = self.read_instance_totals()

        def judge(streams: Sequence[StreamOut], since: datetime) -> Iterator[tuple[StreamOut, InboxItem]]:
            found = self._figures([stream_subject(stream.name) for stream in streams], since)
            for each in streams:
                points = found.get(stream_subject(each.name), ())
                if (item := growing_item(each, points, totals.get(each.name, ()), since)) is not None:
                    yield each, item

        now = datetime.now(UTC)
        growing = [stream for stream, _ in judge(streams, now - GROWS_WITHIN)]
        # When it began, which may be long ago, is looked for where somebody has to know it.
        return [item for _, item in judge(growing, now - KEEP_HOURS)]

    def _list_ended(self) -> list[InboxItem]:
        ended = {record.name: record for record in self._records() if not record.is_living}
        if not ended:
            return []
        streams = self._catalog.list_streams(self._find_stats(), self._find_retentions())
        return [
            waiting_item(ended[stream.name], stream)
            for stream in without_replaced(streams)
            if stream.name in ended and stream.state in ENDED and stream.retained_until is not None
        ]

    def find_waiting(self, sources: Sequence[Source], until: datetime) -> Waiting | None:
        """Return what waits for the sources of a topic of the messages that were published until a moment."""
        stats = self._find_stats()
        return find_waiting(sources, without_replaced(self._catalog.list_streams(stats)), stats, until)

    def find_starts(self) -> dict[str, datetime]:
        """Return when the process of each group's pipeline started that runs."""
        running = [each for each in self._catalog.list_streams(None) if each.state is StreamState.RUNNING]
        return {
            work.removeprefix(PIPELINE_PREFIX): each.started_at
            for each in running
            if each.started_at is not None and (work := work_of(each)).startswith(PIPELINE_PREFIX)
        }

    def describe_idle(self, sources: Sequence[Source], receives: Mapping[str, bool]) -> list[str]:
        """Return what becomes of messages that are published now to sources whose stream does not run."""
        return describe_idle(sources, without_replaced(self._catalog.list_streams(None)), receives)

    def measure_streams(self) -> list[StreamOut]:
        """Return the streams for figures that anybody may see; lags are unknown while Pub/Sub does not answer."""
        return self._catalog.list_streams(self._find_stats())

    def read_instance_totals(self) -> dict[str, list[InstanceTotal]]:
        """Return the totals of each instance of the streams that has reported, by stream."""
        return self._catalog.read_instance_totals()

    def check_streams(self, *, principal: Principal) -> StreamCondition:
        """Return the streams and what is wrong with them, also while Pub/Sub does not answer."""
        principal.require(READ)
        problems: list[StatusProblem] = []
        stats, attached, retentions = None, None, None
        try:
            stats = read_stats(self._pubsub.channel, self._pubsub.project)
            subscriptions = self._pubsub.list_subscriptions()
            attached, retentions = count_attached(subscriptions), retentions_of(subscriptions)
            if self._collected:
                problems += judge_collected(self._collected, self._pubsub.list_topics(), subscriptions)
        except RefeedError as exc:
            problems.append(StatusProblem(exc.code, "pubsub", exc.message))
        streams = self._catalog.list_streams(stats, retentions)
        problems += judge_streams(streams, attached)
        problems += self._judge_refused(streams)
        if self._snapshot_every:
            problems += judge_snapshots(
                self._records(), self._snapshots(), every=self._snapshot_every, now=datetime.now(UTC)
            )
        return StreamCondition(streams, problems)

    def _judge_refused(self, streams: Sequence[StreamOut]) -> Iterator[StatusProblem]:
        instances = {stream.name: stream.instance_id for stream in streams if stream.state not in ENDED}
        refusing = [
            (name, total)
            for name, totals in self.read_instance_totals().items()
            for total in totals
            if total.refused and total.instance_id == instances.get(name)
        ]
        since = datetime.now(UTC) - REFUSED_WITHIN
        found = self._figures([stream_subject(name) for name, _ in refusing], since) if refusing else {}
        for name, total in refusing:
            yield from judge_refused(total, found.get(stream_subject(name), ()), since)

    def _find_stats(self) -> Mapping[str, SubscriptionStats] | None:
        with suppress(RefeedError):
            return read_stats(self._pubsub.channel, self._pubsub.project)
        return None

    def _find_retentions(self) -> Mapping[str, int] | None:
        with suppress(RefeedError):
            return retentions_of(self._pubsub.list_subscriptions())
        return None

    def _check_known(self, topic: str) -> None:
        if self._pubsub.topic_exists(topic):
            return
        whole = Window(_EARLIEST, datetime.now(UTC) + timedelta(days=1))
        if not any(self._counts.histogram(topic, whole, "day").values()):
            meant = did_you_mean(topic, self._pubsub.list_topics())
            raise TopicUnknownError(
                f"The topic {topic} is not in Pub/Sub and not in the archive.{meant}", topic=topic
            )


def _utc(moment: datetime, name: str) -> datetime:
    try:
        found = moment.astimezone(UTC)
    except OverflowError:
        found = _EARLIEST - timedelta(days=1)
    if found < _EARLIEST:
        message = f"{name} is before {_EARLIEST:%Y}, or is outside of the calendar."
        raise RequestInvalidError.of("window_invalid", message, f"query:{name}")
    return found
