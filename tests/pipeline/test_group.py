import time
from collections.abc import Mapping
from functools import partial
from threading import Lock, Thread

import pytest

from connectors.lake.rows import LakeRowTable
from connectors.pubsub.client import PubSub
from local.server import PubSubServer
from model.errors import CheckpointCorruptError
from model.message import replay_filter, replay_token
from pipeline.group import Group
from pipeline.inferred import Variation
from pipeline.plan import PlanFile
from pipeline.registry import Registry
from pipeline.shapes import read_shape
from streams.status import StatusFile
from tests.pipeline.conftest import compile_protos
from warehouse.lake.warehouse import LakeWarehouse

SOURCES = "sources:\n  orders: {topic: orders, message: shop.Order, key: id}\n"
PROTO = 'syntax = "proto3";\npackage shop;\nmessage Order { %s }\n'


class Committer:
    def __init__(self) -> None:
        self.lock = Lock()
        self.taken: list[str] = []

    def take(self, name: str) -> None:
        self.taken.append(name)


class Deployment:
    """A registry that is changed, a lake, a Pub/Sub server, and groups that follow."""

    def __init__(self, folder, pubsub: PubSub) -> None:
        self.folder = folder
        self.pubsub = pubsub
        self.registry = Registry(str(folder / "registry"))
        self.warehouse = LakeWarehouse(
            str(folder / "lake"), "backup.messages", "backup.dead_letters", "day", "1GB"
        )
        self.plan_file = PlanFile(folder / "plan.json", self.warehouse)
        self.open_table = partial(LakeRowTable, str(folder / "lake"))
        self.committer = Committer()
        self.is_embedded = True

    def publish(self, fields: str, sources: str = SOURCES) -> None:
        (self.folder / "shop.proto").write_text(PROTO % fields)
        self.registry.publish(
            {"shop.desc": compile_protos(self.folder, "shop.proto"), "sources.yaml": sources.encode()}
        )

    def start(self, mapping: Mapping[str, str] | None = None) -> Group:
        group = Group(
            "default",
            registry=self.registry,
            plan_file=self.plan_file,
            tables=self.warehouse.open_row_tables(stream="s", lease="l"),
            pubsub=self.pubsub,
            is_embedded=self.is_embedded,
            ack_deadline_seconds=10,
            dead_letter_table="backup.dead_letters",
            max_bytes=1000,
            status=StatusFile(self.folder / "status.json"),
            secret="secret",
            mapping=mapping,
        )
        group.start()
        self.group = group
        self.follow()
        return group

    def follow(self, *published: str) -> None:
        """Publish what is given, and let the newest group follow."""
        if published:
            self.publish(*published)
        self.group.follow(self.committer)

    def columns(self) -> list[str]:
        schema = self.open_table("staging.orders").schema()
        return [] if schema is None else [name for name in schema.names() if not name.startswith(("_", "ingest"))]

    def planned(self) -> list[str]:
        """Return what the plan's source has for columns of its own."""
        plan = self.plan_file.read()
        names = [name for found in plan.sources for name in found.source.row_schema.names()]
        return [name for name in names if not name.startswith(("_", "ingest"))]

    def alerts(self) -> dict[str, str]:
        status = StatusFile.read(self.folder / "status.json")
        assert len(status["subscriptions"]) == len(status["running"])
        return {alert["about"]: alert["code"] for alert in status["alerts"]}


@pytest.fixture
def deployment(tmp_path):
    with PubSubServer(tmp_path / "pubsub") as server, PubSub("shop", server.emulator_host) as pubsub:
        yield Deployment(tmp_path, pubsub)


def test_a_source_gets_both_its_subscriptions_its_table_and_its_place_in_the_plan(deployment):
    deployment.publish("int64 id = 1;")
    deployment.start()
    backup, pipeline = deployment.pubsub.list_subscriptions("orders")
    assert (backup.id, pipeline.id) == ("refeed-backup.orders", "refeed-pipeline.orders")
    assert backup.filter == replay_filter(replay_token("secret", "orders"))
    assert deployment.columns() == deployment.planned() == ["id"]
    assert deployment.committer.taken == ["staging.orders"]
    assert deployment.alerts() == {}


