"""A plugin of pytest that runs chosen tests in the order given, and writes down at once how each ended."""

import json
import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

# Some tests take Refeed's variables away while they run.
_REPORT = os.environ.get("REFEED_MUTANTS_REPORT", "")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the chosen tests alone; a test that is gone is no error."""
    only = json.loads(Path(os.environ["REFEED_MUTANTS_ONLY"]).read_text())
    if only is not None:
        places = {test: place for place, test in enumerate(only)}
        items[:] = sorted((i for i in items if i.nodeid in places), key=lambda item: places[item.nodeid])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Have coverage note each line with the test that runs it."""
    if (
        "COVERAGE_PROCESS_START" not in os.environ
        or (current := sys.modules["coverage"].Coverage.current()) is None
    ):
        return (yield)
    current.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        current.switch_context("")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Write that a file can't be read."""
    if report.failed:
        _write(report, "collect", 0.0)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write one line a phase."""
    _write(report, report.when, report.duration)


def _write(report: pytest.TestReport | pytest.CollectReport, when: str, seconds: float) -> None:
    crash = getattr(report.longrepr, "reprcrash", None)
    line = {
        "test": report.nodeid,
        "when": when,
        "outcome": report.outcome,
        "seconds": seconds,
        "message": crash.message if crash else str(report.longrepr or ""),
    }
    with Path(_REPORT).open("a") as file:
        file.write(json.dumps(line) + "\n")
