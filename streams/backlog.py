"""A stream's backlog: its lag from Cloud Monitoring, and the publish time of its oldest message."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog

from connectors.pubsub.backlog import BacklogSample, MonitoredBacklogs
from connectors.pubsub.channel import is_local
from connectors.pubsub.client import PubSub, SubscriptionInfo
from connectors.pubsub.stats import read_stats
from model.errors import PubSubError, PubSubUnavailableError, RefeedError
from streams.status import StatusFile

_log = structlog.get_logger(__name__)

# Longest time that a drain waits for a call to Cloud Monitoring.
_LAST_SECONDS: Final = 1.0
# Cloud Monitoring shows a sample up to three minutes late: messages returned or sought since then are not in it.
_SAMPLE_AGE: Final = timedelta(minutes=10)

ReadSample = Callable[[MonitoredBacklogs], BacklogSample | None]


@contextmanager
def measuring(status: StatusFile, project: str, address: str | None, read: ReadSample) -> Iterator[None]:
    """Write the latest sample of ``read`` into the status as ``backlog``, until the block ends.

    Another thread does this once a minute. ``backlog`` is None while there is no sample, or while Cloud Monitoring
    refuses; the reason is logged once. Of a local server the API reads the backlog itself.
    """
    if is_local(address):
        yield
        return
    ended = threading.Event()

    def run() -> None:
        failed: str | None = None
        backlogs: MonitoredBacklogs | None = None
        while True:
            found: BacklogSample | None = None
            try:
                if backlogs is None:
                    backlogs = MonitoredBacklogs.open(project)
                found = read(backlogs)
                failed = None
            except RefeedError as exc:
                if exc.code != failed:
                    _log.warning("lag_not_measured", code=exc.code, error=exc.message)
                failed = exc.code
            status.note(backlog=None if found is None else asdict(found))
            if ended.wait(MonitoredBacklogs.every_seconds):
                break
        if backlogs is not None:
            backlogs.close()

    # A daemon, so that it does not keep the process alive.
    thread = threading.Thread(target=run, name="lag", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_LAST_SECONDS)


def find_oldest(pubsub: PubSub, subscriptions: Sequence[SubscriptionInfo], address: str | None) -> datetime:
    """Return a lower bound of the publish times of messages that ``subscriptions`` have still to deliver.

    The bound is from a local server or from Cloud Monitoring. For a subscription without a sample, or without
    access to samples, it follows from the subscription's retention. A later seek is not included: for that, call
    :func:`streams.journal_mark.ask_to_learn`.

    Raises:
        PubSubUnavailableError: Pub/Sub does not answer.
    """
    now = datetime.now(UTC)
    ages = _read_ages(pubsub, [found.id for found in subscriptions], address)
    return min(
        (now - ages.get(found.id, timedelta(seconds=found.keeps_seconds)) for found in subscriptions),
        default=now,
    )


def _read_ages(pubsub: PubSub, names: Sequence[str], address: str | None) -> dict[str, timedelta]:
    stats = read_stats(pubsub.channel, pubsub.project)
    if stats is not None:
        return {name: timedelta(seconds=found.oldest_unacked_seconds) for name, found in stats.items()}
    # Emulators other than Refeed's do not report ages.
    return {} if is_local(address) else read_monitored_ages(names, lambda: MonitoredBacklogs.open(pubsub.project))


def read_monitored_ages(
    names: Sequence[str], open_backlogs: Callable[[], MonitoredBacklogs]
) -> dict[str, timedelta]:
    """Return the ages from Cloud Monitoring, rounded up to be safe; empty if it refuses."""
    try:
        backlogs = open_backlogs()
        try:
            found = backlogs.read_ages(names)
        finally:
            backlogs.close()
    except (PubSubError, PubSubUnavailableError) as exc:
        _log.warning("oldest_not_measured", code=exc.code, error=exc.message)
        return {}
    return {name: timedelta(seconds=seconds) + _SAMPLE_AGE for name, seconds in found.items()}
