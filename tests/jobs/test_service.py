"""A kind of job that the product does not have: a request, a view and a driver are all that it takes."""

import json
from dataclasses import dataclass

import pytest

from jobs.collection import JobCollection
from jobs.driver import run_driver
from jobs.folder import Outcome
from jobs.inbox_items import InboxItem, error_message
from jobs.kinds import JobKind
from jobs.listing import ListRequest
from jobs.notify import describe_news
from jobs.service import JobService
from jobs.store import Idempotency, JobFilter
from jobs.supervisor import JobSupervisor
from model.errors import (
    ForbiddenError,
    IdempotencyInProgressError,
    JobChangedError,
    JobNotFoundError,
    JobStateError,
    RequestInvalidError,
    StoreUnavailableError,
)
from model.job import JobState, new_job_id
from model.principal import READ, RUN, Principal
from model.process import Process
from tests import reaching
from tests.worlds.launchers import IdleLauncher

ANN = Principal("ann", frozenset({READ, RUN}))
READER = Principal("reader", frozenset({READ}))
# One that is not here: nothing is ever signalled.
DRIVER = Process(1, 1, "another machine")


@dataclass(frozen=True)
class Sum:
    """A job that adds numbers, as people see it."""

    id: str
    state: JobState
    numbers: list[int]
    etag: str

    @classmethod
    def from_job(cls, job):
        return cls(job.id, job.state, job.request["numbers"], f'"{job.version}"')

    def to_json(self):
        return {"id": self.id, "state": self.state.value, "numbers": self.numbers}


def run_sum(folder, epoch):
    numbers = folder.read_specification()["numbers"]
    if not numbers:
        return Outcome(epoch, JobState.FAILED, {"code": "nothing_selected", "message": "There is no number."})
    return Outcome(epoch, JobState.SUCCEEDED)


SUM = JobKind(
    name="sum",
    collection="sums",
    prefix="sm",
    folder="sums",
    module="tests.jobs.test_service",
    figures=lambda _folder: lambda _store, _job_id: None,
    describe=lambda job: {"numbers": len(job.request["numbers"])},
)


class SumService(JobService[Sum]):
    def create(self, numbers, *, principal, key=None):
        self._require(principal, None)
        idempotency = None if key is None else Idempotency(key, json.dumps(numbers))
        return self._create_once(
            idempotency,
            principal,
            lambda: self._insert(
                {"numbers": numbers},
                lambda _job_id: {"numbers": numbers},
                principal=principal,
                idempotency=idempotency,
            ),
        )

    def _show(self, job):
        return Sum.from_job(job)

    def _require(self, principal, job):
        principal.require(RUN)

    def _list_waiting(self):
        failed = self._store.list_jobs(JobFilter((JobState.FAILED,), kinds=(SUM.name,)), limit=9)
        return [
            InboxItem("failure", job.kind, job.id, job.state, None, job.created_by, None, error_message(job))
            for job in failed
        ]


class HereLauncher(IdleLauncher):
    """Runs each driver at once, in the thread that launches it, unless it is told to hold."""

    def __init__(self):
        self.holds = False

    def launch(self, launch):
        if not self.holds:
            run_driver(launch.argument, run_sum)
        return DRIVER


@pytest.fixture
def launcher():
    return HereLauncher()


@pytest.fixture
def supervisor(store, launcher, tmp_path):
    with reaching.ending(
        JobSupervisor(SUM, store, launcher, SUM.open_folders(tmp_path), max_running=2)
    ) as supervisor:
        yield supervisor


@pytest.fixture
def service(store, supervisor):
    return SumService(SUM, store, supervisor)


@pytest.fixture
def reach(supervisor, service, store):
    def reach(job_id, state):
        reaching.reach(supervisor, store, job_id, state)
        return service.get(job_id, principal=READER)

    return reach


def test_a_job_of_a_new_kind_is_created_run_listed_and_watched(service, reach, store):
    store.insert(new_job_id("bf"), "backfill", {}, actor="ann")
    made = service.create([1, 2], principal=ANN)
    assert made.id.startswith("sm_")
    done = reach(made.id, JobState.SUCCEEDED)
    succeeded = JobFilter((JobState.SUCCEEDED,), kinds=(SUM.name,))
    found, _, token = JobCollection(store, {"sm": service}).list_jobs(
        ListRequest(where=succeeded), principal=READER
    )
    assert (found, token) == ([done], None)
    assert service.list_active(principal=READER) == ([], [])
    changes = service.watch(made.id, principal=READER)
    assert changes.shown == done
    assert [event.what for event in changes.events] == ["created", "PENDING -> RUNNING", "RUNNING -> SUCCEEDED"]
    later = service.watch(made.id, principal=READER, after=changes.events[-2].number)
    assert later.events == [changes.events[-1]]
    assert service.read_log(made.id, principal=READER).is_last
    news = describe_news(store.get(made.id), SUM)
    assert (news["type"], news["data"]["numbers"], "topic" in news["data"]) == ("sum.succeeded", 2, False)
    with pytest.raises(JobStateError, match="has done everything"):
        service.retry(made.id, principal=ANN)


