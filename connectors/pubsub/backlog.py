"""How old a subscription's backlog is: from Cloud Monitoring, or from the local server's own figures."""

import json
import time
from collections.abc import Callable
from typing import Any, Final, Protocol, Self

import grpc

from connectors.pubsub.channel import is_local, open_channel
from connectors.pubsub.errors import error_from
from model.errors import (
    MonitoringMissingError,
    PubSubCredentialsError,
    PubSubError,
    PubSubUnavailableError,
    SubscriptionNotFoundError,
)

_STATS_METHOD: Final = "/refeed.local.Stats/Get"
_TIMEOUT_SECONDS: Final = 10.0
_METRIC: Final = "pubsub.googleapis.com/subscription/oldest_unacked_message_age"
# The metric is sampled every minute and may be seen two minutes later:
# https://cloud.google.com/monitoring/api/metrics_gcp_p_z#gcp-pubsub
_LOOK_BACK_SECONDS: Final = 600


class Backlog(Protocol):
    """Tells the age of the oldest message of a subscription that is not acknowledged.

    ``every_seconds`` is how often there is something new to read.
    """

    every_seconds: float

    def read_oldest_unacked_seconds(self) -> float:
        """Return the age in seconds, 0 when nothing waits.

        Raises:
            SubscriptionNotFoundError: there is no such subscription.
            PubSubUnavailableError: nobody answers.
            PubSubError: the figure is refused.
        """
        ...

    def close(self) -> None:
        """Let go of the connection."""
        ...


def open_backlog(subscription_path: str, address: str | None) -> Backlog:
    """Return the backlog of ``projects/<project>/subscriptions/<id>``, at a local server or at Google.

    Raises:
        MonitoringMissingError: it is Google's and google-cloud-monitoring is not installed.
        PubSubError: there are no credentials.
    """
    if is_local(address):
        return LocalBacklog(subscription_path, address)
    return MonitoredBacklog.open(subscription_path)


class LocalBacklog:
    """A subscription of the local Pub/Sub server, which knows the age at any moment."""

    every_seconds = 0.5

    def __init__(self, subscription_path: str, emulator_host: str) -> None:
        self._path = subscription_path
        self._channel = open_channel(emulator_host)
        self._get = self._channel.unary_unary(_STATS_METHOD, request_serializer=None, response_deserializer=None)

    def read_oldest_unacked_seconds(self) -> float:
        """Return the age in seconds, 0 when nothing waits."""
        try:
            stats: dict[str, Any] = json.loads(self._get(b"", timeout=_TIMEOUT_SECONDS))
        except grpc.RpcError as exc:
            if exc.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise PubSubError(
                    "PUBSUB_EMULATOR_HOST is a server that does not tell the age of a backlog; yield_to takes "
                    "Refeed's own or Google's."
                ) from exc
            raise error_from(exc, f"backlog of {self._path}") from exc
        if self._path not in stats:
            raise SubscriptionNotFoundError(f"There is no subscription {self._path}.", subscription=self._path)
        return float(stats[self._path]["oldest_unacked_seconds"])

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MonitoredBacklog:
    """A subscription of Google's Pub/Sub, whose age Cloud Monitoring samples once a minute."""

    every_seconds = 30.0

    def __init__(self, client: Any, subscription_path: str, *, clock: Callable[[], float] = time.time) -> None:
        self._client = client
        self._path = subscription_path
        self._clock = clock

    @classmethod
    def open(cls, subscription_path: str) -> Self:
        """Return the backlog, read with Application Default Credentials."""
        try:
            from google.cloud.monitoring_v3 import MetricServiceClient
        except ImportError as exc:
            raise MonitoringMissingError from exc
        import google.auth.exceptions

        try:
            return cls(MetricServiceClient(), subscription_path)
        except google.auth.exceptions.DefaultCredentialsError as exc:
            raise PubSubCredentialsError(
                "No Google credentials were found to read the age of a backlog with: run "
                "'gcloud auth application-default login'."
            ) from exc

    def read_oldest_unacked_seconds(self) -> float:
        """Return the latest sample in seconds, 0 when there is none: the metric is silent while nothing waits."""
        from google.api_core import exceptions as google_errors

        project, subscription = self._path.split("/")[1], self._path.rsplit("/", 1)[1]
        now = int(self._clock())
        request = {
            "name": f"projects/{project}",
            "filter": f'metric.type = "{_METRIC}" AND resource.labels.subscription_id = "{subscription}"',
            "interval": {"start_time": {"seconds": now - _LOOK_BACK_SECONDS}, "end_time": {"seconds": now}},
            "view": "FULL",
        }
        try:
            series = list(self._client.list_time_series(request=request, timeout=_TIMEOUT_SECONDS, retry=None))
        except (google_errors.ServiceUnavailable, google_errors.DeadlineExceeded, google_errors.RetryError) as exc:
            raise PubSubUnavailableError(f"Cloud Monitoring does not answer: {exc}") from exc
        except google_errors.GoogleAPICallError as exc:
            raise PubSubError(f"Cloud Monitoring refused: {exc}") from exc
        points = [point for one in series for point in one.points]
        latest = max(points, key=lambda point: point.interval.end_time, default=None)
        return 0.0 if latest is None else float(latest.value.int64_value)

    def close(self) -> None:
        """Close the client's channel."""
        self._client.transport.close()
