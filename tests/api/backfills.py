"""An API with an archive, and backfills in it that wait."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pyarrow as pa
import pytest

from backfill.run.folder import BackfillFolder
from connectors.lake.archive import LakeArchive
from model.archive import Attempt
from model.job import JobState

QUERY = (
    "SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE >= @day AND topic = 'orders'"
)
TOPICS = [f"replay-{number}" for number in range(150)]
_UNUSED = iter(TOPICS)


@pytest.fixture(scope="module")
def api(start_api: Callable[..., Any]) -> Any:
    api = start_api(REFEED_APPROVAL_ROWS="29")
    for topic in TOPICS:
        api.pubsub.create_topic(topic)
    entry = pa.struct([("key", pa.string()), ("value", pa.string())])
    rows = pa.record_batch(
        {
            "data": pa.array([b'{"n": 1}'] * 30, pa.binary()),
            "attributes": pa.array([[{"key": "n", "value": str(n)}] for n in range(30)], pa.list_(entry)),
            "message_id": [f"m{n}" for n in range(30)],
            "publish_time": pa.array([datetime(2024, 3, 1, 12, tzinfo=UTC)] * 30, pa.timestamp("us", "UTC")),
            "ordering_key": [""] * 30,
        }
    )
    archive = LakeArchive(str(api.home / "lake"), "backup.messages")
    archive.create()
    lease = archive.take_lease("lease")
    parts = [("orders", "s", rows), ("bygone", "s", rows.slice(0, 1))]
    archive.commit([archive.writer().write(parts)], Attempt("stream", 1, "lease", lease))
    return api


@pytest.fixture
def client(api: Any) -> Iterator[httpx.Client]:
    with api.client() as client:
        yield client


def body(**changes: Any) -> dict[str, Any]:
    day = (datetime.now(UTC).date() - timedelta(days=1)).isoformat()
    parameters = {"day": {"type": "DATE", "value": day}}
    return {"query": QUERY, "topic": next(_UNUSED), "parameters": parameters, **changes}


def paused(client: httpx.Client, **changes: Any) -> dict[str, Any]:
    response = client.post("/backfills", json=body(start_paused=True, **changes))
    assert response.status_code == 202, response.text
    made: dict[str, Any] = response.json()
    return made


def assert_problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/problem+json", response.text
    problem: dict[str, Any] = response.json()
    assert (response.status_code, problem["status"], problem["code"]) == (status, status, code), problem
    return problem


def folder_of(api: Any, backfill_id: str) -> BackfillFolder:
    return BackfillFolder(api.home / "backfills" / backfill_id)


def end(api: Any, backfill_id: str, state: JobState = JobState.CANCELLED) -> None:
    api.store.move(backfill_id, state, actor="test")
