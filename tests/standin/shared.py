"""One BigQuery stand-in for all tests of a test process: to start one takes three seconds of CPU."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.standin.fixture import StandIn


@pytest.fixture(scope="session")
def session_standin(tmp_path_factory: pytest.TempPathFactory) -> Iterator["StandIn"]:
    """The process behind ``shared_standin``, for what is made once for several tests."""
    # Google's clients, which most tests do without, take a second to import.
    from tests.standin.fixture import run_standin

    with run_standin(tmp_path_factory.mktemp("bigquery")) as server:
        yield server


@pytest.fixture
def shared_standin(session_standin: "StandIn") -> Iterator["StandIn"]:
    """One stand-in for all tests, with neither faults nor calls on record; give each test a dataset of its own."""
    session_standin.clear_log()
    yield session_standin
    session_standin.clear_faults()
    session_standin.delay_storage()
    session_standin.allow_streams()
