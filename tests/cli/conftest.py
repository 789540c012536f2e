"""The command line called in this process, on a home of its own."""

import logging
import os
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import structlog

from cli.main import main
from jobs.store import JobStore
from local.server import PubSubServer


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home of the test's own, and nothing else of Refeed in the environment."""
    for name in list(os.environ):
        if name.startswith(("REFEED_", "PUBSUB_", "GOOGLE_")):
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    monkeypatch.setenv("REFEED_HOME", str(home))
    return home


@pytest.fixture
def refeed(capsys, monkeypatch):
    """Runs ``refeed ARGUMENTS`` in this process."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["refeed", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        code = ended.value.code
        return Result(int(code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def pubsub_server(tmp_path, monkeypatch):
    """A local Pub/Sub server that PUBSUB_EMULATOR_HOST names."""
    with PubSubServer(tmp_path / "pubsub") as server:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", server.emulator_host)
        yield server


@pytest.fixture(autouse=True)
def quiet_logging():
    """The root logger and structlog as they were, afterwards."""
    root = logging.getLogger()
    handlers, level, raises = list(root.handlers), root.level, logging.raiseExceptions
    yield
    logging.raiseExceptions = raises
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def count_openings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that gets an entry whenever this process opens a job store."""
    opened: list[Any] = []
    make = JobStore.__init__

    def note(self: JobStore, where: Any) -> None:
        opened.append(where)
        make(self, where)

    monkeypatch.setattr(JobStore, "__init__", note)
    return opened
