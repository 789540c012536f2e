"""Years of service time on both job stores: ``make years``."""

import argparse
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from tests.conftest import PostgreSQL
from tests.years.service import Service
from tests.years.trial import check_jumps, check_years

_POSTGRESQL: Final = Path("/usr/lib/postgresql")
_MEMORY: Final = "/dev/shm"
_SAY_SECONDS: Final = 10.0
# Of 100 schedules, how many have which times. Those of each minute and hour are due around the changes of their
# zone's clocks: for the whole year they would take hours.
_OF_A_HUNDRED: Final = (
    (1, "* 1-3 29 3 *", "Europe/Berlin"),
    (1, "* 1-3 25 10 *", "Europe/Berlin"),
    (2, "0 * 25-29 3,10 *", "Europe/Berlin"),
    (2, "0 * 1,8 3,11 *", "America/New_York"),
    (2, "*/30 * 4-5 4,10 *", "Australia/Lord_Howe"),
    (1, "0 */8 1-10 * *", "UTC"),
    (2, "30 2 * * *", "Europe/Berlin"),
    (1, "30 1 * * *", "America/New_York"),
    (1, "45 1 * * *", "Australia/Lord_Howe"),
    (10, "30 2 * * 7", "Europe/Berlin"),
    (25, "0 0 1,15 * *", "UTC"),
    (22, "45 1 1 * *", "Australia/Lord_Howe"),
    (30, "30 2 25,29 * *", "Europe/Berlin"),
)


def main() -> int:
    """Run the trials on SQLite and, where its server is installed, on PostgreSQL; any violation ends with 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--years", type=float, default=1.0)
    parser.add_argument("--schedules", type=int, default=200)
    parser.add_argument("--streams", type=int, default=10)
    parser.add_argument("--snapshot-days", type=float, default=1.0, help="days between two snapshots of a stream")
    parser.add_argument("--stores", nargs="+", default=["sqlite", "postgresql"])
    given = parser.parse_args()
    # As Ctrl-C does: nothing is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    if os.access(_MEMORY, os.W_OK):
        # A disk that waits shows nothing here, and there are some files a job.
        tempfile.tempdir = _MEMORY
    violations = sum(_try(store, given) for store in given.stores)
    _say(f"{violations} violations")
    return int(violations > 0)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _try(store: str, given: argparse.Namespace) -> int:
    """Let the years pass, then have the clock jump; return how many of the trials had a violation."""
    with _url(store) as (url, home):
        if url is None:
            _say(f"{store}: its server is not installed, so nothing is shown for it")
            return 0
        size = {"schedules": given.schedules, "streams": given.streams}
        every = {"longest": timedelta(hours=12), "snapshot_every": timedelta(days=given.snapshot_days)}
        with Service(url, home, crons=_crons(), **size, **every) as service:
            service.watch = Progress(store, service).watch
            years = partial(check_years, service, timedelta(days=given.years * 365), use_every=timedelta(days=9))
            return sum(_violations(store, trial) for trial in (years, partial(_jump, service)))


def _violations(store: str, trial: Callable[[], str]) -> int:
    began = time.monotonic()
    try:
        said = trial()
    except AssertionError:
        _say(f"{store}: violation:\n{traceback.format_exc()}")
        return 1
    _say(f"{store}: {said}, in {time.monotonic() - began:.0f} s")
    return 0


def _jump(service: Service) -> str:
    check_jumps(service, timedelta(days=10))
    return "clocks jumped by an hour and by ten years, ahead and back"


def _crons() -> list[tuple[str, str]]:
    """Return the times of a hundred schedules; those of many slots are not all next to each other."""
    found = [(cron, zone) for count, cron, zone in _OF_A_HUNDRED for _ in range(count)]
    # 37 and 100 have no common divisor.
    return [found[(number * 37) % len(found)] for number in range(len(found))]


class Progress:
    """Prints where a service is, some times a minute."""

    def __init__(self, store: str, service: Service) -> None:
        self._store, self._service = store, service
        self._said_at, self._looks = time.monotonic(), 0

    def watch(self) -> None:
        service, now = self._service, time.monotonic()
        seconds, looks = now - self._said_at, service.looks - self._looks
        if seconds < _SAY_SECONDS:
            return
        rows = sum(service.count_rows().values())
        pace = f"{seconds * 1000 / max(looks, 1):.0f} ms a look"
        _say(f"{self._store}: {service.clock.now:%Y-%m-%d %H:%M}, {service.looks} looks, {pace}, {rows} rows")
        self._said_at, self._looks = now, service.looks


@contextmanager
def _url(store: str) -> Iterator[tuple[str | None, Path]]:
    """Give the url of an empty store and a folder for a home; None where there is no such server."""
    with tempfile.TemporaryDirectory(prefix="refeed-years-") as folder:
        home = Path(folder) / "home"
        if store == "sqlite":
            yield f"sqlite:///{folder}/jobs.db", home
            return
        found = sorted(_POSTGRESQL.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
        program = str(found[-1]) if found else shutil.which("initdb")
        if program is None:
            yield None, home
            return
        server = PostgreSQL(Path(os.path.realpath(program)).parent)
        try:
            server.start()
            yield server.make_database(), home
        finally:
            server.stop()


if __name__ == "__main__":
    sys.exit(main())
