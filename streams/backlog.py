"""How much a stream has still to be given: its lag, as Cloud Monitoring has it, and its oldest message's time."""

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

# A call to Cloud Monitoring under way does not keep a drain waiting.
_LAST_SECONDS: Final = 1.0
# Cloud Monitoring shows a sample up to three minutes after it was taken: what was given back or sought for since
# then is not in it.
_SAMPLE_AGE: Final = timedelta(minutes=10)

ReadSample = Callable[[MonitoredBacklogs], BacklogSample | None]


@contextmanager
def measuring(status: StatusFile, project: str, address: str | None, read: ReadSample) -> Iterator[None]:
    """Keep the latest sample that ``read`` finds as the status's ``backlog`` until the block ends.

    Another thread does it, once a minute. ``backlog`` is None while there is no sample or Cloud Monitoring does
    not give any; the reason is logged once. The API asks a local server itself.
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

    # A daemon: it must not keep the process from its end.
    thread = threading.Thread(target=run, name="lag", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_LAST_SECONDS)


def find_oldest(pubsub: PubSub, subscriptions: Sequence[SubscriptionInfo], address: str | None) -> datetime:
    """Return a time before which no message of ``subscriptions`` was published that has still to be delivered.

    A local server knows it, Google has it in Cloud Monitoring. Of a subscription without a sample, or where none
    may be read, it is how long the subscription keeps a message. A seek that is still to come is in none of them:
    :func:`streams.journal_mark.ask_to_learn` is for that.

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
    # An emulator other than Refeed's.
    return {} if is_local(address) else read_monitored_ages(names, lambda: MonitoredBacklogs.open(pubsub.project))


def read_monitored_ages(
    names: Sequence[str], open_backlogs: Callable[[], MonitoredBacklogs]
) -> dict[str, timedelta]:
    """Return the ages that Cloud Monitoring has, on the safe side; none where it refuses."""
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