@pytest.mark.parametrize(("asked", "shown"), [(-1, 1), (0, 1), (1, 1), (2, 2), (3, 3), (9, 3)])
def test_a_page_has_as_many_jobs_as_are_asked_for_and_one_at_least(service, store, asked, shown):
    made = [service.create([number], principal=ANN).id for number in range(3)]
    found, _, token = JobCollection(store, {"sm": service}).list_jobs(
        ListRequest(page_size=asked), principal=READER
    )
    assert [job.id for job in found] == made[::-1][:shown]
    assert (token is None) == (shown == 3)


def test_a_job_of_a_new_kind_that_failed_waits_and_is_retried(service, reach):
    made = service.create([], principal=ANN)
    with pytest.raises(JobStateError, match="not ended yet"):
        service.retry(made.id, principal=ANN)
    failed = reach(made.id, JobState.FAILED)
    (item,) = service.list_inbox(principal=READER)
    assert (item.resource, item.id, item.message) == ("sum", made.id, "nothing_selected: There is no number.")
    with pytest.raises(JobChangedError):
        service.retry(made.id, principal=ANN, versions=[1])
    again = service.retry(made.id, principal=ANN, versions=[int(failed.etag.strip('"'))])
    assert again.state is JobState.PENDING
    reach(made.id, JobState.FAILED)


def test_a_job_of_a_new_kind_is_cancelled_before_and_while_it_runs(service, reach, launcher, supervisor):
    launcher.holds = True
    running = service.create([1], principal=ANN)
    reach(running.id, JobState.RUNNING)
    waiting = service.create([2], principal=ANN)
    assert service.cancel(waiting.id, principal=ANN).state is JobState.CANCELLED
    assert service.cancel(running.id, principal=ANN).state is JobState.CANCELLING
    assert service.cancel(running.id, principal=ANN).state is JobState.CANCELLING
    with pytest.raises(JobStateError, match="already ended"):
        service.cancel(waiting.id, principal=ANN)
    supervisor.tick()
    assert not supervisor.folder(running.id).may_go_on(1)


def test_a_key_makes_one_job_and_a_create_that_failed_lets_go_of_it(service, store, supervisor, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(store, "insert", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            service.create([1], principal=ANN, key="k")
    assert supervisor.folders.files.list() == []
    first = service.create([1], principal=ANN, key="k")
    assert service.create([1], principal=ANN, key="k") == first
    assert list(supervisor.folders.files.list()) == [first.id]
    store.begin_create(SUM.name, Idempotency("other", "[1]"), actor=ANN.name)
    with pytest.raises(IdempotencyInProgressError):
        service.create([1], principal=ANN, key="other")


def test_a_job_whose_insert_was_kept_and_not_answered_has_its_folder(service, store, reach, monkeypatch):
    """A database that fails over in a COMMIT answers nothing, and may have kept everything."""
    insert = store.insert

    def insert_unheard(*args, **options):
        insert(*args, **options)
        raise StoreUnavailableError("The job store does not answer.")

    with monkeypatch.context() as unheard:
        unheard.setattr(store, "insert", insert_unheard)
        with pytest.raises(StoreUnavailableError):
            service.create([1, 2], principal=ANN, key="k")
    made = service.create([1, 2], principal=ANN, key="k")
    assert reach(made.id, JobState.SUCCEEDED).numbers == [1, 2]


def test_a_service_shows_its_own_kind_and_what_a_caller_may_see(service, store):
    other = store.insert(new_job_id("bf"), "backfill", {}, actor="ann")
    for call in (service.get, service.watch, service.cancel, service.retry, service.read_log):
        with pytest.raises(JobNotFoundError, match="There is no sum"):
            call(other.id, principal=ANN)
    with pytest.raises(ForbiddenError):
        service.cancel("sm_nobody", principal=READER)
    jobs = JobCollection(store, {"sm": service})
    with pytest.raises(ForbiddenError):
        jobs.list_jobs(ListRequest(), principal=Principal("nobody", frozenset()))
    with pytest.raises(RequestInvalidError):
        jobs.list_jobs(ListRequest(order_by="colour"), principal=READER)
