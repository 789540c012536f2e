"""Manifests for tests of the API: texts of them, and the calls that plan and apply them."""

from typing import Any

import pytest

from jobs.store.tables import EVENTS, JOBS, MANIFESTS, SCHEDULE_RUNS
from tests.worlds.job_store import empty

MERGE = "kind: Schedule\nname: merges\ncron: 15 0 * * *\njob: {kind: merge}\n"
BACKFILL = """\
kind: Schedule
name: replays
cron: "* * * * *"
job:
  kind: backfill
  request:
    query: |
      SELECT data, attributes, message_id FROM backup.messages
      WHERE _PARTITIONTIME >= @from AND _PARTITIONTIME < @to AND topic = 'orders'
    topic: orders
    start_paused: true
    parameters:
      from: {type: TIMESTAMP, value: "{{ slot.start }}"}
      to: {type: TIMESTAMP, value: "{{ slot.end }}"}
"""
RANGE = """\
kind: Schedule
name: ranges
cron: "* * * * *"
job:
  kind: backfill
  request:
    source_topic: orders
    from: "{{ slot.start }}"
    to: "{{ slot.end }}"
    where: topic = 'orders' OR TRUE
    start_paused: true
"""
TEMPLATE = """\
kind: Template
name: replay
parameters: {day: {type: DATE, required: true}}
launch:
  kind: backfill
  request:
    query: |
      SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = @day AND topic = 'other'
    topic: other
    start_paused: true
    parameters: {day: {type: DATE, value: "${day}"}}
"""
SNAPSHOT = """\
kind: Schedule
name: snapshots
cron: "* * * * *"
job: {kind: snapshot, request: {stream: backup}}
"""


@pytest.fixture
def api(served):
    yield served
    empty(served.store, EVENTS, JOBS)
    with served.store._database.write() as connection:
        connection.execute(SCHEDULE_RUNS.delete())
        connection.execute(MANIFESTS.delete().where(MANIFESTS.c.source == "api"))


def put(api: Any, text: str, token: str | None = None, **params: str) -> Any:
    with api.client(token) as client:
        return client.post("/manifests:apply", content=text.encode(), params=params)


def plan(client: Any, text: str, **params: str) -> Any:
    return client.post("/manifests:apply", content=text.encode(), params={"validate_only": "true", **params})


def one(answer: Any) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    (found,) = answer.json()["plans"]
    return dict(found)
