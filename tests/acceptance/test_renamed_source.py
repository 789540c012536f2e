"""An update of a pipeline with a mapping, with real processes: renamed sources keep their tables and their ids."""

from contextlib import closing
from dataclasses import replace

import pytest

from jobs.store import open_store
from model.stream_update import UpdateRequest, UpdateState
from rollout.child import Children
from rollout.updates import UpdateService
from tests.acceptance.test_pipeline import SOURCES, Plant, attach
from tests.acceptance.test_shadow import ANN, NAME, Yard
from tests.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.kills, pytest.mark.timeout(900)]

HOOKS = "  {name}: {{topic: hooks, schema: inferred, staging: staging.hooks}}\n"
BEFORE = SOURCES + HOOKS.format(name="hooks")
AFTER = SOURCES.replace("orders: {", "sales: {staging: staging.orders, ") + HOOKS.format(name="calls")


@pytest.fixture
def yard(tmp_path):
    with Children() as children:
        # The stream reads the registry when it starts: it does not follow the rename by itself.
        plant = Plant(tmp_path / "home", children, folder=tmp_path)
        plant.environment["REFEED_REGISTRY_POLL_SECONDS"] = "3600"
        plant.ids["staging.hooks"] = set()
        plant.publish_schema(sources=BEFORE)
        plant.attach("orders", "members", "hooks")
        attach(plant, "orders", "members", "hooks")
        with closing(open_store(plant.settings.job_store)) as store:
            yield Yard(plant, store)


def test_a_pipeline_goes_on_with_renamed_sources_and_each_message_is_staged_once(yard):
    plant, updates = yard.plant, UpdateService(yard.store)
    agent = plant.start_agent()
    yard.launch()
    yard.send(60)
    plant.send("staging.hooks", b'{"n": 1, "at": "2026-01-02T03:04:05Z"}')
    yard.wait_until_staged()
    plant.publish_schema(sources=AFTER)

    request = UpdateRequest(None, {}, {}, validate_seconds=5, min_messages=20)
    refused = updates.create(NAME, request, principal=ANN)
    wait_until(lambda: yard.rollout.state.is_ended, seconds=120, why=f"it is checked: {yard.logs()}")
    assert (yard.rollout.id, yard.rollout.state) == (refused.id, UpdateState.REFUSED)

    mapped = replace(request, mapping={"orders": "sales", "hooks": "calls"})
    updates.create(NAME, mapped, principal=ANN)

    def is_over():
        # Messages come while the stream goes from one process to the other.
        yard.send(5)
        return yard.rollout.state.is_ended

    wait_until(is_over, seconds=300, every_seconds=0.5, why=f"{yard.rollout}: {yard.logs()}")
    assert yard.rollout.state is UpdateState.STABLE, f"{yard.rollout}: {yard.logs()}"
    plant.send("staging.hooks", b'{"n": 2.5, "at": "2026-01-03T03:04:05Z"}')
    yard.send(20)
    yard.wait_until_staged()

    plant.check()
    assert yard.store.get_stream(NAME).options["mapping"] == {"orders": "sales", "hooks": "calls"}
    assert {row["source"] for row in plant.rows("backup.dead_letters")} == {"orders", "sales"}
    assert agent.stop() == 0
