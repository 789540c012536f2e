"""Years of service time on both job stores: ``make years``."""

import argparse
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

import structlog

from tests.conftest import PostgreSQL
from tests.years.service import DAILY, Service
from tests.years.trial import check_jumps, check_years

_POSTGRESQL: Final = Path("/usr/lib/postgresql")


def main() -> None:
    """Run the trials on SQLite and, where its server is installed, on PostgreSQL; any fault ends with 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--years", type=float, default=2.0)
    parser.add_argument("--schedules", type=int, default=100)
    parser.add_argument("--streams", type=int, default=10)
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    for store in ("sqlite", "postgresql"):
        for trial in ("years", "jumps"):
            began = time.monotonic()
            with _url(store) as (url, home):
                if url is None:
                    _say(f"{store}: its server is not installed, so nothing is shown for it")
                    break
                size = {"schedules": given.schedules, "streams": given.streams}
                with Service(url, home, crons=DAILY, longest=timedelta(hours=12), **size) as service:
                    said = _try(service, trial, timedelta(days=given.years * 365))
            _say(f"{store}: {said}, in {time.monotonic() - began:.0f} s")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _try(service: Service, trial: str, duration: timedelta) -> str:
    if trial == "years":
        return check_years(service, duration, use_every=timedelta(days=9))
    check_jumps(service, timedelta(days=10))
    return "clocks jumped by an hour and by ten years, ahead and back"


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
