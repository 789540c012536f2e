from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from backfill.steer.rates import MAX_INTERVALS, rate_intervals
from jobs.store import JobStore
from jobs.store.figures import FigurePoint
from model.job import new_job_id

START = datetime(2026, 3, 1, 12, 0, 17, tzinfo=UTC)


@pytest.fixture
def job(tmp_path):
    store = JobStore(tmp_path / "jobs.db")
    try:
        made = store.insert(new_job_id("bf"), "backfill", {}, actor="ann")
    finally:
        store.close()
    progress = {"selected": 900, "published": 600, "failed": 2, "event_time": "2026-01-02T00:00:00Z"}
    return replace(made, started_at=START, progress=progress, options={"rate_limit_messages_per_second": 10})


def point(seconds: float, published: int, **figures: Any) -> FigurePoint:
    return FigurePoint(START + timedelta(seconds=seconds), {"published": published, "failed": 0, **figures})


def test_intervals_go_from_the_start_over_the_recorded_points_to_now(job):
    points = [point(-17, 0), point(43, 300, rate_limit_messages_per_second=7), point(103, 480)]
    first, second, last = rate_intervals(job, points, START + timedelta(seconds=133))
    assert (first.over_seconds, first.published, first.rate_messages_per_second) == (43, 300, round(300 / 43, 3))
    assert first.rate_limit_messages_per_second == 7
    assert (second.published, second.event_time) == (180, None)
    assert (last.published, last.failed, last.rate_messages_per_second) == (120, 2, 4.0)
    assert (last.rate_limit_messages_per_second, last.event_time) == (10, datetime(2026, 1, 2, tzinfo=UTC))
    assert sum(each.published or 0 for each in (first, second, last)) == 600


def test_one_that_ended_within_a_minute_has_its_one_interval_and_one_that_waits_has_none(job):
    (whole,) = rate_intervals(replace(job, finished_at=START + timedelta(seconds=20)), [point(43, 600)])
    assert (whole.over_seconds, whole.published, whole.rate_messages_per_second) == (20, 600, 30.0)
    assert rate_intervals(replace(job, started_at=None), []) == []


def test_totals_that_fall_make_an_unknown_growth_and_never_a_negative_one(job):
    points = [point(60, 100, failed=50), point(120, 140, failed=10)]
    second = rate_intervals(job, points, START + timedelta(seconds=180))[1]
    assert (second.published, second.failed) == (40, None)


def test_a_job_of_weeks_has_a_bounded_number_of_intervals_and_loses_no_message(job):
    points = [point(60 * n, n) for n in range(1, 2000)]
    found = rate_intervals(replace(job, progress={"published": 2500}), points, START + timedelta(minutes=2000))
    assert MAX_INTERVALS / 2 < len(found) <= MAX_INTERVALS
    assert sum(each.published or 0 for each in found) == 2500