@pytest.mark.parametrize("schema", ["message: shop.Order", "schema: inferred, staging: staging.orders"])
def test_the_plan_keeps_when_a_source_was_attached_and_not_that_of_a_subscription_that_was_there(
    deployment, schema
):
    sources = f"sources:\n  orders: {{topic: orders, group: default, {schema}}}\n"
    deployment.publish("int64 id = 1;", sources)
    before = time.time()
    deployment.start()
    (first,) = deployment.plan_file.read().sources
    assert before <= first.attached_at <= time.time()
    deployment.publish("int64 id = 1; string name = 2;", sources)
    deployment.start()
    assert [found.attached_at for found in deployment.plan_file.read().sources] == [first.attached_at]
    # Another home has no plan, and does not know.
    deployment.plan_file.path.unlink()
    deployment.start()
    assert [found.attached_at for found in deployment.plan_file.read().sources] == [None]


def test_a_new_field_and_a_new_source_are_taken_up_without_a_restart(deployment):
    deployment.publish("int64 id = 1;")
    deployment.start()
    version = deployment.open_table("staging.orders").version()
    deployment.follow()
    assert deployment.open_table("staging.orders").version() == version
    deployment.follow("int64 id = 1; string name = 2;", f"{SOURCES}  more: {{topic: more, message: shop.Order}}\n")
    assert deployment.columns() == ["id", "name"]
    assert deployment.planned() == ["id", "name", "id", "name"]
    deployment.follow("int64 id = 1; string name = 2;")
    assert deployment.planned() == ["id", "name"]


def test_a_schema_that_is_refused_is_an_alert_and_the_old_one_goes_on_also_over_a_restart(deployment):
    deployment.publish("int64 id = 1; string name = 2;")
    deployment.start()
    deployment.follow("int64 id = 1;")
    assert deployment.alerts() == {"orders": "evolution_refused"}
    assert deployment.planned() == ["id", "name"]
    deployment.start()
    assert deployment.alerts() == {"orders": "evolution_refused"}
    assert deployment.planned() == ["id", "name"]
    deployment.publish("int64 id = 1; string name = 2; bool late = 3;")
    deployment.start()
    assert (deployment.alerts(), deployment.planned()) == ({}, ["id", "name", "late"])


def test_a_registry_that_can_t_be_read_changes_nothing_and_is_an_alert_until_it_is_mended(deployment):
    deployment.publish("int64 id = 1;")
    deployment.start()
    deployment.registry.publish({"sources.yaml": b"sources: ["})
    deployment.follow()
    assert (deployment.alerts(), deployment.planned()) == ({"registry": "registry_invalid"}, ["id"])
    deployment.follow("int64 id = 1;")
    assert deployment.alerts() == {}


def test_a_source_whose_entry_breaks_goes_on_as_before_and_the_others_change(deployment):
    more = f"{SOURCES}  more: {{topic: more, message: shop.Order}}\n"
    deployment.publish("int64 id = 1;", more)
    deployment.start()
    assert deployment.planned() == ["id", "id"]
    deployment.follow("int64 id = 1; string name = 2;", more.replace("key: id", "key: nope"))
    assert deployment.alerts() == {"orders": "registry_invalid"}
    # more has the new field, orders goes on without it; also over a restart.
    assert deployment.planned() == ["id", "name", "id"]
    deployment.start()
    assert deployment.planned() == ["id", "name", "id"]
    deployment.follow("int64 id = 1; string name = 2;", more)
    assert (deployment.alerts(), deployment.planned()) == ({}, ["id", "name", "id", "name"])


def test_a_new_source_waits_while_a_broken_one_uses_its_subscription(deployment):
    deployment.publish("int64 id = 1;")
    deployment.start()
    renamed = (
        f"{SOURCES.replace('key: id', 'key: nope')}  renamed: {{topic: orders, message: shop.Order, key: id}}\n"
    )
    deployment.follow("int64 id = 1;", renamed)
    assert deployment.alerts() == {"orders": "registry_invalid", "renamed": "registry_invalid"}
    assert deployment.planned() == ["id"]


def test_a_refused_source_does_not_go_on_with_a_subscription_that_is_another_s_now(deployment):
    deployment.publish("int64 id = 1;")
    deployment.start()
    first = "sources:\n  first: {topic: orders, message: shop.Order, staging: staging.first}\n"
    moved = f"{first}  orders: {{topic: elsewhere, message: shop.Order, staging: backup.dead_letters}}\n"
    deployment.follow("int64 id = 1;", moved)
    assert deployment.alerts() == {"orders": "evolution_refused"}
    assert [found.source.name for found in deployment.plan_file.read().sources] == ["first"]


