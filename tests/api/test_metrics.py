"""Figures for Prometheus: of this process's answers, and of the jobs that the store holds."""

from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families

from api.metrics import Metrics
from backfill.run.progress import Progress
from jobs.store import open_store
from model.event import HistoryEventType
from model.fault import FaultRecord
from model.job import JobState, new_job_id
from model.principal import ADMIN

JOB = "/jobs/bf_00000000000000000000000000"
Figures = dict[tuple[str, ...], float]


def parse(text: str) -> Figures:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_anybody_may_see_figures_and_they_name_nobody(start_api):
    api = start_api()
    api.make_key(ADMIN, name="ann")
    job_id = api.store.insert(
        new_job_id("bf"), "backfill", {"topic": "secret-topic"}, actor="key:ann", state=JobState.PAUSED
    ).id
    api.store.set_progress(job_id, Progress(published=7, failed=2).to_json())
    with api.client() as stranger:
        assert stranger.get(JOB).status_code == 401
        assert stranger.get("/made/up").status_code == 401
        assert stranger.get("/healthz").status_code == 200
        answer = stranger.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    figures = parse(answer.text)
    assert figures["refeed_published_messages_total", "backfill"] == 7
    assert figures["refeed_failed_messages", "backfill"] == 2
    assert figures["refeed_http_answers_total", "getHealth", "200"] == 1
    # Nobody found out what they asked for.
    assert figures["refeed_http_answers_total", "none", "401"] == 2
    assert "secret" not in answer.text
    assert "key:ann" not in answer.text


def test_jobs_are_counted_by_kind_and_state_and_not_with_every_call(tmp_path):
    store = open_store(f"sqlite:///{tmp_path / 'jobs.db'}")
    for state in (JobState.PENDING, JobState.PAUSED, JobState.PAUSED):
        store.insert(new_job_id("bf"), "backfill", {}, actor="ann", state=state)
    store.insert(new_job_id("mg"), "merge", {}, actor="ann")
    metrics = Metrics(lambda: store, list)
    figures = parse(metrics.render())
    assert [figures["refeed_jobs", "backfill", state] for state in ("PENDING", "PAUSED", "RUNNING")] == [1, 2, 0]
    assert figures["refeed_jobs", "merge", "PENDING"] == 1
    # Whoever asks again at once costs the store nothing.
    store.insert(new_job_id("bf"), "backfill", {}, actor="ann")
    assert parse(metrics.render())["refeed_jobs", "backfill", "PENDING"] == 1
    store.close()


def test_a_type_change_of_a_source_has_its_time(tmp_path):
    store = open_store(f"sqlite:///{tmp_path / 'jobs.db'}")
    at = datetime.now(UTC) - timedelta(minutes=3)
    store.note_event("source", "orders", "types changed", actor="pipeline", kind=HistoryEventType.CHANGED, at=at)
    store.note_event("source", "members", "published", actor="ann")
    figures = parse(Metrics(lambda: store, list).render())
    name = "refeed_source_last_type_change_timestamp_seconds"
    found = {key: value for key, value in figures.items() if key[0] == name}
    assert found == {(name, "orders"): pytest.approx(at.timestamp())}
    store.close()


def test_the_newest_failure_of_each_kind_has_its_time_until_it_is_tried_again(tmp_path):
    store = open_store(f"sqlite:///{tmp_path / 'jobs.db'}")
    store.insert(new_job_id("mg"), "merge", {}, actor="ann")
    times = []
    for _ in range(2):
        job = store.insert(new_job_id("bf"), "backfill", {}, actor="ann")
        failed = store.move(job.id, JobState.FAILED, actor="refeed", error=FaultRecord("x", "X."))
        times.append(failed.finished_at)

    def newest():
        figures = parse(Metrics(lambda: store, list).render())
        return {key: value for key, value in figures.items() if key[0].startswith("refeed_job_last_failure")}

    name = "refeed_job_last_failure_timestamp_seconds"
    assert newest() == {(name, "backfill"): times[1].timestamp()}
    store.move(job.id, JobState.PENDING, actor="ann")
    assert newest() == {(name, "backfill"): times[0].timestamp()}
    store.close()
