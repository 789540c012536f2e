"""How backfills and streams went, over HTTP and in the terminal: what was recorded, null where nothing was."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from jobs.store.tables import JOBS
from model.job import JobState
from streams.status import StatusFile
from tests.api.backfills import assert_problem

NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def api(start_api):
    api = start_api()
    path = api.home / "streams" / "backup" / "status.json"
    path.parent.mkdir(parents=True)
    StatusFile(path).write(state="stopped", totals={"messages": 9})
    figures = {"state": "RUNNING", "rate_messages_per_second": 4.5, "lag_seconds": 1.5, "backlog_messages": 12}
    api.store.put_figures(NOW - timedelta(minutes=5), {"stream:backup": figures})
    return api


@pytest.fixture(scope="module")
def job(api):
    """A backfill that ran for two minutes, of which one point was recorded."""
    made = api.store.insert(
        "bf_01ARZ3NDEKTSV4RRFFQ69G5FAV", "backfill", {"topic": "replay"}, actor="ann", state=JobState.PAUSED
    )
    started = NOW - timedelta(minutes=3)
    point = {
        "published": 60,
        "failed": 0,
        "event_time": "2026-01-01T00:00:00Z",
        "rate_limit_messages_per_second": 5,
    }
    api.store.put_figures(started + timedelta(minutes=1), {f"job:{made.id}": point})
    api.store.set_progress(made.id, {"published": 90, "failed": 1})
    ended = api.store.move(made.id, JobState.CANCELLED, actor="ann")
    with api.store._database.write() as connection:
        at = {"created_at": started, "started_at": started, "finished_at": started + timedelta(minutes=2)}
        connection.execute(JOBS.update().where(JOBS.c.id == ended.id).values(**at))
    return ended


def test_a_backfills_minutes_have_what_was_published_in_each(client, job, refeed):
    first, second = client.get(f"/jobs/{job.id}/figures").json()["intervals"]
    assert_problem(client.get("/jobs/bf_none/figures"), 404, "job_not_found")
    assert (first["published"], first["rate_limit_messages_per_second"]) == (60, 5)
    assert first["event_time"].startswith("2026-01-01T00:00:00")
    assert (second["published"], second["failed"], second["event_time"]) == (30, 1, None)
    code, text, _ = refeed("figures", job.id)
    assert code == 0
    assert "60" in text
    assert json.loads(refeed("figures", job.id, "--json")[1])["intervals"] == [first, second]


def test_a_streams_hour_has_a_point_a_minute_and_its_day_one_every_ten(client, refeed):
    hour, day = (client.get("/streams:history", params={"over": over}).json() for over in ("hour", "day"))
    assert_problem(client.get("/streams:history", params={"over": "year"}), 422, "request_invalid")
    assert_problem(client.get("/streams:history", params={"name": "backap"}), 404, "stream_not_found")
    assert [(found["step_seconds"], len(found["streams"][0]["points"])) for found in (hour, day)] == [
        (60, 60),
        (600, 144),
    ]
    known = [point for point in hour["streams"][0]["points"] if point["lag_seconds"] == 1.5]
    assert [point["rate_messages_per_second"] for point in known] == [4.5]
    assert sum(point["backlog_messages"] is None for point in hour["streams"][0]["points"]) >= 55
    code, text, _ = refeed("figures", "stream/backup")
    first, *later = text.splitlines()[1:]
    assert (code, "RUNNING" in first, "4.5" in first) == (0, True, True), "before it there is no report"
    assert "unknown" in later[-1], "what is not known is not left out"
