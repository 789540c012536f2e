"""The check of a home's streams: its plan against the registry, as the wanted release reads it."""

import os
from socket import gethostname

import pytest

from jobs.store import JobStore
from model.errors import CheckpointCorruptError, RegistryError
from model.schema import RowSchema
from model.settings import read_settings
from model.stream_options import StreamKind
from model.stream_record import StreamHome
from pipeline.plan import GroupPlan, PlanFile, SourcePlan
from pipeline.registry import Registry
from rollout.check import Remedy
from rollout.checking import UpdateChecker
from rollout.releases import Releases
from warehouse.open import open_warehouse

SOURCES = """
sources:
  orders: {topic: orders, schema: inferred}
  members: {topic: members, schema: inferred}
"""
RENAMED = """
sources:
  sales: {topic: orders, schema: inferred, staging: staging.orders}
  members: {topic: members, schema: inferred}
"""


class House:
    """A home with the records of a backup and a pipeline, and the plan of what the pipeline runs."""

    def __init__(self, home):
        self.home = home
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("REFEED_", "PUBSUB_"))},
            "REFEED_HOME": str(home),
        }
        self.releases = Releases(home)
        self.state = home / "streams" / "pipeline-default"
        self.state.mkdir(parents=True)
        self.publish(SOURCES)
        warehouse = open_warehouse(self.settings())
        tables = warehouse.open_row_tables(stream="s", lease="l")
        writer = tables.open("staging.orders").writer(RowSchema(()))
        plans = tuple(SourcePlan(each, writer) for each in Registry(self.settings().registry).read().sources)
        PlanFile(self.state / "plan.json", warehouse).write(GroupPlan(plans, "backup.dead_letters", writer, 1000))

    def settings(self, **changes):
        return read_settings({**self.environment, **changes})

    def publish(self, sources):
        (self.home / "registry").mkdir(exist_ok=True)
        (self.home / "registry" / "sources.yaml").write_text(sources)

    def record(self, name, kind):
        store = JobStore(self.settings().job_store)
        try:
            return store.launch_stream(name, kind, actor="test", options={})
        finally:
            store.close()

    def check(self, record, **given):
        settings = self.settings(**given.pop("settings", {}))
        checker = UpdateChecker(settings, self.releases, open_warehouse(settings), self.environment)
        return checker.check(record, **{"release": None, "options": {}, "mapping": {}, **given})


@pytest.fixture
def house(tmp_path):
    return House(tmp_path / "home")


def test_a_group_is_compared_with_the_registry_as_the_release_reads_it(house):
    record = house.record("pipeline-default", StreamKind.PIPELINE)
    assert house.check(record).to_json() == {
        "passes": True,
        "reasons": [],
        "changes": [],
        "has_way_back": True,
        "no_way_back": [],
    }

    house.publish(RENAMED)
    assert [reason.code for reason in house.check(record).reasons] == ["source_renamed"]
    mapped = house.check(record, mapping={"orders": "sales"}, options={"slots": 3})
    assert mapped.reasons == ()
    *changes, reporting = mapped.changes
    slots, orders = "slots changes from the deployment's setting to 3", "orders becomes sales"
    assert [changes[0], changes[-1]] == [slots, orders]
    assert "the 3 tasks of a batch run in 2 rounds" in changes[1]
    assert reporting.endswith("To keep the merged rows, write 'reporting: reporting.orders' in the registry")

    house.publish("sources: 3")
    # Every fault of it, not how many there are.
    with pytest.raises(RegistryError, match=r"has 1 fault\. sources\.yaml\.sources: "):
        house.check(record)


def test_a_stream_that_can_t_stand_by_is_not_updated_and_the_check_says_what_to_do(house):
    result = house.check(house.record("kinesis-clicks", StreamKind.KINESIS))
    (reason,) = result.reasons
    assert (reason.code, reason.about, reason.remedy) == ("kind_has_no_standby", "kind", Remedy.DRAIN_AND_RELAUNCH)
    assert (
        reason.message == "A kinesis stream can't have a standby process, so it can only be updated by a restart."
    )


def test_tables_and_a_home_elsewhere_are_reasons(house):
    record = house.record("backup", StreamKind.BACKUP)
    assert house.check(record).passes
    here = house.home / "streams" / "backup"
    store = JobStore(house.settings().job_store)
    store.take_streams("agent", limit=1, lease_seconds=60)
    for host, path, codes in (
        (gethostname(), here, []),
        ("elsewhere", here, ["home_changed"]),
        (gethostname(), house.home / "other", ["home_changed"]),
    ):
        home = StreamHome(host, str(path))
        moved = store.report_stream("backup", "agent", record.state, home=home)
        assert [reason.code for reason in house.check(moved).reasons] == codes
    # Another machine's folder, which lies in the home that this one shares with it.
    shared = store.report_stream(
        "backup", "agent", record.state, instance_id="in_1", home=StreamHome("elsewhere", str(here))
    )
    assert [reason.code for reason in house.check(shared).reasons] == ["home_changed"]
    (here / "instances" / "in_1").mkdir(parents=True)
    assert house.check(shared).passes
    store.close()


def test_a_plan_of_tables_elsewhere_and_a_damaged_one_are_told(house, tmp_path):
    record = house.record("pipeline-default", StreamKind.PIPELINE)
    moved = house.check(record, settings={"REFEED_LAKE": str(tmp_path / "pond")})
    assert [reason.code for reason in moved.reasons] == ["lake_changed"]
    (house.state / "plan.json").write_text("{")
    with pytest.raises(CheckpointCorruptError):
        house.check(record)
