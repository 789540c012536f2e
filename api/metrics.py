"""Figures for Prometheus: jobs by state, what backfills have published, streams, and what was answered."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.operations import find_operation
from api.stream_figures import ScrapedCollector, StreamFigures
from backfill.steer.kind import BACKFILL
from inventory.sources import list_type_changes
from inventory.streams import StreamOut
from jobs.store import JobCount, JobStore
from model.job import JobState

TEXT_FORMAT: Final = CONTENT_TYPE_PLAIN_0_0_4
_FAILURES: Final = (
    "refeed_job_last_failure_timestamp_seconds",
    "End time of the newest FAILED job, by kind of job.",
    "kind",
)
_TYPE_CHANGES: Final = (
    "refeed_source_last_type_change_timestamp_seconds",
    "When columns of the source last got another type, in the last seven days.",
    "source",
)


class Metrics:
    """The figures of one API: its own answers, the jobs of the store that all replicas share, the streams.

    ``store`` gives the store of the app's life, ``streams`` the streams as they are now.
    """

    def __init__(self, store: Callable[[], JobStore], streams: Callable[[], Sequence[StreamOut]]) -> None:
        self._registry = CollectorRegistry()
        self._answers = Counter(
            "refeed_http_answers",
            "Number of HTTP answers of this process, by operation and status.",
            ["operation", "status"],
            registry=self._registry,
        )
        self._registry.register(_Jobs(lambda: store().count_jobs(("published", "failed"), of_kind=BACKFILL.name)))
        self._registry.register(_LastTimes(*_FAILURES, lambda: store().find_last_failures()))
        changes = _LastTimes(*_TYPE_CHANGES, lambda: {each.id: each.at for each in list_type_changes(store())})
        self._registry.register(changes)
        self._registry.register(StreamFigures(streams))

    def count(self, operation: str, status: int) -> None:
        """Count one answer."""
        self._answers.labels(operation, str(status)).inc()

    def render(self) -> str:
        """Return all figures in Prometheus' text format.

        Raises:
            StoreUnavailableError: the job store does not answer.
        """
        return generate_latest(self._registry).decode()


class AnswerCounter:
    """ASGI middleware: counts what is answered, also by those that refuse."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and count its answer when it begins."""

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                # A path that is no route has no name: callers must not make up figures without end.
                self._metrics.count(find_operation(scope) or "none", message["status"])
            await send(message)

        await self._app(scope, receive, send_counted if scope["type"] == "http" else send)


class _Jobs(ScrapedCollector[Sequence[JobCount]]):
    """The figures of the store's jobs."""

    def collect(self) -> Iterator[Metric]:
        """Yield the figures."""
        counts = self.read()
        jobs = GaugeMetricFamily(
            "refeed_jobs", "Number of jobs in the job store, by kind and state.", labels=["kind", "state"]
        )
        published = CounterMetricFamily(
            "refeed_published_messages",
            "Number of published messages of all jobs that Pub/Sub has confirmed.",
            labels=["kind"],
        )
        failed = GaugeMetricFamily(
            "refeed_failed_messages",
            "Number of messages of all jobs that could not be published (dead letters).",
            labels=["kind"],
        )
        for kind in sorted({count.kind for count in counts}):
            of_kind = {count.state: count for count in counts if count.kind == kind}
            for state in JobState:
                jobs.add_metric([kind, state.value], of_kind[state].jobs if state in of_kind else 0)
            published.add_metric([kind], sum(count.sums["published"] for count in of_kind.values()))
            failed.add_metric([kind], sum(count.sums["failed"] for count in of_kind.values()))
        yield from (jobs, published, failed)


class _LastTimes(ScrapedCollector[Mapping[str, datetime]]):
    """When something happened: a count of failed jobs falls with each that is tried again, and hides the next."""

    def __init__(self, name: str, text: str, label: str, read: Callable[[], Mapping[str, datetime]]) -> None:
        super().__init__(read)
        self._described = (name, text, None, [label])

    def collect(self) -> Iterator[Metric]:
        """Yield the figure."""
        found = GaugeMetricFamily(*self._described)
        for kind, at in sorted(self.read().items()):
            found.add_metric([kind], at.timestamp())
        yield found
