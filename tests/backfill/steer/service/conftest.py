"""A service over a local Pub/Sub server, whose drivers only sleep: the tests say what they would have written."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from backfill.plan.request import BackfillRequest
from backfill.plan.settings import BackfillSettings
from backfill.run.folder import BackfillFolder
from backfill.run.progress import CheckpointFolder, SliceCheckpoint
from backfill.run.selection import write_selection
from jobs.store import JobStore
from tests.archive import write_commits
from tests.backfill.conftest import MemoryStaging
from warehouse.lake.warehouse import LakeWarehouse

QUERY = (
    "SELECT data, attributes, message_id FROM backup.messages "
    "WHERE _PARTITIONTIME >= @from AND _PARTITIONTIME < @to AND topic = 'orders'"
)


def window(first_day: int = -1, last_day: int = 2) -> dict[str, Any]:
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    days = {"from": first_day, "to": last_day}
    return {
        name: {"type": "TIMESTAMP", "value": (today + timedelta(days=n)).isoformat()} for name, n in days.items()
    }


@pytest.fixture
def request_of():
    """Make a request; ``days`` are the window's ends, counted from today."""

    def make(days=(-1, 2), **changes):
        return BackfillRequest(**{"query": QUERY, "topic": "replay", "parameters": window(*days), **changes})

    return make


@pytest.fixture
def staging():
    return MemoryStaging()


@pytest.fixture
def deployment(tmp_path, emulator_host, pubsub):
    """With the topics that a backfill may publish to."""
    for name in ("replay", "other", "elsewhere"):
        pubsub.create_topic(name)
    return BackfillSettings(
        home=tmp_path,
        project="shop",
        emulator_host=emulator_host,
        replay_secret="secret",
        warehouse=LakeWarehouse(str(tmp_path / "lake"), "backup.messages", "backup.dead_letters", "day", "500MB"),
        max_window_days=366,
        query_memory="500MB",
    )


@pytest.fixture
def store(service, deployment):
    """The service's own job store, opened once more."""
    store = JobStore(deployment.home / "jobs.db")
    yield store
    store.close()


@pytest.fixture
def folder_of(tmp_path):
    return lambda job_id: BackfillFolder(tmp_path / "backfills" / job_id)


@pytest.fixture
def publish(folder_of, rows):
    """Leave what a driver leaves that has selected ``count`` rows and published some of them."""

    def leave(job_id, count, published, failed=0, *, epoch=1):
        folder = folder_of(job_id)
        if not folder.selection.exists():
            write_selection([rows(count)], folder.selection)
        checkpoints = CheckpointFolder(folder.progress)
        checkpoints.create()
        done = published + failed == count
        checkpoints.write(
            SliceCheckpoint(0, epoch, offset=published + failed, published=published, failed=failed, done=done)
        )

    return leave


@pytest.fixture
def archive(deployment, rows):
    return write_commits(deployment.warehouse.open_archive(), {"orders": rows(30), "members": rows(5)})
