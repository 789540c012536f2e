"""Merges as jobs; drivers are processes that only sleep, and the test says what they would have written."""

import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from jobs.folder import Order, Outcome
from jobs.listing import ListRequest
from jobs.store import JobFilter, JobStore
from model.entity import EntityRules, version_order
from model.errors import (
    ForbiddenError,
    IdempotencyKeyReusedError,
    JobChangedError,
    JobNotFoundError,
    JobStateError,
    RequestInvalidError,
)
from model.job import JobState, new_job_id
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
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yard]:
    monkeypatch.setattr("jobs.supervisor._RESTART_WAITS_SECONDS", (0.0, 0.0, 0.0))
    yard = Yard(read_settings({"REFEED_HOME": str(tmp_path)}))
    yield yard
    yard.close()


@pytest.fixture
def reach(yard: Yard) -> Callable[[str, JobState], Merge]:
    """Return what ticks until a merge has a state."""

    def reach(merge_id: str, state: JobState) -> Merge:
        has_been = watch_for(yard.stores[0], merge_id, state)

        def has_it() -> bool:
            yard.supervisor.tick()
            return has_been()

        wait_until(has_it, f"{merge_id} is {state}")
        return yard.service.get(merge_id, principal=ANN)

    return reach


def test_a_merge_is_of_every_source_with_a_key_and_runs_with_what_its_driver_has_to_know(
    yard: Yard, reach: Any
) -> None:
    made = yard.create()

    assert (made.state, made.source, made.created_by) == (JobState.PENDING, None, "ann")
    assert [(each["source"], each["state"]) for each in made.sources] == [
        ("orders", "waiting"),
        ("returns", "waiting"),
    ]
    reach(made.id, JobState.RUNNING)
    (launched,) = yard.launcher.launched
    assert launched.module == "reporting.job"
    specification = yard.supervisor.folder(made.id).read_specification()
    assert [each["staging"] for each in specification["sources"]] == ["staging.orders", "staging.returns"]


def test_what_its_driver_found_is_shown_and_in_the_history(yard: Yard, reach: Any) -> None:
    made = yard.create()
    reach(made.id, JobState.RUNNING)
    folder = yard.supervisor.folder(made.id)

    folder.write_findings({"orders": describe_report(MERGED)})
    yard.supervisor.tick()
    half = yard.service.get(made.id, principal=ANN)
    assert half.progress == {"sources": 2, "merged": 1, "failed": 0, "changed": 3, "newer": 2, "without_key": 0}

    failure = describe_failure("returns", "audit_failed", "a key is there twice", [])
    folder.write_findings({"orders": describe_report(MERGED), "returns": failure})
    error = {"code": "audit_failed", "message": "returns: a key is there twice"}
    folder.write_outcome(Outcome(1, JobState.FAILED, error))
    failed = reach(made.id, JobState.FAILED)

    assert [(each["source"], each["state"]) for each in failed.sources] == [
        ("orders", "merged"),
        ("returns", "failed"),
    ]
    assert failed.error is not None
    assert failed.error.code == "audit_failed"
    history = [(event.actor, event.what, event.why) for event in yard.service.list_events(made.id, principal=ANN)]
    assert ("driver", "orders merged", "orders: 3 keys staged, 2 newer, 1 partitions") in history
    assert ("driver", "returns failed", "returns: a key is there twice") in history
    # A look that finds nothing new writes nothing.
    yard.supervisor.tick()
    assert yard.service.get(made.id, principal=ANN).etag == failed.etag


def test_of_several_merges_one_runs_at_a_time_in_their_order(yard: Yard, reach: Any) -> None:
    first, second = yard.create("orders"), yard.create("orders")
    reach(first.id, JobState.RUNNING)
    for _ in range(5):
        yard.supervisor.tick()
    assert len(yard.launcher.launched) == 1

    yard.supervisor.folder(first.id).write_outcome(Outcome(1, JobState.SUCCEEDED))
    reach(second.id, JobState.RUNNING)
    assert yard.service.get(first.id, principal=ANN).state is JobState.SUCCEEDED


