"""How old a subscription's backlog is: from Cloud Monitoring, or from the local server's own figures."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

from connectors.pubsub.channel import is_local, open_channel
from connectors.pubsub.stats import read_stats_by_path
from model.errors import (
    MonitoringMissingError,
    PubSubCredentialsError,
    PubSubError,
    PubSubUnavailableError,
    SubscriptionNotFoundError,
)

_TIMEOUT_SECONDS: Final = 10.0
_AGE: Final = "pubsub.googleapis.com/subscription/oldest_unacked_message_age"
_MESSAGES: Final = "pubsub.googleapis.com/subscription/num_undelivered_messages"
# The metrics are sampled every minute and may be seen two minutes later:
# https://cloud.google.com/monitoring/api/metrics_gcp_p_z#gcp-pubsub
_LOOK_BACK_SECONDS: Final = 600
# "This field must not exceed 2048 Unicode characters" is said of the same filter in AlertPolicy; the rest is the
# metric's: https://cloud.google.com/monitoring/api/ref_v3/rest/v3/projects.alertPolicies
_MAX_CHARACTERS: Final = 1800


class Backlog(Protocol):
    """The age of the oldest message of a subscription that is not acknowledged.

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
    """A subscription of the local Pub/Sub server, which has the age at any moment."""

    every_seconds = 0.5

    def __init__(self, subscription_path: str, emulator_host: str) -> None:
        self._path = subscription_path
        self._channel = open_channel(emulator_host)

    def read_oldest_unacked_seconds(self) -> float:
        """Return the age in seconds, 0 when nothing waits."""
        stats = read_stats_by_path(self._channel)
        if stats is None:
            raise PubSubError(
                "The Pub/Sub server at PUBSUB_EMULATOR_HOST does not report the age of a backlog. yield_to "
                "works only with Refeed's own Pub/Sub server or with Google Cloud Pub/Sub."
            )
        if self._path not in stats:
            raise SubscriptionNotFoundError(f"There is no subscription {self._path}.", subscription=self._path)
        return stats[self._path].oldest_unacked_seconds

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


@dataclass(frozen=True, slots=True)
class BacklogSample:
    """The backlog of several subscriptions together; ``messages`` is None where their number is not known.

    ``sampled_at`` (Unix seconds) is the time of the oldest sample in it: Cloud Monitoring shows a sample one to
    three minutes after it was taken.
    """

    oldest_unacked_seconds: float
    messages: int | None
    sampled_at: float


class MonitoredBacklog:
    """A subscription of Google's Pub/Sub, whose age Cloud Monitoring samples once a minute."""

    every_seconds = 30.0

    def __init__(self, client: Any, subscription_path: str, *, clock: Callable[[], float] = time.time) -> None:
        _, project, _, self._name = subscription_path.split("/")
        self._backlogs = MonitoredBacklogs(client, project, clock=clock)

    @classmethod
    def open(cls, subscription_path: str) -> Self:
        """Return the backlog, read with Application Default Credentials."""
        return cls(_open_monitoring(), subscription_path)

    def read_oldest_unacked_seconds(self) -> float:
        """Return the latest sample in seconds, 0 when there is none: the metric is silent while nothing waits."""
        points = self._backlogs.read_samples(_AGE, f'= "{self._name}"')
        latest = max(points, key=lambda point: point[1], default=None)
        return 0.0 if latest is None else latest[2]

    def close(self) -> None:
        """Close the client's channel."""
        self._backlogs.close()


