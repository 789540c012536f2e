"""Measures a stream's lag at Google, which tells it by Cloud Monitoring only, beside the stream's work."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Final

import structlog

from connectors.pubsub.backlog import BacklogSample, MonitoredBacklogs
from connectors.pubsub.channel import is_local
from model.errors import RefeedError
from streams.status import StatusFile

_log = structlog.get_logger(__name__)

# A call to Cloud Monitoring under way does not keep a drain waiting.
_LAST_SECONDS: Final = 1.0

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
