"""Figures in every job store: one row a minute for a day, one an hour for a month, and no more."""

from datetime import UTC, datetime, timedelta

from tests.work import counted

NOW = datetime(2026, 3, 1, 12, 0, 17, 5, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def test_a_minute_of_a_subject_is_kept_once_whichever_replica_records_it(store):
    store.put_figures(NOW, {"stream:a": {"lag": 1.5}})
    store.put_figures(NOW + timedelta(seconds=30), {"stream:a": {"lag": 2.5}, "stream:b": {"lag": None}})
    store.put_figures(NOW + MINUTE, {"stream:a": {"lag": 3.5}})
    found = store.list_figures(["stream:a", "stream:b", "stream:c"], NOW - MINUTE)
    assert {subject: [point.figures["lag"] for point in points] for subject, points in found.items()} == {
        "stream:a": [1.5, 3.5],
        "stream:b": [None],
    }
    assert found["stream:a"][0].at == NOW.replace(second=0, microsecond=0)
    assert list(store.list_figures(["stream:a"], NOW)) == ["stream:a"]
    assert store.list_figures([], NOW) == {}


def test_after_a_day_the_first_minute_of_each_hour_is_left_and_after_a_month_nothing(store):
    for minutes in range(0, 180, 30):
        store.put_figures(NOW + minutes * MINUTE, {"job:x": {"n": minutes}})
    day = NOW + timedelta(days=1)
    store.put_figures(day + timedelta(hours=1), {})

    def left():
        points = store.list_figures(["job:x"], NOW - timedelta(days=90)).get("job:x", [])
        return [point.figures["n"] for point in points]

    assert left() == [0, 60, 90, 120, 150]
    store.put_figures(day + timedelta(hours=12), {})
    assert left() == [0, 60, 120]
    store.put_figures(NOW + timedelta(days=30, hours=1), {})
    assert left() == [60, 120]
    store.put_figures(NOW + timedelta(days=31), {})
    assert left() == []


def test_to_keep_a_minute_does_not_cost_more_with_what_is_kept(store):
    def work_of(at):
        with counted(store) as work:
            store.put_figures(at, {"stream:x": {}})
        return work

    early = work_of(NOW + MINUTE)
    # A month's hours of ten streams.
    hours = [NOW + timedelta(hours=hour + 1) for hour in range(700)]
    for hour in hours:
        store.put_figures(hour, {f"stream:{n}": {} for n in range(10)})
    late = work_of(hours[-1] + MINUTE)
    assert len(store.list_figures(["stream:7"], NOW)["stream:7"]) == 700
    assert (late.statements, late.rows) == (early.statements, early.rows)
    assert late.instructions <= early.instructions + 1000
