"""A stream that is put back to a snapshot older than the ids that it knows, by an agent, over a late seek."""

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from jobs.store import JobStore, open_store
from model.principal import STREAMS_OPERATE, STREAMS_READ, Principal
from model.stream_record import StreamState
from model.stream_snapshot import RestoreState, SnapshotState
from rollout.child import Child, Children
from rollout.request import StreamLaunch
from rollout.service import StreamService
from rollout.snapshots import SnapshotService
from streams.folder import read_newest_status
from tests.acceptance.conftest import Backyard
from tests.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.kills, pytest.mark.timeout(1200)]
ANN = Principal("ann", frozenset({STREAMS_READ, STREAMS_OPERATE}))


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Backyard]:
    with Children() as children:
        # A seek takes three seconds to take effect, and acknowledged messages come meanwhile.
        yield Backyard(tmp_path, children, server_options=("--seek-seconds", "3"))


@pytest.fixture
def store(yard: Backyard) -> Iterator[JobStore]:
    with closing(open_store(yard.settings.job_store)) as store:
        yield store


def test_a_rollback_archives_nothing_twice_however_old_its_snapshot_is(yard: Backyard, store: JobStore) -> None:
    streams, snapshots = StreamService(store), SnapshotService(store)
    yard.attach("orders")
    request = StreamLaunch(name="backup", kind="backup", options={"known_ids_seconds": 1})
    streams.launch(request, principal=ANN)
    command = [sys.executable, "-m", "cli.main", "agent"]
    log = yard.home / "logs" / "agent.log"
    agent = yard._children.start(Child("agent", command, environment=yard.environment, log=log))

    def wait_for_all(why: str) -> None:
        wait_until(lambda: yard.unacked() == 0, seconds=120, every_seconds=0.05, why=f"{why}: {agent.log_tail()}")

    yard.publish("orders", 300)
    wait_for_all("all is archived before the snapshot")
    made = snapshots.create("backup", with_source=True, principal=ANN)
    wait_until(
        lambda: store.get_snapshot(made.id).state is not SnapshotState.PENDING,
        seconds=60,
        why=f"the snapshot is made: {agent.log_tail()}",
    )
    made = store.get_snapshot(made.id)
    assert (made.state, made.error) == (SnapshotState.COMPLETED, None)
    assert made.seconds_paused is not None
    assert made.seconds_paused < 5
    before = store.get_stream("backup").instance_id

    # More batches than the window of a second: the journal has forgotten the first of them.
    for seed in range(1, 5):
        yard.publish("orders", 200, seed=seed)
        wait_for_all("all is archived after the snapshot")
    asked = snapshots.rollback("backup", made.id, principal=ANN)
    wait_until(
        lambda: store.list_restores("backup")[0].state is not RestoreState.RUNNING,
        seconds=120,
        why=f"the stream is put back: {agent.log_tail()}",
    )
    (done,) = store.list_restores("backup")
    assert (done.id, done.state, done.error) == (asked.id, RestoreState.SUCCEEDED, None)

    def is_running_again() -> bool:
        record = store.get_stream("backup")
        return record.state is StreamState.RUNNING and record.instance_id != before

    wait_until(is_running_again, seconds=120, why=f"it runs again: {agent.log_tail()}")
    yard.publish("orders", 100, seed=9)

    def redelivered() -> float:
        status = read_newest_status(yard.home, "backup") or {}
        return float((status.get("totals") or {}).get("redelivered", 0))

    # All that came after the snapshot comes again, and is known.
    wait_until(lambda: redelivered() >= 800, seconds=120, why=f"the seek takes effect: {agent.log_tail()}")
    wait_for_all("all is archived after the rollback")
    streams.drain("backup", principal=ANN, timeout_seconds=60)
    wait_until(
        lambda: store.get_stream("backup").state is StreamState.DRAINED,
        seconds=120,
        why=f"it drains: {agent.log_tail()}",
    )
    assert agent.stop() == 0
    yard.check_archive()
