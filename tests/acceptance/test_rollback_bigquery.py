"""A pipeline over BigQuery (the stand-in) goes back to a snapshot that is older than the ids that it knows."""

from contextlib import closing

import pytest

from jobs.store import open_store
from model.stream_record import StreamState
from rollout.child import Children
from rollout.request import StreamLaunch
from tests.acceptance.test_pipeline import attach
from tests.acceptance.test_pipeline_bigquery import BigQueryPlant
from tests.acceptance.test_rollback_kills import ANN, ManagedPlant, check_discarded
from tests.standin.fixture import standin

__all__ = ["standin"]

pytestmark = [pytest.mark.java, pytest.mark.cloud, pytest.mark.timeout(900)]


@pytest.fixture
def shop(tmp_path, standin):
    with Children() as children:
        plant = BigQueryPlant(tmp_path / "home", children, folder=tmp_path, standin=standin)
        with closing(open_store(plant.settings.job_store)) as store:
            managed = ManagedPlant(plant, store)
            managed.streams.launch(StreamLaunch(name="shop", kind="pipeline"), principal=ANN)
            yield managed
            managed.end()


def test_a_rollback_stages_nothing_twice_and_what_it_discards_once_more(shop):
    plant = shop.plant
    plant.publish_schema()
    attach(plant, "orders", "members")
    plant.send_some(40, 0)
    shop.wait_for_all()
    shop.wait_for_state(StreamState.RUNNING)
    made = shop.wait_for_snapshot(shop.take())
    # More batches than the window of a second: the journal has forgotten the first of them.
    for seed in range(1, 4):
        plant.send_some(20, seed)
        shop.wait_for_all()
    assert shop.roll_back(made).not_reverted == ()
    shop.wait(lambda: shop.redelivered() >= 3 * 31, "all that came after the snapshot comes again")
    shop.wait_for_all()
    plant.check()
    check_discarded(shop, made, staged_again=3 * 30)
    shop.drain()
    plant.check()
