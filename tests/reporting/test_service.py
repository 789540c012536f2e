"""Merges as jobs; drivers are processes that only sleep, and the test says what they would have written."""

from datetime import UTC, datetime
from typing import Any

import pytest

from jobs.folder import Outcome
from jobs.store import JobStore
from model.entity import EntityRules, version_order
from model.errors import ForbiddenError, IdempotencyKeyReusedError, RequestInvalidError
from model.job import JobState
from model.principal import PLAN, READ, RUN, SCOPES, Principal
from model.settings import Settings, read_settings
from reporting.request import MergeRequest
from reporting.service import MergeService
from reporting.view import Merge, describe_failure, describe_report
from tests.backfill.conftest import FakeLauncher
from tests.reaching import watch_for
from tests.waiting import wait_until
from warehouse.merges import MergeReport, MergeSource
from warehouse.open import open_warehouse

ANN = Principal("ann", frozenset(SCOPES))
NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
MERGED = MergeReport("orders", None, NOW, changed=3, newer=2, partitions=(None,), rows_before=5, rows_after=7)


def source_named(name: str) -> MergeSource:
    """The source as a registry gives it to a merge."""
    rules = EntityRules(("id",), version_order((), "at"))
    return MergeSource(name, f"staging.{name}", f"reporting.{name}", rules)


class Yard:
    """A service, its launcher and its registry; the test ticks its supervisor."""

    def __init__(self, settings: Settings) -> None:
        self.launcher = FakeLauncher()
        self.sources: dict[str, MergeSource | None] = {
            "orders": source_named("orders"),
            "returns": source_named("returns"),
            "logs": None,
        }
        self.settings = settings
        self.stores: list[JobStore] = []
        self.service = self.open()

    def open(self) -> MergeService:
        """Open one more replica on the same home."""
        store = JobStore(self.settings.job_store)
        self.stores.append(store)
        return MergeService(
            self.settings,
            warehouse=open_warehouse(self.settings),
            store=store,
            launcher=self.launcher,
            sources=lambda: self.sources,
        )

    @property
    def supervisor(self) -> Any:
        return self.service._supervisor

    def create(self, source: str | None = None, **options: Any) -> Merge:
        return self.service.create(MergeRequest(source), principal=ANN, **options)

    def close(self) -> None:
        self.service.stop()
        self.service.join()
        for store in self.stores:
            store.close()
        self.launcher.end_all()


@pytest.fixture
def yard(tmp_path, monkeypatch):
    monkeypatch.setattr("jobs.supervisor._RESTART_WAITS_SECONDS", (0.0, 0.0, 0.0))
    yard = Yard(read_settings({"REFEED_HOME": str(tmp_path)}))
    yield yard
    yard.close()


@pytest.fixture
def reach(yard):
    def reach(merge_id, state):
        has_been = watch_for(yard.stores[0], merge_id, state)

        def has_it():
            yard.supervisor.tick()
            return has_been()

        wait_until(has_it, f"{merge_id} is {state}")
        return yard.service.get(merge_id, principal=ANN)

    return reach


def test_a_merge_is_of_every_source_with_a_key_and_runs_with_what_its_driver_has_to_know(yard, reach):
    made = yard.create()
    assert (made.state, made.source, made.created_by) == (JobState.PENDING, None, "ann")
    assert [(each.source, each.state) for each in made.sources] == [
        ("orders", "waiting"),
        ("returns", "waiting"),
    ]
    counts = ("changed", "newer", "without_key", "rows_before", "rows_after")
    assert {getattr(each, name) for each in made.sources for name in counts} == {0}
    reach(made.id, JobState.RUNNING)
    (launched,) = yard.launcher.launched
    assert launched.module == "reporting.job"
    specification = yard.supervisor.folder(made.id).read_specification()
    assert [each["staging"] for each in specification["sources"]] == ["staging.orders", "staging.returns"]