def test_the_same_key_makes_one_merge_and_leaves_nothing_of_the_second_call(yard: Yard, tmp_path: Path) -> None:
    made = yard.create("orders", idempotency_key="k")

    assert yard.create("orders", idempotency_key="k").id == made.id
    assert [path.name for path in (tmp_path / "merge-jobs").iterdir()] == [made.id]
    with pytest.raises(IdempotencyKeyReusedError):
        yard.create("returns", idempotency_key="k")


@pytest.mark.parametrize(
    ("source", "code"), [("none", "source_unknown"), ("logs", "source_without_key"), (None, "nothing_to_merge")]
)
def test_what_can_not_be_merged_is_refused(yard: Yard, source: str | None, code: str) -> None:
    if source is None:
        yard.sources = {"logs": None}

    with pytest.raises(RequestInvalidError) as refused:
        yard.create(source)
    assert [(error["code"], error["pointer"]) for error in refused.value.details["errors"]] == [(code, "/source")]


def test_who_may_only_look_or_plan_can_not_merge(yard: Yard) -> None:
    reader, planner = Principal("r", frozenset({READ})), Principal("p", frozenset({PLAN}))
    runner = Principal("c", frozenset({RUN}))
    dry = yard.service.create(MergeRequest(is_dry_run=True), principal=planner)
    real = yard.service.create(MergeRequest(), principal=runner)
    calls: list[Callable[[], object]] = [
        lambda: yard.service.create(MergeRequest(is_dry_run=True), principal=reader),
        lambda: yard.service.create(MergeRequest(), principal=planner),
        lambda: yard.service.cancel(real.id, principal=planner),
        lambda: yard.service.cancel(dry.id, principal=reader),
        lambda: yard.service.get(real.id, principal=runner),
        lambda: yard.service.list_jobs(principal=runner),
    ]
    for call in calls:
        with pytest.raises(ForbiddenError):
            call()
    assert yard.service.cancel(dry.id, principal=planner).state is JobState.CANCELLED
    assert yard.service.get(real.id, principal=reader).state is JobState.PENDING


def test_a_cancel_ends_one_that_waits_at_once_and_tells_one_that_runs(yard: Yard, reach: Any) -> None:
    running, waiting = yard.create(), yard.create()
    reach(running.id, JobState.RUNNING)

    assert yard.service.cancel(waiting.id, principal=ANN).state is JobState.CANCELLED
    assert yard.service.cancel(running.id, principal=ANN).state is JobState.CANCELLING
    assert yard.service.cancel(running.id, principal=ANN).state is JobState.CANCELLING, "twice is one"
    yard.supervisor.tick()
    folder = yard.supervisor.folder(running.id)
    assert folder.read_control().order is Order.STOP
    folder.write_outcome(Outcome(1, JobState.CANCELLED))
    reach(running.id, JobState.CANCELLED)
    with pytest.raises(JobStateError):
        yard.service.cancel(running.id, principal=ANN)


def test_a_retry_goes_on_with_the_same_folder_and_only_what_has_failed_can_be_retried(
    yard: Yard, reach: Any
) -> None:
    made = yard.create()
    with pytest.raises(JobStateError, match="not at its end"):
        yard.service.retry(made.id, principal=ANN)
    reach(made.id, JobState.RUNNING)
    folder = yard.supervisor.folder(made.id)
    folder.write_findings({"orders": describe_report(MERGED)})
    folder.write_outcome(Outcome(1, JobState.FAILED, {"code": "warehouse_error", "message": "away"}))
    failed = reach(made.id, JobState.FAILED)
    with pytest.raises(JobChangedError):
        yard.service.retry(made.id, principal=ANN, versions={1})

    retried = yard.service.retry(made.id, principal=ANN, versions={int(failed.etag.strip('"'))})
    assert (retried.state, retried.error) == (JobState.PENDING, None)
    reach(made.id, JobState.RUNNING)
    assert folder.read_findings().keys() == {"orders"}
    folder.write_outcome(Outcome(2, JobState.SUCCEEDED))
    reach(made.id, JobState.SUCCEEDED)
    with pytest.raises(JobStateError, match="merged everything"):
        yard.service.retry(made.id, principal=ANN)


