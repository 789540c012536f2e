import base64
import json
from datetime import UTC, datetime, timedelta
from queue import Queue
from typing import Any

import pytest

from tests.archive import fill_archive
from tests.worlds.http import Answer, answering

SECRET = "whsec_" + base64.b64encode(b"s" * 32).decode()
DAY = {"type": "DATE", "value": "2026-01-01"}
BODY: dict[str, Any] = {
    "query": "SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = @day",
    "parameters": {"day": DAY},
    "topic": "replay",
    "description": "why",
}


@pytest.fixture
def heard():
    """An address, and what is sent there."""
    calls = Queue()

    def hear(call):
        calls.put(json.loads(call.body))
        return Answer(204)

    with answering(hear) as address:
        yield f"{address}/hook", calls


def test_the_end_of_a_backfill_is_told_where_the_settings_say(start_api, heard):
    url, calls = heard
    api = start_api(REFEED_NOTIFY_URL=url, REFEED_NOTIFY_SECRET=SECRET)
    with api.client() as client:
        made = client.post("/backfills", json=BODY).json()
    said = calls.get(timeout=30)
    assert said["type"] == "backfill.failed"
    assert (said["data"]["id"], said["data"]["created_by"]) == (made["id"], "local")
    assert said["data"]["error"]["code"] == "launch_failed"
    assert "query" not in json.dumps(said["data"])


def test_a_backfill_that_needs_an_approval_tells_that_it_waits_and_no_resume_lets_it_go(start_api, heard):
    url, calls = heard
    api = start_api(REFEED_NOTIFY_URL=url, REFEED_NOTIFY_SECRET=SECRET, REFEED_APPROVAL_ROWS="1")
    fill_archive(api.home, {"orders": 2})
    query = BODY["query"].replace("= @day", ">= @day")
    yesterday = (datetime.now(UTC).date() - timedelta(days=1)).isoformat()
    asked = {**BODY, "query": query, "parameters": {"day": {"type": "DATE", "value": yesterday}}}
    with api.client() as client:
        plan = client.post("/backfills?validate_only=true", json=asked).json()
        made = client.post("/backfills", json={**asked, "plan_id": plan["plan_id"]}).json()
        refused = client.post(f"/jobs/{made['id']}:resume")
    assert (refused.status_code, refused.json()["code"]) == (409, "approval_required")
    assert "a person other than local must approve it" in refused.json()["detail"]
    said = calls.get(timeout=30)
    assert (said["type"], said["data"]["waits_for"]) == ("backfill.waiting", "approval")
    assert (said["data"]["id"], said["data"]["state"]) == (made["id"], "PENDING")
