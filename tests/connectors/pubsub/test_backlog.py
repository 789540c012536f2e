"""The age of a backlog: the local server's figure, and Cloud Monitoring's through Google's own client."""

import builtins
import re
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from google.cloud.monitoring_v3 import MetricServiceClient
from google.cloud.monitoring_v3.services.metric_service.transports import MetricServiceGrpcTransport
from google.cloud.monitoring_v3.types import ListTimeSeriesRequest, ListTimeSeriesResponse

from connectors.pubsub.backlog import (
    BacklogSample,
    LocalBacklog,
    MonitoredBacklog,
    MonitoredBacklogs,
    open_backlog,
)
from connectors.pubsub.publish import Publisher
from model.errors import MonitoringMissingError, PubSubError, PubSubUnavailableError, SubscriptionNotFoundError
from model.message import Message
from tests.worlds.grpc import answering

PATH = "projects/shop/subscriptions/slow"


def test_the_local_server_tells_how_old_its_oldest_message_is(server, pubsub):
    pubsub.create_topic("live")
    pubsub.create_subscription("slow", "live")
    with closing(LocalBacklog(PATH, server.emulator_host)) as backlog:
        assert backlog.read_oldest_unacked_seconds() == 0.0
        Publisher(pubsub.channel, pubsub.topic_path("live")).publish([Message(b"x")])
        first = backlog.read_oldest_unacked_seconds()
        assert 0 <= first <= backlog.read_oldest_unacked_seconds() < 60


def test_a_subscription_that_is_not_there_is_named(server):
    with (
        closing(LocalBacklog(PATH, server.emulator_host)) as backlog,
        pytest.raises(SubscriptionNotFoundError, match="slow"),
    ):
        backlog.read_oldest_unacked_seconds()


@dataclass
class Monitoring:
    """Cloud Monitoring as far as it goes: it answers ListTimeSeries as the test writes."""

    ages: dict[int, int] = field(default_factory=dict)
    samples: dict[str, dict[str, dict[int, int]]] = field(default_factory=dict)
    status: grpc.StatusCode | None = None
    requests: list[Any] = field(default_factory=list)
    target: str = ""

    def answer(self, body: bytes, context: grpc.ServicerContext) -> bytes:
        request = ListTimeSeriesRequest.deserialize(body)
        self.requests.append(request)
        if self.status is not None:
            context.abort(self.status, "as the test wrote")
        if self.samples:
            return bytes(
                ListTimeSeriesResponse.serialize(ListTimeSeriesResponse(time_series=self.series(request)))
            )
        points = [
            {"interval": {"end_time": {"seconds": at}}, "value": {"int64_value": age}}
            for at, age in self.ages.items()
        ]
        series = [{"points": [point]} for point in points]
        return bytes(ListTimeSeriesResponse.serialize(ListTimeSeriesResponse(time_series=series)))

    def series(self, request: Any) -> list[dict[str, Any]]:
        """The samples of the metric and the subscriptions that the filter asks for, a series each."""
        metric, condition = re.fullmatch(
            r'metric.type = "pubsub.googleapis.com/subscription/(\w+)" AND resource.labels.subscription_id = (.*)',
            request.filter,
        ).groups()
        matches = {"starts_with": str.startswith, "monitoring.regex.full_match": lambda n, p: re.fullmatch(p, n)}
        function, wanted = re.fullmatch(r'([\w.]+)\("([^"\\]*)"\)', condition).groups()
        return [
            {
                "resource": {"type": "pubsub_subscription", "labels": {"subscription_id": name}},
                "points": [
                    {"interval": {"end_time": {"seconds": at}}, "value": {"int64_value": value}}
                    for at, value in sorted(points.items(), reverse=True)
                ],
            }
            for name, points in self.samples[metric].items()
            if matches[function](name, wanted)
        ]


@pytest.fixture
def monitoring():
    state = Monitoring()
    methods = {"ListTimeSeries": state.answer}
    with answering({"google.monitoring.v3.MetricService": methods}) as state.target:
        yield state


@pytest.fixture
def monitored(monitoring):
    channel = grpc.insecure_channel(monitoring.target)
    client = MetricServiceClient(transport=MetricServiceGrpcTransport(channel=channel))
    backlog = MonitoredBacklog(client, PATH, clock=lambda: 10_000.0)
    yield backlog
    backlog.close()


