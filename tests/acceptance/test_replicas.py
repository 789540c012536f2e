"""Two replicas on one PostgreSQL: no job is launched twice, and none is lost with the replica that had it."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from cli.processes import free_port, is_listening
from connectors.pubsub.client import PubSub
from jobs.folder import JobFolder
from jobs.lease_owner import LeaseOwner
from jobs.store import Job, JobFilter, JobStore, open_store
from model.job import JobState, new_job_id
from model.settings import read_settings
from rollout.child import Child, Children
from tests.worlds.processes import plain_environment, start_pubsub

pytestmark = pytest.mark.kills

KIND = "backfill"
SERVE = (
    "import os, sys, uvicorn; from app.service import create_app; from model.settings import read_settings; "
    "uvicorn.run(create_app(read_settings(os.environ)), host='127.0.0.1', port=int(sys.argv[1]))"
)
SCRIPT = Path(__file__).with_name("replica.py")


class Replicas:
    """Replicas that share a database and a home, and what they have done."""

    def __init__(self, url: str, home: Path) -> None:
        self.url = url
        self.home = home
        self.store: JobStore = open_store(url)
        self.processes: list[subprocess.Popen[bytes]] = []

    def create(self, count: int) -> list[str]:
        made = []
        for number in range(count):
            job_id = new_job_id("bf")
            JobFolder(self.home / "backfills" / job_id).write_specification({})
            made.append(self.store.insert(job_id, KIND, {}, actor=f"caller {number % 3}").id)
        return made

    def start(self, *, seconds_to_work: float, lease_seconds: float = 20.0) -> subprocess.Popen[bytes]:
        with (self.home / "replica.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, str(SCRIPT), self.url, str(self.home), str(seconds_to_work), str(lease_seconds)],
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def start_two(self, **options: float) -> list[subprocess.Popen[bytes]]:
        """Return two that look for work already, so that both get some of what is created next."""
        both = [self.start(**options) for _ in range(2)]
        for process in both:
            self.wait((self.home / f"ready-{process.pid}").exists, "a replica is ready")
        return both

    def jobs(self) -> list[Job]:
        return self.store.list_jobs(JobFilter(kinds=(KIND,)), limit=1000)

    def running(self, process: subprocess.Popen[bytes]) -> list[Job]:
        """Return what runs and is this replica's."""
        mine = []
        for job in self.jobs():
            owner = LeaseOwner.parse(job.lease_owner or "")
            if job.state is JobState.RUNNING and owner is not None and owner.process.pid == process.pid:
                mine.append(job)
        return mine

    def launched(self) -> list[tuple[str, int, int]]:
        path = self.home / "launched"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(job_id, int(epoch), int(pid)) for job_id, epoch, pid in (line.split() for line in lines)]

    def published(self) -> Counter[str]:
        return Counter((self.home / "published").read_text().split())

    def wait(self, is_true: Callable[[], object], why: str, seconds: float = 150.0) -> None:
        deadline = time.monotonic() + seconds
        while not is_true():
            log = (self.home / "replica.log").read_text()[-3000:]
            assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {why}\n{log}"
            time.sleep(0.05)

    def wait_until_all_succeeded(self) -> None:
        try:
            self.wait(self.have_all_ended, "all have succeeded")
        except AssertionError as exc:
            raise AssertionError(f"{exc}\nunfinished: {self.unfinished()}") from exc

    def have_all_ended(self) -> bool:
        unfinished = self.unfinished()
        assert not any(job.state.is_final for job in unfinished), "some ended otherwise"
        return not unfinished

    def unfinished(self) -> list[Job]:
        return [job for job in self.jobs() if job.state is not JobState.SUCCEEDED]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        for job in self.jobs():
            if job.driver is not None:
                job.driver.signal_group(signal.SIGKILL)
        self.store.close()


@pytest.fixture
def replicas(make_postgresql_store: Callable[[], str], tmp_path: Path) -> Iterator[Replicas]:
    replicas = Replicas(make_postgresql_store(), tmp_path)
    yield replicas
    replicas.close()


def test_two_replicas_launch_each_of_a_hundred_jobs_exactly_once(replicas: Replicas) -> None:
    both = replicas.start_two(seconds_to_work=0.2)
    made = replicas.create(100)
    replicas.wait_until_all_succeeded()
    # The places are the deployment's, and whoever frees one is the first to see it: one may have taken them all.
    for _ in range(5):
        if len({pid for _, _, pid in replicas.launched()}) == len(both):
            break
        made += replicas.create(100)
        replicas.wait_until_all_succeeded()

    launched = replicas.launched()
    assert Counter(job_id for job_id, _, _ in launched) == Counter(made)
    assert {epoch for _, epoch, _ in launched} == {1}
    assert {pid for _, _, pid in launched} == {process.pid for process in both}, "both had their share"
    assert replicas.published() == Counter(made)
    for job in replicas.jobs():
        assert (job.epoch, job.restarts, job.lease_owner) == (1, 0, None)
        assert [event.what for event in replicas.store.list_events(job.id)] == [
            "created",
            "PENDING -> RUNNING",
            "RUNNING -> SUCCEEDED",
        ]


