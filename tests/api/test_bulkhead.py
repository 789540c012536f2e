import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from api.bulkhead import MAX_SLOW_CALLS
from backfill.steer.service import BackfillService
from inventory.service import Inventory
from model.errors import ServiceBusyError
from tests.waiting import wait_until

_REQUEST = {"topic": "orders", "query": "SELECT data, attributes, message_id FROM backup.messages"}
_SECONDS = 20.0


@pytest.fixture
def slow_plans(monkeypatch):
    """Plans and look-ups that take until the event is set."""
    release = threading.Event()

    def wait(*_, **__):
        assert release.wait(_SECONDS), "nobody let the plan end"
        raise ServiceBusyError

    monkeypatch.setattr(BackfillService, "plan", wait)
    monkeypatch.setattr(Inventory, "list_topics", wait)
    yield release
    release.set()


def test_forty_slow_plans_leave_health_cancel_and_lists_to_the_others(api, slow_plans):
    with ThreadPoolExecutor(50) as pool, api.client() as client:
        plans = [pool.submit(client.post, "/backfills?validate_only=true", json=_REQUEST) for _ in range(45)]
        topics = [pool.submit(client.get, "/topics") for _ in range(5)]
        wait_until(
            lambda: sum(call.done() for call in [*plans, *topics]) >= 50 - MAX_SLOW_CALLS,
            "calls beyond the bound are refused instead of waiting",
        )
        refused = [call.result() for call in [*plans, *topics] if call.done()]
        with api.client() as other:
            meanwhile = {
                "health": other.get("/healthz").status_code,
                "list": other.get("/backfills").status_code,
                "cancel": other.post("/jobs/bf_01ARZ3NDEKTSV4RRFFQ69G5FAV:cancel").status_code,
            }
        slow_plans.set()
    assert {(answer.status_code, answer.json()["code"]) for answer in refused} == {(429, "service_busy")}
    assert all(int(answer.headers["Retry-After"]) >= 1 for answer in refused)
    assert meanwhile == {"health": 200, "list": 200, "cancel": 404}