def test_google_s_latest_sample_counts(monitoring, monitored):
    monitoring.ages = {9_880: 7, 9_940: 31, 9_820: 900}

    assert monitored.read_oldest_unacked_seconds() == 31.0

    (request,) = monitoring.requests
    assert request.name == "projects/shop"
    assert request.filter == (
        'metric.type = "pubsub.googleapis.com/subscription/oldest_unacked_message_age" AND '
        'resource.labels.subscription_id = "slow"'
    )
    assert request.interval.end_time.timestamp() - request.interval.start_time.timestamp() == 600


def test_a_metric_without_samples_is_a_backlog_without_messages(monitored):
    assert monitored.read_oldest_unacked_seconds() == 0.0


@pytest.fixture
def backlogs(monitoring):
    channel = grpc.insecure_channel(monitoring.target)
    client = MetricServiceClient(transport=MetricServiceGrpcTransport(channel=channel))
    backlogs = MonitoredBacklogs(client, "shop", clock=lambda: 10_000.0)
    yield backlogs
    backlogs.close()


def test_subscriptions_together_are_as_late_as_the_worst_by_its_latest_sample(monitoring, backlogs):
    monitoring.samples = {
        "oldest_unacked_message_age": {
            "refeed-backup.a": {9_880: 900, 9_940: 31},
            "refeed-backup.b": {9_900: 7},
            "refeed-pipeline.a": {9_940: 5000},
        },
        "num_undelivered_messages": {"refeed-backup.a": {9_940: 3}, "refeed-backup.b": {9_900: 4}},
    }
    assert backlogs.read_prefixed("refeed-backup.") == BacklogSample(31.0, 7, 9_900.0)
    assert backlogs.read_named(["refeed-pipeline.a", "gone"]) == BacklogSample(5000.0, None, 9_940.0)
    assert {request.name for request in monitoring.requests} == {"projects/shop"}
    assert {r.interval.end_time.timestamp() - r.interval.start_time.timestamp() for r in monitoring.requests} == {
        600
    }


def test_an_id_s_dot_is_no_pattern_and_no_filter_is_too_long(monitoring, backlogs):
    names = [f"refeed.pipeline+{number:03}-{'x' * 40}" for number in range(100)]
    ages = {name: {9_940: number} for number, name in enumerate(names)}
    others = {name.replace(".", "-"): {9_940: 9999} for name in names}
    monitoring.samples = {
        "oldest_unacked_message_age": {**ages, **others},
        "num_undelivered_messages": {name: {9_940: 1} for name in (*ages, *others)},
    }
    assert backlogs.read_named(names) == BacklogSample(99.0, 100, 9_940.0)
    assert max(len(request.filter) for request in monitoring.requests) <= 2048
    assert len(monitoring.requests) == 8


def test_each_subscription_has_the_age_that_its_oldest_message_has_by_now(monitoring, backlogs):
    monitoring.samples = {"oldest_unacked_message_age": {"a": {9_880: 900, 9_940: 31}, "b": {9_900: 0}}}
    assert backlogs.read_ages(["a", "b", "silent"]) == {"a": 91.0, "b": 100.0}


def test_subscriptions_that_nobody_has_sampled_have_no_backlog_rather_than_none_waiting(monitoring, backlogs):
    monitoring.samples = {"oldest_unacked_message_age": {}, "num_undelivered_messages": {}}
    assert backlogs.read_prefixed("refeed-backup.") is None
    assert backlogs.read_named([]) is None


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (grpc.StatusCode.UNAVAILABLE, PubSubUnavailableError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, PubSubUnavailableError),
        (grpc.StatusCode.PERMISSION_DENIED, PubSubError),
    ],
)
def test_what_google_refuses_is_an_error_of_ours(monitoring, monitored, status, error):
    monitoring.status = status

    with pytest.raises(error, match="as the test wrote"):
        monitored.read_oldest_unacked_seconds()


def test_without_google_s_client_the_error_says_what_to_install(monkeypatch):
    found = builtins.__import__

    def missing(name, *rest, **more):
        if name.startswith("google.cloud.monitoring"):
            raise ImportError(name)
        return found(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)

    with pytest.raises(MonitoringMissingError, match=r"pip install 'refeed\[monitoring\]'"):
        open_backlog(PATH, None)
