"""Months of service time in seconds: what is kept is bounded, looks stay short, each slot runs once."""

from datetime import timedelta

import pytest

from tests.years.service import Service
from tests.years.trial import check_jumps, check_years


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    return request.getfixturevalue("make_postgresql_store")()


@pytest.fixture
def service(url, tmp_path):
    with Service(url, tmp_path / "home", schedules=7, streams=1) as service:
        yield service


# Some seconds on an idle machine, and minutes on one that runs twenty other things.
@pytest.mark.timeout(900)
def test_a_service_runs_for_months_and_gets_over_clocks_that_jump(service):
    check_years(service, timedelta(days=116), use_every=timedelta(days=29))
    check_jumps(service, timedelta(days=34))
