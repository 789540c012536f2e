"""Sources whose latest messages all became dead letters."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from inventory.refused import judge_refused
from inventory.streams import InstanceTotal, read_instance_totals
from jobs.store.figures import FigurePoint
from model.stream import StoredReport, StreamReport

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
SINCE = NOW - timedelta(hours=1)


def ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


def point(minutes: float, rows: int, refused: int, instance: str = "in_1") -> FigurePoint:
    return FigurePoint(ago(minutes), {"instance_id": instance, "refused": {"orders": [rows, refused]}})


@pytest.mark.parametrize(
    ("started", "points", "count"),
    [
        (30, [], None),
        (300, [], None),
        (30, [point(20, 100, 25)], 5),
        (300, [point(50, 100, 25), point(20, 100, 30)], 5),
        (300, [point(20, 100, 30)], None),
        (300, [point(20, 99, 25)], None),
        (300, [point(20, 100, 5, "in_0")], None),
    ],
    ids=[
        "it had rows before",
        "long ago",
        "lately, in a new process",
        "half an hour ago",
        "not in the last hour",
        "a row came too",
        "another process",
    ],
)
def test_a_source_is_named_if_its_latest_messages_all_became_dead_letters(started, points, count) -> None:
    """The process has counted 100 rows and 30 dead letters."""
    total = InstanceTotal("in_1", ago(started), NOW, 30, refused={"orders": (100, 30)})
    found = [(each.code, each.name, each.message) for each in judge_refused(total, points, SINCE)]
    said = f"All of the latest {count} messages of this source became dead letters, replays included."
    assert found == ([] if count is None else [("source_refuses", "orders", said)])


@pytest.mark.parametrize(("started", "is_named"), [(30, True), (300, False)])
def test_a_source_that_never_had_a_row_is_named_for_an_hour(started: float, is_named: bool) -> None:
    total = InstanceTotal("in_1", ago(started), NOW, 30, refused={"orders": (0, 30)})
    assert bool(list(judge_refused(total, [], SINCE))) is is_named


def test_the_dead_letters_of_a_source_stand_beside_its_rows_in_a_stream_s_report() -> None:
    counts = {
        "orders": {"rows": {"staged": 4}, "refused": {"not_json": 2, "wrong_type": 1}},
        "members": {"rows": {}},
    }
    status = {"started_at": 0.0, "totals": {"dead_letters": 3}, "sources": counts}
    report = StoredReport(StreamReport("pipeline-a", "in_1", "m", 7, "running", status), NOW, 1.0)
    (total,) = read_instance_totals(Path("/nowhere"), [report])["pipeline-a"]
    assert total.refused == {"orders": (4, 3)}
