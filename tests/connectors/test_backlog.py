"""The age of a backlog: the local server's figure, and Cloud Monitoring's through Google's own client."""

import builtins
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.cloud.monitoring_v3 import MetricServiceClient
from google.cloud.monitoring_v3.services.metric_service.transports import MetricServiceGrpcTransport
from google.cloud.monitoring_v3.types import ListTimeSeriesRequest, ListTimeSeriesResponse

from connectors.pubsub.backlog import LocalBacklog, MonitoredBacklog, open_backlog
from connectors.pubsub.client import PubSub
from connectors.pubsub.publish import Publisher
from local.server import PubSubServer
from model.errors import MonitoringMissingError, PubSubError, PubSubUnavailableError, SubscriptionNotFoundError
from model.message import Message

PATH = "projects/shop/subscriptions/slow"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[str]:
    with PubSubServer(tmp_path / "pubsub") as server:
        yield server.emulator_host


def test_the_local_server_tells_how_old_its_oldest_message_is(host: str) -> None:
    with PubSub("shop", host) as pubsub:
        pubsub.create_topic("live")
        pubsub.create_subscription("slow", "live")
        with LocalBacklog(PATH, host) as backlog:
            assert backlog.read_oldest_unacked_seconds() == 0.0

            Publisher(pubsub.channel, pubsub.topic_path("live")).publish([Message(b"x")])
            first = backlog.read_oldest_unacked_seconds()
            second = backlog.read_oldest_unacked_seconds()

    assert 0 <= first <= second < 60


def test_a_subscription_that_is_not_there_is_named(host: str) -> None:
    with LocalBacklog(PATH, host) as backlog, pytest.raises(SubscriptionNotFoundError, match="slow"):
        backlog.read_oldest_unacked_seconds()


@dataclass
class Monitoring:
    """Cloud Monitoring as far as it goes: it answers ListTimeSeries as the test writes."""

    ages: dict[int, int] = field(default_factory=dict)
    status: grpc.StatusCode | None = None
    requests: list[Any] = field(default_factory=list)
    target: str = ""

    def answer(self, body: bytes, context: grpc.ServicerContext) -> bytes:
        request = ListTimeSeriesRequest.deserialize(body)
        self.requests.append(request)
        if self.status is not None:
            context.abort(self.status, "as the test wrote")
        points = [
            {"interval": {"end_time": {"seconds": at}}, "value": {"int64_value": age}}
            for at, age in self.ages.items()
        ]
        series = [{"points": [point]} for point in points]
        return bytes(ListTimeSeriesResponse.serialize(ListTimeSeriesResponse(time_series=series)))


@pytest.fixture
def monitoring() -> Iterator[Monitoring]:
    state = Monitoring()
    server = grpc.server(ThreadPoolExecutor(2))
    handler = grpc.unary_unary_rpc_method_handler(state.answer)
    methods = {"ListTimeSeries": handler}
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("google.monitoring.v3.MetricService", methods)]
    )
    state.target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield state
    server.stop(0).wait(10)


@pytest.fixture
def monitored(monitoring: Monitoring) -> Iterator[MonitoredBacklog]:
    channel = grpc.insecure_channel(monitoring.target)
    client = MetricServiceClient(transport=MetricServiceGrpcTransport(channel=channel))
    backlog = MonitoredBacklog(client, PATH, clock=lambda: 10_000.0)
    yield backlog
    backlog.close()


def test_google_s_latest_sample_counts(monitoring: Monitoring, monitored: MonitoredBacklog) -> None:
    monitoring.ages = {9_880: 7, 9_940: 31, 9_820: 900}

    assert monitored.read_oldest_unacked_seconds() == 31.0

    (request,) = monitoring.requests
    assert request.name == "projects/shop"
    assert request.filter == (
        'metric.type = "pubsub.googleapis.com/subscription/oldest_unacked_message_age" AND '
        'resource.labels.subscription_id = "slow"'
    )
    assert request.interval.end_time.timestamp() - request.interval.start_time.timestamp() == 600


def test_a_metric_without_samples_is_a_backlog_without_messages(monitored: MonitoredBacklog) -> None:
    assert monitored.read_oldest_unacked_seconds() == 0.0


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (grpc.StatusCode.UNAVAILABLE, PubSubUnavailableError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, PubSubUnavailableError),
        (grpc.StatusCode.PERMISSION_DENIED, PubSubError),
    ],
)
def test_what_google_refuses_is_an_error_of_ours(
    monitoring: Monitoring, monitored: MonitoredBacklog, status: grpc.StatusCode, error: type[Exception]
) -> None:
    monitoring.status = status

    with pytest.raises(error, match="as the test wrote"):
        monitored.read_oldest_unacked_seconds()


def test_without_google_s_client_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = builtins.__import__

    def missing(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("google.cloud.monitoring"):
            raise ImportError(name)
        return found(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)

    with pytest.raises(MonitoringMissingError, match=r"pip install 'refeed\[monitoring\]'"):
        open_backlog(PATH, None)