class MonitoredBacklogs:
    """Subscriptions of Google's Pub/Sub together, as Cloud Monitoring has sampled them once a minute.

    All that begin with a prefix take two calls, others as many for each 1,800 characters of their ids.
    """

    every_seconds = 60.0

    def __init__(self, client: Any, project: str, *, clock: Callable[[], float] = time.time) -> None:
        self._client = client
        self._project = project
        self._clock = clock

    @classmethod
    def open(cls, project: str) -> Self:
        """Return the backlogs, read with Application Default Credentials.

        Raises:
            MonitoringMissingError: google-cloud-monitoring is not installed.
            PubSubCredentialsError: there are no credentials.
        """
        return cls(_open_monitoring(), project)

    def read_prefixed(self, prefix: str) -> BacklogSample | None:
        """Return the backlog of every subscription whose id begins with ``prefix``; None without a sample.

        Raises:
            PubSubUnavailableError: Cloud Monitoring does not answer.
            PubSubError: it refuses.
        """
        return self._read([f'= starts_with("{prefix}")'])

    def read_named(self, names: Sequence[str]) -> BacklogSample | None:
        """Return the backlog of the subscriptions with these ids; None without a sample.

        Raises:
            PubSubUnavailableError: Cloud Monitoring does not answer.
            PubSubError: it refuses.
        """
        return self._read(_conditions(names))

    def read_ages(self, names: Sequence[str]) -> Mapping[str, float]:
        """Return how old the oldest un-acked message of each subscription is by now, in seconds, by its id.

        One without a sample is not there.

        Raises:
            PubSubUnavailableError: Cloud Monitoring does not answer.
            PubSubError: it refuses.
        """
        found = self._read_latest(_AGE, _conditions(names))
        now = self._clock()
        return {name: now - at + age for name, (at, age) in found.items()}

    def close(self) -> None:
        """Close the client's channel."""
        self._client.transport.close()

    def _read(self, conditions: Sequence[str]) -> BacklogSample | None:
        ages = self._read_latest(_AGE, conditions)
        if not ages:
            return None
        counts = self._read_latest(_MESSAGES, conditions)
        return BacklogSample(
            oldest_unacked_seconds=max(value for _, value in ages.values()),
            # A sum without one of them would be too small.
            messages=int(sum(value for _, value in counts.values())) if counts.keys() >= ages.keys() else None,
            sampled_at=min(at for at, _ in (*ages.values(), *counts.values())),
        )

    def _read_latest(self, metric: str, conditions: Sequence[str]) -> Mapping[str, tuple[float, float]]:
        """Return the time and the value of each subscription's latest sample."""
        found: dict[str, tuple[float, float]] = {}
        for condition in conditions:
            for name, at, value in self.read_samples(metric, condition):
                if name not in found or at > found[name][0]:
                    found[name] = (at, value)
        return found

    def read_samples(self, metric: str, condition: str) -> list[tuple[str, float, float]]:
        """Return the last ten minutes' samples of the subscriptions whose ids meet ``condition``.

        A sample is the subscription's id, the time in Unix seconds and the value.

        Raises:
            PubSubUnavailableError: Cloud Monitoring does not answer.
            PubSubError: it refuses.
        """
        from google.api_core import exceptions as google_errors

        now = int(self._clock())
        request = {
            "name": f"projects/{self._project}",
            "filter": f'metric.type = "{metric}" AND resource.labels.subscription_id {condition}',
            "interval": {"start_time": {"seconds": now - _LOOK_BACK_SECONDS}, "end_time": {"seconds": now}},
            "view": "FULL",
        }
        try:
            series = list(self._client.list_time_series(request=request, timeout=_TIMEOUT_SECONDS, retry=None))
        except (google_errors.ServiceUnavailable, google_errors.DeadlineExceeded, google_errors.RetryError) as exc:
            raise PubSubUnavailableError(f"Cloud Monitoring does not answer: {exc}") from exc
        except google_errors.GoogleAPICallError as exc:
            raise PubSubError(f"Cloud Monitoring refused: {exc}") from exc
        return [
            (
                one.resource.labels.get("subscription_id", ""),
                point.interval.end_time.timestamp(),
                float(point.value.int64_value),
            )
            for one in series
            for point in one.points
        ]


def _open_monitoring() -> Any:
    try:
        from google.cloud.monitoring_v3 import MetricServiceClient
    except ImportError as exc:
        raise MonitoringMissingError from exc
    import google.auth.exceptions

    try:
        return MetricServiceClient()
    except google.auth.exceptions.DefaultCredentialsError as exc:
        raise PubSubCredentialsError(
            "No Google credentials for Cloud Monitoring were found. Run 'gcloud auth application-default login'."
        ) from exc


def _conditions(names: Sequence[str]) -> list[str]:
    return [f'= monitoring.regex.full_match("{pattern}")' for pattern in _patterns(names)]


def _patterns(names: Sequence[str]) -> Iterator[str]:
    """Yield RE2 patterns that match these ids and no others, each short enough for a filter.

    ``monitoring.regex.full_match`` is on https://cloud.google.com/monitoring/api/v3/filters.
    """
    chunk = ""
    for name in names:
        # No backslash, which the filter's string would take for its own.
        exact = name.replace(".", "[.]").replace("+", "[+]")
        if chunk and len(chunk) + len(exact) >= _MAX_CHARACTERS:
            yield chunk
            chunk = ""
        chunk = f"{chunk}|{exact}" if chunk else exact
    if chunk:
        yield chunk