@pytest.mark.parametrize("name", ["early", "late"])
def test_no_source_gets_the_table_of_another_one_s_type_of_event(deployment, name):
    hooks = "  hooks: {topic: hooks, schema: inferred, event_type_attribute: event}\n"
    deployment.publish("int64 id = 1;", f"sources:\n{hooks}")
    group = deployment.start()
    group.learn(deployment.committer, [Variation("hooks", "push", "1", read_shape({"id": 1}))])
    other = f"  {name}: {{topic: orders, message: shop.Order, staging: staging.Hooks_push}}\n"
    both = f"{other}{hooks}" if name == "early" else f"{hooks}{other}"
    deployment.follow("int64 id = 1;", f"sources:\n{both}")
    assert deployment.alerts() == {name: "registry_invalid"}
    assert [found.source.name for found in deployment.plan_file.read().sources] == ["hooks"]
    deployment.follow("int64 id = 1;", f"sources:\n{other}")
    deployment.follow()
    assert deployment.alerts() == {}


def test_no_type_of_event_gets_a_table_of_a_source_in_another_group(deployment):
    hooks = "  hooks: {topic: hooks, schema: inferred, event_type_attribute: event}\n"
    other = "{topic: orders, message: shop.Order, staging: staging.hooks_push, reporting: staging.hooks_pull}"
    deployment.publish("int64 id = 1;", f"sources:\n{hooks}  orders: {other[:-1]}, group: other}}\n")
    group = deployment.start()
    for name in ("push", "pull"):
        group.learn(deployment.committer, [Variation("hooks", name, name, read_shape({"id": 1}))])
    plan = deployment.plan_file.read()
    tables = [kind.table for found in plan.sources for kind in found.types]
    assert tables == ["staging.hooks_push_2", "staging.hooks_pull_2"]


def test_one_source_s_fault_keeps_no_other_from_running_and_is_over_once_it_is_not_listed(deployment):
    broken = f"{SOURCES}  taken: {{topic: taken, message: shop.Order, staging: backup.dead_letters}}\n"
    deployment.publish("int64 id = 1;", broken)
    deployment.start()
    assert (deployment.alerts(), deployment.planned()) == ({"taken": "evolution_refused"}, ["id"])
    deployment.follow("int64 id = 1;")
    assert deployment.alerts() == {}


def test_a_plan_that_this_version_can_t_use_stops_its_own_source_alone(deployment, monkeypatch):
    fields = "int64 id = 1; Part part = 2; message Part { int64 x = 1; }"
    deployment.publish(fields, f"{SOURCES}  hooks: {{topic: hooks, schema: inferred}}\n")
    deployment.start()
    monkeypatch.setattr("pipeline.mapping.MAX_COLUMNS", 0)
    deployment.start()
    assert deployment.alerts() == {"orders": "registry_invalid"}
    assert [found.source.name for found in deployment.plan_file.read().sources] == ["hooks"]


def test_a_damaged_plan_says_what_to_do(deployment):
    deployment.publish("int64 id = 1;")
    deployment.start()
    deployment.plan_file.path.write_text("{")
    with pytest.raises(CheckpointCorruptError, match="Delete the file"):
        deployment.start()


def test_a_source_that_was_renamed_goes_on_with_the_schema_that_it_had(deployment):
    deployment.publish("int64 id = 1; string note = 2;")
    deployment.start()
    renamed = "sources:\n  sales: {topic: orders, message: shop.Order, key: id, staging: staging.orders}\n"
    # The new schema drops a column, which is refused.
    deployment.publish("int64 id = 1;", renamed)
    for _ in range(2):
        deployment.start({"orders": "sales"})
        assert deployment.alerts() == {"sales": "evolution_refused"}
        assert deployment.planned() == ["id", "note"]
        assert [found.source.name for found in deployment.plan_file.read().sources] == ["sales"]


