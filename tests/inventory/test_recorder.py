from datetime import UTC, datetime, timedelta
from typing import Any

from inventory.recorder import FigureRecorder, seconds_to_next_point
from inventory.streams import InstanceTotal, StreamOut
from jobs.store import JobStore
from model.job import JobState, new_job_id

NOW = datetime(2026, 3, 1, 12, 0, 17, tzinfo=UTC)


def stream(name: str, **fields: Any) -> StreamOut:
    known: dict[str, Any] = dict.fromkeys(StreamOut.model_fields)
    return StreamOut(**{**known, "name": name, "state": "RUNNING", "totals": {}, **fields})


def test_every_stream_and_every_living_job_has_a_point_and_what_is_over_has_none(tmp_path):
    store = JobStore(tmp_path / "jobs.db")
    try:
        ended, job = (
            store.insert(
                new_job_id("bf"), "backfill", {}, actor="ann", options={"rate_limit_messages_per_second": 5}
            )
            for _ in range(2)
        )
        store.move(ended.id, JobState.CANCELLED, actor="ann")
        store.set_progress(job.id, {"published": 7, "failed": 1, "event_time": "2026-01-01T00:00:00Z"})
        live = stream("backup", rates={"messages": 2.5}, over_seconds=60.0, lag_seconds=0.5, instance_id="in_1")
        live = live.model_copy(update={"started_at": datetime(2026, 3, 1, 11, tzinfo=UTC)})
        gone = stream("pipeline-x", is_retired=True)
        totals = [
            InstanceTotal("in_0", EARLY, NOW - timedelta(seconds=30), 0.0, 60.0),
            InstanceTotal("in_1", EARLY, NOW, 0.0, 5.0),
            InstanceTotal("in_9", EARLY, NOW - timedelta(hours=1), 0.0, 7.0),
        ]
        streams = [live, gone.model_copy(update={"state": "FAILED"})]
        recorder = FigureRecorder(store, lambda: streams, lambda: {"backup": totals})
        recorder.record(NOW)
        found = store.list_figures(
            ["stream:backup", "stream:pipeline-x", f"job:{job.id}", f"job:{ended.id}"], EARLY
        )
        assert sorted(found) == [f"job:{job.id}", "stream:backup"]
        (point,) = found["stream:backup"]
        assert point.figures["rate_messages_per_second"] == 2.5
        assert point.figures["backlog_messages"] is None
        former = {"instance_id": "in_0", "started_at": "2026-01-01T00:00:00.000000Z", "messages": 60.0}
        assert point.figures["others"] == [former]
        assert (point.figures["instance_id"], point.figures["started_at"]) == (
            "in_1",
            "2026-03-01T11:00:00.000000Z",
        )
        (point,) = found[f"job:{job.id}"]
        assert (point.figures["published"], point.figures["rate_limit_messages_per_second"]) == (7, 5)
    finally:
        store.close()


def test_a_point_is_due_when_the_next_minute_has_begun():
    seconds = seconds_to_next_point()
    due = datetime.now(UTC) + timedelta(seconds=seconds)
    assert 1 < seconds <= 61
    assert due.second in range(1, 10), "a second after the minute; on a loaded machine the clock is read later"


EARLY = datetime(2026, 1, 1, tzinfo=UTC)
