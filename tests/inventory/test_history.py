from datetime import UTC, datetime, timedelta
from typing import Any

from inventory.history import Over, history_start, render_history
from jobs.store.figures import FigurePoint

NOW = datetime(2026, 3, 1, 0, 12, 17, tzinfo=UTC)
FIGURES = {"state": "RUNNING", "rate_messages_per_second": 4.0, "lag_seconds": 1.0, "backlog_messages": 3}


def point(minutes_ago: int, **changes: Any) -> FigurePoint:
    return FigurePoint(NOW.replace(second=0) - timedelta(minutes=minutes_ago), {**FIGURES, **changes})


def history(over: Over, *points: FigurePoint) -> list[dict[str, Any]]:
    kept = [each for each in points if each.at >= history_start(over, NOW)]
    return render_history(kept, over, NOW)


def test_an_hour_has_sixty_minutes_and_those_that_nobody_recorded_are_unknown_not_zero() -> None:
    found = history("hour", point(70), point(59), point(1, lag_seconds=None), point(0))
    assert len(found) == 60
    assert [each["start"] for each in (found[0], found[-1])] == [
        "2026-02-28T23:12:00.000000Z",
        "2026-03-01T00:11:00.000000Z",
    ]
    assert (found[0]["lag_seconds"], found[-2]["lag_seconds"], found[-1]["lag_seconds"]) == (1.0, None, 1.0)
    assert set(found[1].values()) == {"2026-02-28T23:13:00.000000Z", None}


def test_a_day_has_the_mean_rate_and_the_worst_lag_of_each_ten_minutes() -> None:
    found = history(
        "day",
        point(2, lag_seconds=30.0),
        point(1, rate_messages_per_second=1.0, lag_seconds=9.0),
        point(0, rate_messages_per_second=None, backlog_messages=0),
    )
    assert len(found) == 144
    assert found[-2]["lag_seconds"] == 30.0, "what is kept at 00:10 is of the minute before"
    assert found[-1] == {
        "start": "2026-03-01T00:10:00.000000Z",
        "state": "RUNNING",
        "rate_messages_per_second": 1.0,
        "lag_seconds": 9.0,
        "backlog_messages": 3,
        "batch_seconds": None,
    }
    assert found[0]["start"] == "2026-02-28T00:20:00.000000Z"


def test_a_rate_is_what_came_in_its_minute_and_no_message_is_in_two() -> None:
    one = {"instance_id": "in_1", "rate_messages_per_second": 0.8}
    found = history(
        "hour",
        point(4, messages=100, **one),
        point(3, messages=150, **one),
        # The rate of the last 60 seconds still has the messages of the minute before.
        point(2, messages=150, **one),
        point(1, messages=30, **{**one, "instance_id": "in_2"}),
        point(0, messages=None, **one),
    )
    assert [each["rate_messages_per_second"] for each in found[-5:]] == [0.8, 0.833, 0.0, 0.8, 0.8]


def test_after_a_gap_a_rate_is_that_of_the_last_minute() -> None:
    one = {"instance_id": "in_1"}
    found = history("hour", point(5, messages=0, **one), point(0, messages=6000, **one))
    assert found[-1]["rate_messages_per_second"] == 4.0


def test_the_first_messages_of_a_process_are_in_the_minute_in_which_it_counted_them() -> None:
    started_at = "2026-03-01T00:09:20.000000Z"
    new = {"instance_id": "in_2", "started_at": started_at, "rate_messages_per_second": None}
    starting = history("hour", point(2, messages=None, **new), point(1, messages=40_400, **new))
    assert [each["rate_messages_per_second"] for each in starting[-3:-1]] == [None, 673.333]
    old = {"instance_id": "in_1", "started_at": "2026-02-28T20:00:00.000000Z"}
    fast = {**new, "rate_messages_per_second": 1010.0}
    for before in ([], [point(9, messages=7, **old)], [point(3, messages=90_000, **old)]):
        found = history("hour", *before, point(2, messages=40_400, **fast), point(1, messages=40_400, **fast))
        assert [each["rate_messages_per_second"] for each in found[-3:-1]] == [673.333, 0.0]


def test_the_last_messages_of_a_process_are_in_the_minute_in_which_it_ended() -> None:
    old = {"instance_id": "in_1", "started_at": "2026-02-28T20:00:00.000000Z"}
    new = {"instance_id": "in_2", "started_at": "2026-03-01T00:11:40.000000Z", "rate_messages_per_second": None}
    short = {"instance_id": "in_3", "started_at": "2026-03-01T00:11:20.000000Z", "messages": 6}
    before = point(1, messages=300, **old)
    for total, others, rate in (
        (0, [{**old, "messages": 360}], 1.0),
        (12, [{**old, "messages": 360}, short], 1.3),
        (None, [{**old, "messages": 360}], 1.0),
        (None, [], None),
        # It ended in an earlier minute.
        (12, [{**old, "instance_id": "in_0", "messages": 360}], 0.2),
    ):
        found = history("hour", before, point(0, messages=total, others=others, **new))
        assert found[-1]["rate_messages_per_second"] == rate


def test_a_process_that_took_a_stream_over_counts_from_then_on() -> None:
    """It had waited as a standby, longer than the minute."""
    old = {"instance_id": "in_1", "started_at": "2026-02-28T20:00:00.000000Z"}
    new = {"instance_id": "in_2", "started_at": "2026-03-01T00:05:00.000000Z", "rate_messages_per_second": 9.0}
    before = point(1, messages=300, **old)
    found = history("hour", before, point(0, messages=30, others=[{**old, "messages": 330}], **new))
    assert found[-1]["rate_messages_per_second"] == 1.0


def test_a_process_that_started_before_its_minute_has_the_rate_that_it_measured() -> None:
    started = {"instance_id": "in_2", "started_at": "2026-03-01T00:09:59.000000Z"}
    found = history("hour", point(1, messages=40_400, **started))
    assert found[-2]["rate_messages_per_second"] == 4.0
    by_hand = [point(2, **{**started, "started_at": None}, messages=90_000), point(1, messages=40_400, **started)]
    assert history("hour", *by_hand)[-2]["rate_messages_per_second"] == 4.0, "its home had another process"