def test_what_its_driver_found_is_shown_and_in_the_history(yard, reach):
    made = yard.create()
    reach(made.id, JobState.RUNNING)
    folder = yard.supervisor.folder(made.id)
    folder.write_findings({"orders": describe_report(MERGED)})
    yard.supervisor.tick()
    half = yard.service.get(made.id, principal=ANN)
    assert half.progress.model_dump() == {
        "sources": 2,
        "merged": 1,
        "failed": 0,
        "changed": 3,
        "newer": 2,
        "without_key": 0,
    }
    failure = describe_failure("returns", "audit_failed", "a key has more than one row", [])
    folder.write_findings({"orders": describe_report(MERGED), "returns": failure})
    error = {"code": "audit_failed", "message": "returns: a key has more than one row"}
    folder.write_outcome(Outcome(1, JobState.FAILED, error))
    failed = reach(made.id, JobState.FAILED)
    assert [(each.source, each.state) for each in failed.sources] == [
        ("orders", "merged"),
        ("returns", "failed"),
    ]
    assert failed.error.code == "audit_failed"
    history = [(event.actor, event.what, event.why) for event in yard.service.watch(made.id, principal=ANN).events]
    assert ("driver", "orders merged", "orders: 3 keys read, 2 keys changed, 1 partition") in history
    assert ("driver", "returns failed", "returns: a key has more than one row") in history
    # A look that finds nothing new writes nothing.
    yard.supervisor.tick()
    assert yard.service.get(made.id, principal=ANN).etag == failed.etag


def test_of_several_merges_one_runs_at_a_time_in_their_order(yard, reach):
    first, second = yard.create("orders"), yard.create("orders")
    reach(first.id, JobState.RUNNING)
    for _ in range(5):
        yard.supervisor.tick()
    assert len(yard.launcher.launched) == 1
    yard.supervisor.folder(first.id).write_outcome(Outcome(1, JobState.SUCCEEDED))
    reach(second.id, JobState.RUNNING)
    assert yard.service.get(first.id, principal=ANN).state is JobState.SUCCEEDED


def test_the_same_key_makes_one_merge_and_leaves_nothing_of_the_second_call(yard, tmp_path):
    made = yard.create("orders", idempotency_key="k")
    assert yard.create("orders", idempotency_key="k").id == made.id
    assert [path.name for path in (tmp_path / "merge-jobs").iterdir()] == [made.id]
    with pytest.raises(IdempotencyKeyReusedError):
        yard.create("returns", idempotency_key="k")


@pytest.mark.parametrize(
    ("source", "code"), [("none", "source_unknown"), ("logs", "source_without_key"), (None, "nothing_to_merge")]
)
def test_what_can_not_be_merged_is_refused(yard, source, code):
    if source is None:
        yard.sources = {"logs": None}
    with pytest.raises(RequestInvalidError) as refused:
        yard.create(source)
    assert [(error["code"], error["pointer"]) for error in refused.value.details["errors"]] == [(code, "/source")]
    assert (code == "source_without_key") == ("REFEED_QUERY_TABLES" in str(refused.value))


def test_who_may_only_look_or_plan_can_not_merge(yard):
    reader, planner = Principal("r", frozenset({READ})), Principal("p", frozenset({PLAN}))
    runner = Principal("c", frozenset({RUN}))
    dry = yard.service.create(MergeRequest(is_dry_run=True), principal=planner)
    real = yard.service.create(MergeRequest(), principal=runner)
    calls = [
        lambda: yard.service.create(MergeRequest(is_dry_run=True), principal=reader),
        lambda: yard.service.create(MergeRequest(), principal=planner),
        lambda: yard.service.cancel(real.id, principal=planner),
        lambda: yard.service.cancel(dry.id, principal=reader),
        lambda: yard.service.get(real.id, principal=runner),
        lambda: yard.service.list_active(principal=runner),
    ]
    for call in calls:
        with pytest.raises(ForbiddenError):
            call()
    assert yard.service.cancel(dry.id, principal=planner).state is JobState.CANCELLED
    assert yard.service.get(real.id, principal=reader).state is JobState.PENDING
