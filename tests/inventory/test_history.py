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
        "2026-02-28T23:13:00.000000Z",
        "2026-03-01T00:12:00.000000Z",
    ]
    assert (found[0]["lag_seconds"], found[-2]["lag_seconds"], found[-1]["lag_seconds"]) == (1.0, None, 1.0)
    assert set(found[1].values()) == {"2026-02-28T23:14:00.000000Z", None}


def test_a_day_has_the_mean_rate_and_the_worst_lag_of_each_ten_minutes() -> None:
    found = history(
        "day",
        point(2, rate_messages_per_second=1.0, lag_seconds=9.0),
        point(1, rate_messages_per_second=None, state="NOT_REPORTING"),
        point(0, backlog_messages=0),
    )
    assert len(found) == 144
    assert found[-1] == {
        "start": "2026-03-01T00:10:00.000000Z",
        "state": "RUNNING",
        "rate_messages_per_second": 2.5,
        "lag_seconds": 9.0,
        "backlog_messages": 3,
        "batch_seconds": None,
    }
    assert found[0]["start"] == "2026-02-28T00:20:00.000000Z"