def test_a_topic_that_rows_are_published_to_exists_before_the_source_is_taken_up(deployment):
    deployment.is_embedded = False
    for topic in ("orders", "rows"):
        deployment.pubsub.create_topic(topic)
    deployment.pubsub.delete_topic("rows")
    deployment.publish("int64 id = 1;", SOURCES.replace("key: id", "key: id, publish: rows"))
    deployment.start()
    assert (deployment.alerts(), deployment.planned()) == ({"orders": "topic_not_found"}, [])
    deployment.pubsub.create_topic("rows")
    deployment.follow()
    assert (deployment.alerts(), deployment.planned()) == ({}, ["id"])


def test_a_local_server_gets_the_topic_that_rows_are_published_to(deployment):
    deployment.publish("int64 id = 1;", SOURCES.replace("key: id", "key: id, publish: rows"))
    deployment.start()
    assert deployment.pubsub.topic_exists("rows")
    (plan,) = deployment.plan_file.read().sources
    assert plan.source.publish == "rows"


def test_a_plan_that_a_full_disk_does_not_take_is_written_as_soon_as_there_is_room(deployment):
    deployment.publish("int64 id = 1;")
    deployment.start()
    in_the_way = deployment.folder / "plan.tmp"
    in_the_way.mkdir()
    deployment.publish("int64 id = 1; string name = 2;")
    for _ in range(2):
        deployment.follow()
        assert deployment.alerts() == {"plan.json": "storage_full"}
    assert deployment.planned() == ["id"]
    in_the_way.rmdir()
    deployment.follow()
    assert (deployment.planned(), deployment.alerts()) == (["id", "name"], {})


def test_tasks_are_told_of_the_newest_messages_whose_rows_pubsub_refused(deployment):
    deployment.publish("int64 id = 1;")
    group = deployment.start()
    group.refuse("staging.orders", {str(number): "too wide" for number in range(1001)})
    group.refuse("staging.orders", {"x": "no such field"})
    refused = deployment.plan_file.read().refused["staging.orders"]
    assert (len(refused), refused["x"], refused["1000"]) == (1000, "no such field", "too wide")
    assert "1" not in refused


def test_messages_whose_rows_pubsub_refused_are_told_of_later_where_the_disk_is_full(deployment):
    deployment.publish("int64 id = 1;")
    group = deployment.start()
    in_the_way = deployment.folder / "plan.tmp"
    in_the_way.mkdir()
    group.refuse("staging.orders", {"1": "too wide"})
    in_the_way.rmdir()
    group.refuse("staging.orders", {"1": "too wide"})
    assert deployment.plan_file.read().refused["staging.orders"] == {"1": "too wide"}


def test_a_commit_whose_rows_pubsub_refuses_does_not_wait_for_the_registry_that_waits_for_it(deployment):
    deployment.publish("int64 id = 1;")
    group = deployment.start()
    deployment.publish("int64 id = 1; string name = 2;")
    # A commit publishes while it keeps the tables as they are.
    with deployment.committer.lock:
        follower = Thread(target=group.follow, args=(deployment.committer,), daemon=True)
        follower.start()
        while group._lock.acquire(blocking=False):
            group._lock.release()
            time.sleep(0.01)
        refuser = Thread(target=group.refuse, args=("staging.orders", {"1": "too wide"}), daemon=True)
        refuser.start()
        refuser.join(10)
        assert not refuser.is_alive(), "neither goes on"
    follower.join(30)
    assert deployment.planned() == ["id", "name"]
    assert deployment.plan_file.read().refused["staging.orders"] == {"1": "too wide"}


def test_a_topic_that_was_detached_and_a_backup_that_is_there_are_left_as_they_are(deployment):
    for topic in ("orders", "more"):
        deployment.pubsub.create_topic(topic)
    # Somebody made the one of another filter, and took the other away.
    deployment.pubsub.attach_backup("more", token="another's", ack_deadline_seconds=60)
    deployment.pubsub.create_subscription("refeed-pipeline.orders", "orders", ack_deadline_seconds=10)
    deployment.publish("int64 id = 1;", f"{SOURCES}  more: {{topic: more, message: shop.Order}}\n")
    deployment.start()
    found = {subscription.id: subscription for subscription in deployment.pubsub.list_subscriptions()}
    assert found.keys() == {"refeed-pipeline.orders", "refeed-pipeline.more", "refeed-backup.more"}
    assert found["refeed-backup.more"].filter == replay_filter("another's")
    assert deployment.alerts() == {}
