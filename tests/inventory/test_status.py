from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from connectors.pubsub.client import SubscriptionInfo
from inventory.status import count_attached, growing_item, judge_collected, judge_snapshots, judge_streams
from inventory.streams import InstanceTotal, StreamOut
from jobs.store.figures import FigurePoint
from model.stream_record import StreamRecord, StreamState
from model.stream_snapshot import SnapshotReason, SnapshotRecord, SnapshotState

FAILED_NOW = {"count": 1, "last_at": datetime.now(UTC), "message": "Failed."}


def stream(name: str = "backup", state: str = "RUNNING", **fields: Any) -> StreamOut:
    known: dict[str, Any] = dict.fromkeys(StreamOut.model_fields)
    known |= {"kind": name.partition("-")[0], "totals": {}, "seconds_since_report": 1.0}
    return StreamOut(**{**known, "name": name, "state": state, **fields})


@pytest.mark.parametrize(
    ("found", "attached", "codes"),
    [
        (stream(), 3, []),
        (stream(state="STARTING"), 3, []),
        (stream(state="DRAINED"), 0, []),
        (stream(state="DRAINED"), None, []),
        (stream(state="DRAINED"), 1, ["backup_not_running"]),
        (stream("pipeline-a", "DRAINED"), 0, []),
        (stream("pipeline-a", "DRAINED", backlog_messages=0, lag_seconds=0.0), 0, []),
        (stream("pipeline-a", "DRAINED", backlog_messages=92, lag_seconds=2.0), 0, ["stream_ended"]),
        (stream("pipeline-a", "CANCELLED", backlog_messages=1, lag_seconds=301.0), 0, ["stream_ended"]),
        (stream("pipeline-a"), 1, ["backup_not_running"]),
        (stream(state="NOT_REPORTING", seconds_since_report=None), 1, ["stream_not_reporting"]),
        (stream(state="WAITING", error={"code": "x", "message": "y"}), 1, ["stream_failing"]),
        (stream("pipeline-a", alerts=[{"about": "o", "code": "x", "message": "y"}]), 0, ["source_alert"]),
        (stream(state="STARTING", failures=FAILED_NOW), 1, ["stream_failed"]),
        (stream(state="RUNNING", failures=FAILED_NOW), 1, ["stream_failed"]),
        (
            stream("pipeline-a", "FAILED", failures=FAILED_NOW, error={"code": "x", "message": "y"}),
            0,
            ["stream_failing"],
        ),
        (stream("pipeline-a", "DRAINED", failures=FAILED_NOW), 0, []),
        (stream("pipeline-a", "DRAINED", alerts=[{"about": "o", "code": "x", "message": "y"}]), 0, []),
        (stream(lag_seconds=299.0), 1, []),
        (stream(lag_seconds=301.0), 1, ["stream_behind"]),
    ],
)
def test_what_is_wrong_with_a_stream_is_named(found: StreamOut, attached: int | None, codes: list[str]) -> None:
    assert [problem.code for problem in judge_streams([found], attached)] == codes


def test_a_long_time_is_said_in_hours() -> None:
    (silent,) = judge_streams([stream(state="NOT_REPORTING", seconds_since_report=3664.0)], 1)
    (late,) = judge_streams([stream(lag_seconds=3664.0)], 1)
    assert silent.message == "It has not reported for 1 h 1 min."
    assert late.message == "Its oldest pending message is 1 h 1 min old."


@pytest.mark.parametrize("other", [stream("rows", kind="pipeline", options={"group": "a"}), stream("pipeline-b")])
def test_messages_of_an_ended_stream_wait_only_if_no_other_stream_reads_them(other: StreamOut) -> None:
    ended = stream("pipeline-a", "DRAINED", backlog_messages=92, lag_seconds=301.0)
    messages = [problem.message for problem in judge_streams([ended, other], 0)]
    assert messages == ([] if other.options else ["It is DRAINED, and 92 messages wait for it."])


