"""A pipeline's snapshot and rollback, while the agent that carries them out is killed at every step of both."""

from contextlib import closing
from pathlib import Path

import pytest

from jobs.store import open_store
from model import failpoint
from model.principal import STREAMS_OPERATE, STREAMS_READ, Principal
from model.stream_record import StreamState
from model.stream_snapshot import RestoreState, SnapshotState
from rollout.child import Children
from rollout.process import StreamProcess
from rollout.request import StreamLaunch
from rollout.service import StreamService
from rollout.snapshots import SnapshotService
from streams.folder import StreamFolder, read_newest_status
from tests.acceptance.test_pipeline import Plant, attach
from tests.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.kills, pytest.mark.timeout(900)]

ANN = Principal("ann", frozenset({STREAMS_READ, STREAMS_OPERATE}))
SNAPSHOT_PLACES = ("snapshot.captured", "snapshot.sources", "snapshot.copied")
RESTORE_PLACES = (
    *("restore.stop.entered", "restore.stop.done", "restore.put_back.entered", "restore.before"),
    *("restore.restored", "restore.sought", "restore.put_back.done"),
)


class ManagedPlant:
    """A plant whose pipeline is the stream ``shop`` of agents."""

    def __init__(self, plant, store):
        self.plant = plant
        self.store = store
        self.streams, self.snapshots = StreamService(store), SnapshotService(store)
        self.points = plant.home / "failpoints"
        plant.environment |= {"REFEED_FAILPOINTS": str(self.points), "REFEED_KNOWN_IDS_SECONDS": "1"}
        self.agent = self.start_agent()

    def start_agent(self):
        self.agent = self.plant.start_agent()
        return self.agent

    def record(self):
        return self.store.get_stream("shop")

    def wait(self, is_true, why):
        wait_until(is_true, seconds=180, every_seconds=0.05, why=f"{why}: {self.agent.log_tail()}")

    def wait_for_all(self):
        self.wait(lambda: self.plant.unacked() == 0, "all is acknowledged")

    def wait_for_state(self, state):
        self.wait(lambda: self.record().state is state, f"shop is {state}")
        return self.record()

    def kill_agents_at(self, places):
        """Have one agent killed at each of ``places``, in their order, and start the one after it."""
        for place in places:
            self.wait(lambda place=place: failpoint.is_hit(self.points, place), f"an agent was killed at {place}")
            self.agent.kill()
            self.start_agent()

    def take(self):
        return self.snapshots.create("shop", with_source=True, principal=ANN)

    def wait_for_snapshot(self, asked):
        self.wait(
            lambda: self.store.get_snapshot(asked.id).state is not SnapshotState.PENDING, "the snapshot is made"
        )
        made = self.store.get_snapshot(asked.id)
        assert (made.state, made.error) == (SnapshotState.COMPLETED, None)
        return made

    def roll_back(self, made, *, discard_staged=False):
        """Go back to the snapshot, and return the record once the stream runs again."""
        before = self.record().instance_id
        asked = self.snapshots.rollback("shop", made.id, principal=ANN, discard_staged=discard_staged)
        return self.wait_until_back(asked, before)

    def wait_until_back(self, asked, before):
        self.wait(
            lambda: self.store.list_restores("shop")[0].state is not RestoreState.RUNNING, "the stream is put back"
        )
        done = self.store.list_restores("shop")[0]
        assert (done.id, done.state, done.error) == (asked.id, RestoreState.SUCCEEDED, None)
        self.wait(
            lambda: self.record().state is StreamState.RUNNING and self.record().instance_id != before,
            "it runs again",
        )
        return done

    def redelivered(self):
        status = read_newest_status(self.plant.home, "shop") or {}
        return float((status.get("totals") or {}).get("redelivered", 0))

    def drain(self):
        self.streams.drain("shop", principal=ANN, timeout_seconds=60)
        self.wait_for_state(StreamState.DRAINED)
        assert self.agent.stop() == 0

    def end(self):
        found = StreamProcess.find(StreamFolder.of(self.plant.home, "shop", self.record().instance_id))
        if found is not None:
            found.kill()


@pytest.fixture
def shop(tmp_path):
    with Children() as children:
        # A seek takes a second to take effect, and acknowledged messages come meanwhile.
        plant = Plant(tmp_path / "home", children, folder=tmp_path, server_options=("--seek-seconds", "1"))
        with closing(open_store(plant.settings.job_store)) as store:
            managed = ManagedPlant(plant, store)
            managed.streams.launch(StreamLaunch(name="shop", kind="pipeline"), principal=ANN)
            yield managed
            managed.end()


def test_a_pipeline_goes_back_to_a_snapshot_through_kills_at_every_step_of_both(shop):
    plant = shop.plant
    plant.publish_schema()
    attach(plant, "orders", "members")
    plant.send_some(60, 0)
    shop.wait_for_all()
    before = shop.wait_for_state(StreamState.RUNNING)

    for place in SNAPSHOT_PLACES:
        failpoint.arm(shop.points, place)
    asked = shop.take()
    shop.kill_agents_at(SNAPSHOT_PLACES)
    made = shop.wait_for_snapshot(asked)
    # It is whole, and there is nothing else: neither at Pub/Sub nor on the disk.
    assert {each.id for each in plant.pubsub.list_snapshots()} == {each.snapshot for each in made.sources}
    assert [each.subscription for each in made.sources] == ["refeed-pipeline.members", "refeed-pipeline.orders"]
    folder = Path(made.place.location)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert {path.name for path in folder.iterdir()} == {"state.tar", "snapshot.json"}
    state = StreamFolder.of(plant.home, "shop").state
    shop.wait(lambda: not list(state.glob("captured*")), "the links are gone")
    assert shop.record().instance_id == before.instance_id

    # More batches than the window of a second: the journal has forgotten the first of them.
    for seed in range(1, 4):
        plant.send_some(60, seed)
        shop.wait_for_all()
    for place in RESTORE_PLACES:
        failpoint.arm(shop.points, place)
    asked = shop.snapshots.rollback("shop", made.id, principal=ANN)
    shop.kill_agents_at(RESTORE_PLACES)
    assert shop.wait_until_back(asked, before.instance_id).not_reverted == ()
    assert not (state / "restored").exists()
    plant.send_some(30, 9)
    # All that came after the snapshot comes again, and is known; dead letters too.
    shop.wait(lambda: shop.redelivered() >= 3 * 91, "the seek takes effect")
    shop.wait_for_all()
    plant.check()
    check_discarded(shop, made, staged_again=3 * 90 + 45)
    shop.drain()
    plant.check()


def check_discarded(shop, made, *, staged_again):
    """Go back once more without the rows that were staged since, and see those staged again and no others."""

    def staged():
        rows = [row for table in ("staging.orders", "staging.members") for row in shop.plant.rows(table)]
        return {f"{row['_topic']} {row['_message_id']}": row["ingest_time"] for row in rows}

    before = staged()
    done = shop.roll_back(made, discard_staged=True)
    assert done.not_reverted == (
        "Reporting tables keep the rows that were merged since the snapshot.",
        "Dead letters since the snapshot stay. The stream does not try their messages again.",
    )
    shop.wait(lambda: len(staged()) == len(before), "the seek takes effect, and what was discarded is staged")
    shop.wait_for_all()
    after = staged()
    assert after.keys() == before.keys()
    assert sum(after[key] > time for key, time in before.items()) == staged_again
