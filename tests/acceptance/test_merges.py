"""Merges as jobs of a real API with real drivers, which are killed where it hurts most."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.processes import free_port
from connectors.spark.connect import ConnectServer
from local.server import PubSubServer
from model import failpoint
from rollout.child import Child, Children
from tests.reporting.orders import Orders
from tests.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.kills, pytest.mark.timeout(400)]


class Office:
    """An API as a process whose drivers can be killed at named places, and the orders of its home."""

    def __init__(self, folder: Path, children: Children) -> None:
        self.home = folder / "home"
        self.places = folder / "places"
        self.orders = Orders(self.home)
        self.orders.publish(folder)
        self.pubsub = PubSubServer(self.home / "pubsub")
        host = f"127.0.0.1:{self.pubsub.start()}"
        port = free_port()
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("REFEED_", "PUBSUB_"))} | {
            "REFEED_HOME": str(self.home),
            "PUBSUB_EMULATOR_HOST": host,
            "REFEED_FAILPOINTS": str(self.places),
            # Only what is asked for is merged.
            "REFEED_MERGE_AT": "off",
        }
        command = [sys.executable, "-m", "cli.main", "api", "--open", "--port", str(port), "--interrupt-at-exit"]
        self.api = Child("api", command, environment=environment, log=self.home / "logs" / "api.log")
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
        children.start(self.api)
        self.api.wait_until(self._answers, seconds=150, what="answered")

    def close(self) -> None:
        self.client.close()
        self.api.stop()
        ConnectServer(self.home / "run", {}).stop()
        self.pubsub.stop()

    def ended(self, merge_id: str) -> dict[str, Any]:
        shown: dict[str, Any] = {}

        def has_ended() -> bool:
            nonlocal shown
            shown = self.client.get(f"/merges/{merge_id}").json()
            return shown["finished_at"] is not None

        wait_until(
            has_ended, f"{merge_id} ends; the API's log: {self.api.log_tail()}", seconds=180, every_seconds=0.1
        )
        return shown

    def _answers(self) -> bool:
        try:
            return self.client.get("/healthz").is_success
        except httpx.TransportError:
            return False


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    with Children() as children:
        office = Office(tmp_path, children)
        try:
            yield office
        finally:
            office.close()


def test_a_merge_survives_kills_of_its_driver_before_and_behind_its_commit(office: Office) -> None:
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
    events = office.client.get(f"/merges/{merged['id']}/events").json()["events"]
    assert sum("SIGKILL" in (event["why"] or "") for event in events) == 2
    assert events[-1]["what"] == "RUNNING -> SUCCEEDED"
