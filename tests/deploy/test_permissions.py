"""The roles of docs/iam.md and of Terraform are those that the recorded calls of each component need."""

import uuid
from functools import partial

import grpc
import pytest

from connectors.pubsub import channel as pubsub_channel
from connectors.pubsub.client import PubSub
from local.server import PubSubServer
from tests.deploy.components import (
    create_backfill,
    look_around,
    refeed,
    revert,
    run_backup,
    run_collector,
    run_driver,
    run_merge,
    run_pipeline,
    stage,
)
from tests.deploy.grants import check, in_terraform, on_the_page, table
from tests.deploy.permissions import CALLS, ROLES, granted
from tests.deploy.recorded_calls import Recorder, World, documented_calls

pytestmark = pytest.mark.timeout(300)

SOURCES = b"sources:\n  orders: {topic: orders, schema: inferred}\n"


@pytest.fixture
def recorder(monkeypatch):
    """What calls Pub/Sub from this process, from before its channels are opened."""
    recorder = Recorder()
    plain = grpc.insecure_channel
    monkeypatch.setattr(
        pubsub_channel.grpc,
        "insecure_channel",
        lambda *given, **more: grpc.intercept_channel(plain(*given, **more), recorder),
    )
    pubsub_channel.process_channel.cache_clear()
    return recorder


@pytest.fixture
def world(shared_standin, tmp_path, recorder):
    project = f"p{uuid.uuid4().hex[:12]}"
    with PubSubServer(tmp_path / "pubsub") as server:
        yield World(shared_standin, server, tmp_path, project, recorder)
    pubsub_channel.process_channel.cache_clear()


def test_the_page_and_terraform_grant_the_same():
    for component in ("backup", "pipeline", "agent", "api", "collector"):
        name = {"pipeline": "`refeed pipeline run`"}.get(component, f"`refeed {component}`")
        assert on_the_page(name) == in_terraform(component), component


def test_an_agent_has_what_its_streams_and_their_snapshots_need():
    snapshots = "`refeed agent` and `refeed up` for snapshots of streams and rollbacks"
    by_hand = on_the_page(f"{snapshots}; `refeed backup snapshot`, `restore`, `forget`")
    needed = granted(in_terraform("backup") | in_terraform("pipeline") | by_hand)
    check(needed, in_terraform("agent"))


def test_init_needs_what_the_page_says(world, monkeypatch):
    needed = world.needs(partial(refeed, world, monkeypatch, "init"))
    check(needed, on_the_page("`refeed init`"))


def test_attaching_needs_what_the_page_says(world, monkeypatch):
    with PubSub(world.project, world.server.emulator_host) as pubsub:
        pubsub.create_topic("orders")

    def act():
        refeed(world, monkeypatch, "attach", "orders")
        refeed(world, monkeypatch, "detach", "orders", "--yes")

    check(world.needs(act), on_the_page("`refeed attach`, `detach`"))


def test_snapshots_need_what_the_page_says(world, monkeypatch):
    world.prepare()

    def act():
        for command in (("snapshot", "one"), ("snapshots",), ("restore", "one", "--yes"), ("forget", "one")):
            refeed(world, monkeypatch, "backup", *command)

    streams = "`refeed agent` and `refeed up` for snapshots of streams and rollbacks"
    check(world.needs(act), on_the_page(f"{streams}; `refeed backup snapshot`, `restore`, `forget`"))


def test_the_backup_needs_what_terraform_grants(world):
    world.prepare()
    world.publish(b"one", b"two")
    check(world.needs(partial(run_backup, world)), in_terraform("backup"))


def test_the_pipeline_needs_what_terraform_grants(world):
    world.prepare()
    (world.folder / "registry").mkdir()
    (world.folder / "registry" / "sources.yaml").write_bytes(SOURCES)
    needed = world.needs(partial(run_pipeline, world))
    # What publishes is the test.
    check(needed - {("topic", "pubsub.topics.publish")}, in_terraform("pipeline"))


def test_a_collector_needs_what_terraform_grants(world):
    with PubSub(world.project, world.server.emulator_host) as pubsub:
        pubsub.create_topic("orders")
        pubsub.create_subscription("reader", "orders")
        needed = world.needs(partial(run_collector, world, pubsub))
    check(needed, in_terraform("collector"))


def test_backfills_and_merges_need_what_is_granted_to_the_api_to_drivers_and_by_hand(world):
    """One test, because it takes the stand-in seconds to run each of them."""
    world.prepare()
    world.publish(b"one", b"two")
    run_backup(world)
    source = stage(world)
    created = []
    service = world.needs(lambda: created.append(create_backfill(world)))
    driver = world.needs(partial(run_driver, world, created[0]))
    merge = world.needs(partial(run_merge, world, source))
    looks = world.needs(partial(look_around, world))
    verification = world.needs(partial(revert, world, source))

    check(merge, on_the_page("`refeed merge`"))
    check(driver | merge, on_the_page("the drivers' account (`REFEED_DATAPROC_SERVICE_ACCOUNT`)"))
    check(service | driver | merge | looks | verification, in_terraform("api"))


def test_a_query_needs_what_the_page_says(world, monkeypatch):
    world.prepare()
    query = "SELECT COUNT(*) AS n FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01'"
    check(world.needs(partial(refeed, world, monkeypatch, "query", query)), on_the_page("`refeed query`"))


def test_every_call_of_bigquery_s_table_is_one_that_a_stand_in_knows():
    assert documented_calls() - {"call"} <= CALLS.keys()


def test_every_role_of_the_page_that_is_google_s_data_s_is_in_the_table():
    named = {role for grants in table().values() for _, role in grants}
    data = {role for role in named if role.startswith(("roles/bigquery.", "roles/pubsub.", "roles/monitoring."))}
    assert data <= ROLES.keys()