def test_topics_without_any_stream_are_not_backed_up() -> None:
    assert [problem.message for problem in judge_streams([], 2)] == [
        "2 topics are attached but nothing is backed up, because the backup stream is not known here."
    ]
    assert judge_streams([], 0) == []


def test_a_backup_that_pubsub_has_detached_is_no_attached_topic() -> None:
    gone = SubscriptionInfo("refeed-backup.orders", "orders", "", ack_deadline_seconds=60, detached=True)
    assert count_attached([gone, replace(gone, detached=False), replace(gone, id="shop", detached=False)]) == 1


def test_a_topic_of_a_collector_that_nothing_subscribes_to_is_named() -> None:
    reader = SubscriptionInfo("reader", "orders", "", ack_deadline_seconds=60)
    detached = replace(reader, id="gone", topic="shop.carts", detached=True)
    topics = ["orders", "members", "shop.carts", "shop.views", "others"]
    found = judge_collected(["orders", "members", "shop.*", "missing"], topics, [reader, detached])
    assert [(each.code, each.name) for each in found] == [
        ("topic_unread", "members"),
        ("topic_unread", "shop.carts"),
        ("topic_unread", "shop.views"),
    ]


NOW = datetime(2026, 3, 2, tzinfo=UTC)
HOUR = timedelta(hours=1)


def record(state: StreamState = StreamState.RUNNING, *, hours: float = 24) -> StreamRecord:
    known: dict[str, Any] = dict.fromkeys(StreamRecord.__dataclass_fields__)
    return StreamRecord(**known | {"name": "backup", "state": state, "created_at": NOW - hours * HOUR})


def snapshot(hours: float, state: SnapshotState = SnapshotState.COMPLETED) -> SnapshotRecord:
    at = NOW - hours * HOUR
    reason = SnapshotReason.SCHEDULED
    return SnapshotRecord(
        "sn_1", "backup", "backup", with_source=True, reason=reason, state=state, created_by="agent",
        created_at=at, taken_at=at,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("found", "snapshots", "gaps"),
    [
        (record(), [snapshot(1.9)], 0),
        (record(), [snapshot(2.1)], 1),
        (record(), [snapshot(9), snapshot(0.5)], 0),
        (record(), [snapshot(0.5, SnapshotState.FAILED), snapshot(2.1)], 1),
        (record(), [replace(snapshot(0.5), with_source=False), snapshot(2.1)], 1),
        (record(), [], 1),
        (record(hours=1.9), [], 0),
        (record(StreamState.DRAINED), [], 0),
    ],
)
def test_a_gap_in_the_snapshots_of_a_living_stream_is_named(found, snapshots, gaps):
    problems = judge_snapshots([found], snapshots, every=HOUR, now=NOW)
    assert [problem.code for problem in problems] == ["snapshot_gap"] * gaps
    assert judge_snapshots([found], snapshots, every=timedelta(0), now=NOW) == []


def ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


def point(minutes: float, total: int | None, instance: str = "in_1") -> FigurePoint:
    return FigurePoint(ago(minutes), {"dead_letters": total, "instance_id": instance})


def made(instance: str, started: float, reported: float, total: int) -> InstanceTotal:
    return InstanceTotal(instance, ago(started), ago(reported), total)


def growing(points: list[FigurePoint], instances: list[InstanceTotal]) -> tuple[str, datetime] | None:
    found = growing_item(stream("pipeline-a"), points, instances, NOW - HOUR)
    return None if found is None else (found.message.partition(" became")[0], found.since)


