"""A merge and a schedule's compaction as jobs of a real API, whose drivers are killed around their commits."""

import sys
from collections import Counter

import httpx
import pytest
from deltalake import DeltaTable

from cli.processes import free_port
from connectors.spark.connect import ConnectServer
from local.server import PubSubServer
from model import failpoint
from rollout.child import Child, Children
from tests.archive import fill_archive
from tests.reporting.orders import Orders
from tests.waiting import wait_until
from tests.worlds.processes import plain_environment

pytestmark = [pytest.mark.java, pytest.mark.kills, pytest.mark.timeout(500)]
ARCHIVE, STAGING = "backup/messages", "staging/orders"
FILES = 24
MANIFEST = """\
kind: Schedule
name: small-files
cron: "* * * * *"
job: {kind: compaction, request: {tables: [archive, staging.orders]}}
"""


class Office:
    """An API as a process whose drivers can be killed at named places, and the orders of its home."""

    def __init__(self, folder, children):
        self.home = folder / "home"
        self.places = folder / "places"
        self.orders = Orders(self.home)
        self.orders.publish(folder)
        self.pubsub = PubSubServer(self.home / "pubsub")
        host = f"127.0.0.1:{self.pubsub.start()}"
        port = free_port()
        # Only what is asked for is merged.
        environment = plain_environment(
            REFEED_HOME=str(self.home),
            PUBSUB_EMULATOR_HOST=host,
            REFEED_FAILPOINTS=str(self.places),
            REFEED_MERGE_AT="off",
        )
        command = [sys.executable, "-m", "cli.main", "api", "--open", "--port", str(port), "--interrupt-at-exit"]
        self.api = Child("api", command, environment=environment, log=self.home / "logs" / "api.log")
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
        children.start(self.api)
        self.api.wait_until(self._answers, seconds=150, what="answered")

    def close(self):
        self.client.close()
        self.api.stop()
        ConnectServer(self.home / "run", {}).stop()
        self.pubsub.stop()

    def ended(self, merge_id):
        shown = {}

        def has_ended():
            nonlocal shown
            shown = self.client.get(f"/jobs/{merge_id}").json()
            return shown["finished_at"] is not None

        wait_until(
            has_ended, f"{merge_id} ends; the API's log: {self.api.log_tail()}", seconds=180, every_seconds=0.1
        )
        return shown

    def _answers(self):
        try:
            return self.client.get("/healthz").is_success
        except httpx.TransportError:
            return False


@pytest.fixture(scope="module")
def office(tmp_path_factory):
    with Children() as children:
        office = Office(tmp_path_factory.mktemp("office"), children)
        try:
            yield office
        finally:
            office.close()


def test_a_merge_survives_kills_of_its_driver_before_and_behind_its_commit(office):
    office.orders.stage((1, 0), (1, 5), (2, 0))
    office.orders.stage((7, 1), source="returns")
    failpoint.arm(office.places, "merge.rewritten")
    failpoint.arm(office.places, "merge.committed")

    made = office.client.post("/merges", json={}, headers={"Idempotency-Key": "mine"})
    again = office.client.post("/merges", json={}, headers={"Idempotency-Key": "mine"})
    merged = office.ended(made.json()["id"])

    assert (made.status_code, again.json()["id"]) == (202, made.json()["id"])
    assert failpoint.is_hit(office.places, "merge.rewritten")
    assert failpoint.is_hit(office.places, "merge.committed")
    assert (merged["state"], merged["restarts"], merged["error"]) == ("SUCCEEDED", 2, None)
    assert {each["source"]: each["state"] for each in merged["sources"]} == {
        "orders": "merged",
        "returns": "merged",
    }
    assert all(audit["is_passed"] for each in merged["sources"] for audit in each["audits"])
    assert (office.orders.reported(), office.orders.reported("returns")) == ({1: "1-5", 2: "2-0"}, {7: "7-1"})
    events = office.client.get("/events", params={"object": merged["id"]}).json()["events"]
    assert sum("SIGKILL" in (event["why"] or "") for event in events) == 2
    assert events[0]["what"] == "RUNNING -> SUCCEEDED"


def files_and_rows(office, table):
    """Return how many files the table has, and how often it has each row."""
    found = DeltaTable(str(office.home / "lake" / table))
    return len(found.file_uris()), Counter(map(repr, found.to_pyarrow_table().to_pylist()))


def test_a_slot_compacts_many_small_files_and_no_row_changes_though_its_driver_is_killed(office):
    for number in range(FILES):
        fill_archive(office.home, {"orders": 1 + number % 3})
        office.orders.stage((1, number), (1, number + 100))
    before = {table: files_and_rows(office, table) for table in (ARCHIVE, STAGING)}
    assert min(files for files, _ in before.values()) >= FILES
    failpoint.arm(office.places, "compact.after")

    office.client.post("/manifests:apply", content=MANIFEST).raise_for_status()
    run = ended_run(office)
    office.client.delete("/manifests/small-files").raise_for_status()

    assert failpoint.is_hit(office.places, "compact.after")
    assert (run["state"], run["job_kind"]) == ("SUCCEEDED", "compaction")
    done = office.client.get(f"/jobs/{run['job_id']}").json()
    assert (done["state"], done["restarts"], done["error"]) == ("SUCCEEDED", 1, None)
    assert done["created_by"] == "schedule:small-files"
    # The driver died before it had noted the archive, and found nothing more to compact there.
    assert done["files_removed"] == {"archive": 0, "staging.orders": before[STAGING][0] - 1}
    after = {table: files_and_rows(office, table) for table in (ARCHIVE, STAGING)}
    assert {table: files for table, (files, _) in after.items()} == {ARCHIVE: 1, STAGING: 1}
    for table in (ARCHIVE, STAGING):
        assert after[table][1] == before[table][1], table
    status = office.client.get("/status").json()
    assert [each["id"] for each in status["compactions"]] == []
    assert [item for item in status["inbox"] if item["resource"] == "compaction"] == []
    assert "compacted" in office.client.get(f"/jobs/{done['id']}/logs").text


def ended_run(office):
    """Return the first run of the schedule that has ended; each slot begins one."""
    found = {}

    def has_ended():
        runs = office.client.get("/schedules/small-files").json()["runs"]
        found.update(runs[-1] if runs else {"state": "none"})
        return found["state"] in {"SUCCEEDED", "FAILED", "CANCELLED"}

    wait_until(
        has_ended, f"a slot is compacted; the API's log: {office.api.log_tail()}", seconds=180, every_seconds=0.1
    )
    return found
