"""How often a stream failed in the last hour, counted from its history."""

from datetime import UTC, datetime, timedelta

import pytest

from inventory.failures import StreamFailures, count_failures
from model.event import HistoryEvent, HistoryEventType
from model.stream_record import StreamState

NOW = datetime.now(UTC)
DIED = "process_ended: The process of backup ended with exit code -9."


def line(minutes_ago: float, to: str, *, generation: int = 1, name: str = "backup") -> HistoryEvent:
    at, moved = NOW - timedelta(minutes=minutes_ago), HistoryEventType.MOVED
    why = DIED if to == "FAILED" else None
    return HistoryEvent(1, "stream", name, at, "agent", moved, f"-> {to}", why, generation, {"to": to})


def test_failures_are_counted_for_each_launch_with_the_time_and_the_reason_of_the_latest() -> None:
    lines = [
        line(1, "STARTING"),
        line(2, "FAILED"),
        line(20, "FAILED"),
        line(30, "FAILED", generation=7),
        line(9, "RUNNING", name="pipeline-a"),
    ]
    found = count_failures(lines)
    assert {key: each.count for key, each in found.items()} == {("backup", 1): 2, ("backup", 7): 1}
    latest, single = found["backup", 1], found["backup", 7]
    assert latest.last_at == NOW - timedelta(minutes=2)
    assert f"{DIED} It failed 2 times in the last hour." in latest.message
    assert single.message.endswith(DIED)


@pytest.mark.parametrize(
    ("count", "minutes_ago", "state", "is_recent"),
    [
        (1, 1, "STARTING", True),
        (1, 1, "RUNNING", True),
        (1, 11, "RUNNING", False),
        (1, 11, "WAITING", False),
        (1, 11, "STARTING", True),
        (3, 50, "RUNNING", True),
    ],
)
def test_a_stream_has_got_over_a_failure_when_it_has_run_for_ten_minutes(
    count: int, minutes_ago: float, state: str, is_recent: bool
) -> None:
    failures = StreamFailures(count=count, last_at=NOW - timedelta(minutes=minutes_ago), message="Failed.")
    assert failures.is_recent(StreamState(state)) is is_recent
