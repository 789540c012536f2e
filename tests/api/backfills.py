"""An API with an archive, and backfills in it that wait."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from backfill.run.folder import BackfillFolder
from connectors.lake.archive import LakeArchive
from model.job import JobState
from tests.archive import messages, write_commits

QUERY = (
    "SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE >= @day AND topic = 'orders'"
)
TOPICS = [f"replay-{number}" for number in range(150)]
_UNUSED = iter(TOPICS)


@pytest.fixture(scope="module")
def api(start_api):
    api = start_api(REFEED_APPROVAL_ROWS="29")
    for topic in TOPICS:
        api.pubsub.create_topic(topic)
    noon = datetime(2024, 3, 1, 12, tzinfo=UTC)
    rows = messages(30, data=[b'{"n": 1}'] * 30, publish_time=[noon] * 30)
    write_commits(
        LakeArchive(str(api.home / "lake"), "backup.messages"), {"orders": rows, "bygone": rows.slice(0, 1)}
    )
    return api


def body(**changes: Any) -> dict[str, Any]:
    day = (datetime.now(UTC).date() - timedelta(days=1)).isoformat()
    parameters = {"day": {"type": "DATE", "value": day}}
    return {"query": QUERY, "topic": next(_UNUSED), "parameters": parameters, **changes}


def paused(client: httpx.Client, **changes: Any) -> dict[str, Any]:
    response = client.post("/backfills", json=body(start_paused=True, **changes))
    assert response.status_code == 202, response.text
    return response.json()


def assert_problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/problem+json", response.text
    problem: dict[str, Any] = response.json()
    assert (response.status_code, problem["status"], problem["code"]) == (status, status, code), problem
    return problem


def folder_of(api: Any, backfill_id: str) -> BackfillFolder:
    return BackfillFolder(api.home / "backfills" / backfill_id)


def end(api: Any, backfill_id: str, state: JobState = JobState.CANCELLED) -> None:
    api.store.move(backfill_id, state, actor="test")
