"""What people see of updates that they, or the agents, have to do something about."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jobs.store import JobStore
from model.principal import SCOPES, Principal
from model.stream_options import StreamKind
from model.stream_record import StreamState
from model.stream_update import UNWANTED, StreamUpdate, UpdateFault, UpdateRequest, UpdateState
from rollout.updates import UpdateService
from tests.worlds.update_jobs import advance_update

ANN = Principal("ann", frozenset(SCOPES))
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    made = JobStore(tmp_path / "jobs.db")
    made._database.now = lambda _: NOON  # type: ignore[method-assign]
    made.launch_stream("backup", StreamKind.BACKUP, actor="ann", release="1.2", options={})
    made.take_streams("agent-1", limit=1, lease_seconds=60)
    made.report_stream("backup", "agent-1", StreamState.RUNNING, instance_id="in_1")
    yield made
    made.close()


def update(store: JobStore, state: UpdateState, error: UpdateFault | None = None) -> StreamUpdate:
    """Bring a new update to ``state``."""
    found = store.create_update("backup", UpdateRequest("1.3", {}, {}, 30.0, 5, None), actor="ann")
    return advance_update(store, found, state, error=error)


@pytest.mark.parametrize("state", [UpdateState.FAILED, UpdateState.ROLLED_BACK])
def test_an_update_that_failed_is_in_the_inbox_for_a_week_or_until_the_next_one(
    store: JobStore, state: UpdateState
) -> None:
    service = UpdateService(store)
    update(store, state, UpdateFault("stream_died", "The stream died."))
    (item,) = service.list_inbox(principal=ANN)
    (failed,) = store.list_updates("backup")
    assert (item.kind, item.resource, item.id, item.since) == ("failure", "update", failed.id, NOON)
    store._database.now = lambda _: NOON + timedelta(days=8)  # type: ignore[method-assign]
    assert service.list_inbox(principal=ANN) == []
    store._database.now = lambda _: NOON  # type: ignore[method-assign]
    update(store, UpdateState.STABLE)
    assert service.list_inbox(principal=ANN) == []


def test_an_update_that_somebody_rolled_back_needs_nobody(store: JobStore) -> None:
    update(store, UpdateState.ROLLED_BACK, UpdateFault(UNWANTED, "ann took the update back."))
    assert UpdateService(store).list_inbox(principal=ANN) == []