@pytest.mark.parametrize(
    ("started", "totals", "said"),
    [
        (3000, {50: 4, 30: 6}, "5 messages"),
        (25, {50: 4, 30: 6}, "11 messages"),
        (25, {20: 9}, "9 messages"),
        (25, {}, "9 messages"),
        (25, {30: 9}, "9 messages"),
        (3000, {}, None),
        (3000, {50: 9}, None),
    ],
    ids=["one process", "one before", "all in the first minute", "no minute yet", "as many", "unknown", "none"],
)
def test_dead_letters_of_the_last_hour_count_from_0_with_the_newest_process(started, totals, said):
    """``started`` and ``totals`` are by minutes ago, of a process that somebody restarts; its total is 9."""
    points = [point(minutes, total) for minutes, total in totals.items()]
    found = growing(points, [made("in_1", started, 0, 9)])
    assert (found and found[0]) == said


# 5 messages became dead letters a minute after the first of these instances started.
FIRST_POINTS = [point(54, 0), point(53, 5), point(52, 5), point(51, 5)]
FIRST = made("in_1", 55, 50.5, 5)


@pytest.mark.parametrize(
    ("points", "instances"),
    [
        ([*FIRST_POINTS, point(50, 0, "in_2")], [FIRST, made("in_2", 52.5, 0, 0)]),
        ([*FIRST_POINTS, point(50, 0, "in_2"), point(49, 0, "in_3")], [made("in_3", 50, 0, 0), FIRST]),
        ([*FIRST_POINTS, point(50, None, "in_2")], [FIRST]),
        ([point(54, 0), point(53, None, "in_2")], [FIRST, made("in_2", 53.5, 0, 0)]),
        ([*FIRST_POINTS, point(50, 0, "in_2")], [made("in_2", 50.5, 0, 0)]),
        ([], [FIRST, made("in_0", 300, 90, 7), made("in_2", 50, 0, 0)]),
    ],
    ids=[
        "a standby starts before the hand-over",
        "an update is taken back",
        "the newest instance has not reported yet",
        "the old instance ends before its next minute",
        "the old instance's report is gone",
        "an instance ended before the hour",
    ],
)
def test_a_dead_letter_counts_once_whichever_instances_of_the_stream_report_it(points, instances):
    found = growing(points, instances)
    assert found[0] == "5 messages"
    assert ago(55) <= found[1] <= ago(54)


def test_dead_letters_of_the_first_minute_of_a_process_count_when_its_report_is_long_gone():
    """Several processes have followed: a stream keeps the reports of the newest few."""
    first = point(50, 30)
    first.figures["started_at"] = f"{ago(51):%Y-%m-%dT%H:%M:%S.%fZ}"
    points = [first, point(49, 30), point(30, 0, "in_2"), point(20, 0, "in_3"), point(10, 0, "in_4")]
    assert growing(points, [made("in_4", 11, 0, 15)]) == ("45 messages", ago(51))


def test_an_item_of_dead_letters_says_when_it_goes():
    item = growing_item(stream("pipeline-a"), FIRST_POINTS, [FIRST], NOW - HOUR)
    assert item.message.endswith("Without a new one, this item goes after one hour.")


def test_dead_letters_of_both_sides_of_an_update_are_added():
    points = [*FIRST_POINTS, point(50, 2, "in_2"), point(49, 3, "in_2")]
    assert growing(points, [FIRST, made("in_2", 52.5, 0, 4)]) == ("9 messages", ago(54))


def test_dead_letters_began_with_the_minute_of_the_first_one_and_not_with_the_process():
    points = [point(minutes, 0) for minutes in range(50, 20, -1)] + [point(20, 3), point(19, 3)]
    assert growing(points, [made("in_1", 300, 0, 4)]) == ("4 messages", ago(21))


def test_dead_letters_that_never_paused_for_an_hour_began_with_the_first_one():
    """Two a day before, and then three that are 50 minutes from each other."""
    totals = {1440: 0, 1439: 2, 110: 2, 109: 3, 60: 3, 59: 4, 10: 4, 9: 5}
    points = [point(minutes, total) for minutes, total in totals.items()]
    found = growing_item(stream("pipeline-a"), points, [], NOW - 48 * HOUR)
    assert (found.message.partition(" became")[0], found.since) == ("3 messages", ago(110))
