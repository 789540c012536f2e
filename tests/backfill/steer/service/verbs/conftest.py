"""Backfills that run or have ended, for what is done with them."""

import pytest

from model.job import JobState
from model.principal import APPROVE, PLAN, READ, RUN, Principal
from tests.waiting import wait_until

ANN = Principal("key:ann", frozenset({READ, PLAN, RUN, APPROVE}))


@pytest.fixture
def running(service, request_of):
    """A backfill whose driver sleeps."""
    made = service.create(request_of(rate_limit_messages_per_second=100.0), principal=ANN)
    service.start()
    wait_until(lambda: service.get(made.id, principal=ANN).state is JobState.RUNNING, "it runs")
    return made.id


@pytest.fixture
def ended(service, request_of, deployment):
    """Make a backfill that has run and ended, as the store has it."""

    def end(state, using=service):
        made = using.create(request_of(allow_overlap=True), principal=ANN)
        using._store.begin_attempt(made.id)
        using._store.move(made.id, JobState.RUNNING, actor="refeed")
        using._store.move(made.id, state, actor="refeed")
        return made.id

    return end