def test_the_jobs_of_a_replica_that_is_killed_are_taken_over_none_lost_and_none_twice(replicas: Replicas) -> None:
    made = replicas.create(24)
    first = replicas.start(seconds_to_work=3)
    replicas.wait(lambda: len(replicas.running(first)) >= 4, "the first one runs some")
    second = replicas.start(seconds_to_work=3)

    first.kill()
    first.wait()
    orphans = replicas.running(first)
    replicas.wait(lambda: not replicas.running(first), "the second one has taken them over")
    replicas.wait_until_all_succeeded()

    assert orphans
    assert replicas.published() == Counter(made)
    by_first = {(job_id, epoch) for job_id, epoch, pid in replicas.launched() if pid == first.pid}
    for orphan in orphans:
        # Its driver lived on and was followed, not replaced.
        assert (orphan.id, 1) in by_first
        assert replicas.store.get(orphan.id).epoch == 1
    assert {pid for _, _, pid in replicas.launched()} == {first.pid, second.pid}


def test_a_driver_that_dies_with_its_replica_is_replaced_by_the_other_one(replicas: Replicas) -> None:
    made = replicas.create(3)
    first = replicas.start(seconds_to_work=4)
    replicas.wait(lambda: len(replicas.running(first)) == 3, "the first one runs all")
    victim = replicas.running(first)[0]

    first.kill()
    first.wait()
    victim.driver.signal_group(signal.SIGKILL)
    replicas.start(seconds_to_work=0.2)
    replicas.wait_until_all_succeeded()

    assert replicas.published() == Counter(made)
    assert {job.id: job.restarts for job in replicas.jobs()} == {
        job_id: int(job_id == victim.id) for job_id in made
    }
    events = [event.why or "" for event in replicas.store.list_events(victim.id)]
    assert any(why.startswith("Restarted (1 of 3)") for why in events)


def test_a_replica_that_stood_still_and_wakes_up_late_does_no_harm(replicas: Replicas) -> None:
    """A stopped process can't be told from a slow one: its lease has to expire, and it may wake up at any time."""
    both = replicas.start_two(seconds_to_work=2.0, lease_seconds=1.5)
    made = replicas.create(40)
    # The places are the deployment's: it may be that one of them has all.
    replicas.wait(lambda: any(map(replicas.running, both)), "one of them runs some")
    stopped = max(both, key=lambda each: len(replicas.running(each)))

    os.kill(stopped.pid, signal.SIGSTOP)
    try:
        replicas.wait(lambda: not replicas.running(stopped), "the other one has taken them over")
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
    replicas.wait_until_all_succeeded()

    assert replicas.published() == Counter(made)
    assert all(job.restarts == 0 for job in replicas.jobs())
    # Who launches the rest is chance: the one that woke up may be the quicker one again.
    assert "took over" in (replicas.home / "replica.log").read_text()


@pytest.mark.timeout(400)
def test_two_apis_answer_for_one_store_and_one_goes_on_when_the_other_is_killed(make_postgresql_store, tmp_path):
    """Nothing is launched: the Spark Connect server is said to be somebody else's, and jobs start paused."""
    url, pubsub_port = make_postgresql_store(), free_port()
    environment = plain_environment(
        REFEED_HOME=str(tmp_path),
        REFEED_JOB_STORE=url,
        REFEED_CONNECT_URL="sc://127.0.0.1:1",
        PUBSUB_EMULATOR_HOST=f"127.0.0.1:{pubsub_port}",
    )
    body = {
        "query": "SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONTIME >= @from",
        "parameters": {"from": {"type": "TIMESTAMP", "value": datetime.now(UTC).isoformat()}},
        "topic": "orders",
        "start_paused": True,
    }
    key = {"Idempotency-Key": "the same"}
    with Children() as children:

        def start(name: str, *arguments: str) -> Child:
            command = [sys.executable, *arguments]
            log = tmp_path / f"{name}.log"
            return children.start(Child(name, command, environment=environment, log=log))

        start_pubsub(children, tmp_path, pubsub_port, environment=environment)
        with PubSub(read_settings(environment).project, f"127.0.0.1:{pubsub_port}") as pubsub:
            pubsub.create_topic("orders")
        ports = [free_port(), free_port()]
        apis = [start(f"api-{port}", "-c", SERVE, str(port)) for port in ports]
        clients = [httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) for port in ports]
        for api, port in zip(apis, ports, strict=True):
            api.wait_until(
                lambda port=port: is_listening(f"127.0.0.1:{port}"), seconds=120, what="begun to listen"
            )
        with clients[0] as first, clients[1] as second:
            made = first.post("/backfills", json=body, headers=key)
            assert made.status_code == 202, made.text
            backfill = made.json()
            again = second.post("/backfills", json=body, headers=key)
            assert (again.status_code, again.json()["id"]) == (202, backfill["id"])
            assert [found["id"] for found in second.get("/backfills").json()["backfills"]] == [backfill["id"]]

            os.killpg(apis[0].pid, signal.SIGKILL)
            cancelled = second.post(f"/jobs/{backfill['id']}:cancel", headers={"If-Match": backfill["etag"]})

            assert cancelled.json()["state"] in {"CANCELLING", "CANCELLED"}, cancelled.text
            events = second.get("/events", params={"object": backfill["id"]}).json()["events"]
            assert events[-1]["what"] == "created"