def test_a_merge_whose_driver_is_killed_goes_on_with_another_one(yard: Yard, reach: Any) -> None:
    made = yard.create()
    reach(made.id, JobState.RUNNING)

    yard.launcher.drivers[0].signal_group(signal.SIGKILL)
    reach(made.id, JobState.PENDING)
    again = reach(made.id, JobState.RUNNING)

    assert (again.restarts, len(yard.launcher.launched)) == (1, 2)
    assert not yard.supervisor.folder(made.id).may_go_on(1)


def test_a_service_that_is_stopped_takes_its_driver_along_and_the_next_one_goes_on(yard: Yard, reach: Any) -> None:
    running, waiting, leaving = yard.create(), yard.create(), yard.create()
    reach(running.id, JobState.RUNNING)
    yard.service.cancel(leaving.id, principal=ANN)

    yard.service.stop(interrupt=True)
    yard.service.join()

    assert not yard.launcher.drivers[0].is_alive
    assert not yard.supervisor.folder(running.id).may_go_on(1)
    yard.service = yard.open()
    states = [yard.service.get(job_id, principal=ANN).state for job_id in (running.id, waiting.id, leaving.id)]
    assert states == [JobState.PENDING, JobState.PENDING, JobState.CANCELLED]
    again = reach(running.id, JobState.RUNNING)
    assert (again.restarts, len(yard.launcher.launched)) == (0, 2)


def test_a_merge_on_its_way_to_its_end_has_ended_when_its_service_stops(yard: Yard, reach: Any) -> None:
    made = yard.create()
    reach(made.id, JobState.RUNNING)
    yard.service.cancel(made.id, principal=ANN)

    yard.service.stop(interrupt=True)

    assert yard.service.get(made.id, principal=ANN).state is JobState.CANCELLED
    assert not yard.launcher.drivers[0].is_alive


def test_a_backfill_is_no_merge(yard: Yard) -> None:
    store = JobStore(yard.settings.job_store)
    other = store.insert(new_job_id("bf"), "backfill", {}, actor="ann").id
    store.close()
    for call in (yard.service.get, yard.service.cancel, yard.service.retry, yard.service.list_events):
        with pytest.raises(JobNotFoundError):
            call(other, principal=ANN)
    assert yard.service.list_jobs(principal=ANN).jobs == []


def test_merges_are_listed_newest_first_by_page_and_filter(yard: Yard) -> None:
    made = [yard.create().id for _ in range(3)]
    yard.service.cancel(made[0], principal=ANN)

    page = yard.service.list_jobs(ListRequest(page_size=2), principal=ANN)
    assert [merge.id for merge in page.jobs] == [made[2], made[1]]
    rest = yard.service.list_jobs(ListRequest(2, page.next_page_token), principal=ANN)
    assert ([merge.id for merge in rest.jobs], rest.next_page_token) == ([made[0]], None)
    cancelled = ListRequest(where=JobFilter(states=(JobState.CANCELLED,)))
    found = yard.service.list_jobs(cancelled, principal=ANN).jobs
    assert [merge.id for merge in found] == [made[0]]


def test_a_registry_with_nothing_to_merge_makes_no_merge(yard: Yard) -> None:
    yard.sources = {"logs": None}
    with pytest.raises(RequestInvalidError, match="nothing to merge"):
        yard.create()
    assert yard.service.list_jobs(principal=ANN).jobs == []


def test_the_log_of_a_merge_is_its_drivers(yard: Yard, reach: Any) -> None:
    made = yard.create()
    assert yard.service.read_log(made.id, principal=ANN).content == b""
    reach(made.id, JobState.RUNNING)
    yard.supervisor.folder(made.id).driver_log.write_text("first\nsecond\n")
    piece = yard.service.read_log(made.id, principal=ANN, tail_bytes=9)
    assert (piece.content, piece.is_last) == (b"second\n", False)
    assert yard.service.read_log_from(made.id, 6, principal=ANN).content == b"second\n"
