from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from connectors.pubsub.client import SubscriptionInfo
from inventory.status import count_attached, growing_item, judge_collected, judge_snapshots, judge_streams
from inventory.streams import StreamInfo
from jobs.store.figures import FigurePoint
from model.moment import render_moment
from model.stream_record import StreamRecord, StreamState
from model.stream_snapshot import SnapshotReason, SnapshotRecord, SnapshotState


def stream(name: str = "backup", state: str = "RUNNING", **fields: Any) -> StreamInfo:
    known: dict[str, Any] = dict.fromkeys(StreamInfo.__dataclass_fields__)
    known |= {"kind": name.partition("-")[0], "totals": {}, "seconds_since_report": 1.0}
    return StreamInfo(**{**known, "name": name, "state": state, **fields})


@pytest.mark.parametrize(
    ("found", "attached", "codes"),
    [
        (stream(), 3, []),
        (stream(state="STARTING"), 3, []),
        (stream(state="DRAINED"), 0, []),
        (stream(state="DRAINED"), None, []),
        (stream(state="DRAINED"), 1, ["backup_not_running"]),
        (stream("pipeline-a", "DRAINED"), 0, []),
        (stream("pipeline-a"), 1, ["backup_not_running"]),
        (stream(state="NOT_REPORTING", seconds_since_report=None), 1, ["stream_not_reporting"]),
        (stream(state="WAITING", error={"code": "x", "message": "y"}), 1, ["stream_failing"]),
        (stream("pipeline-a", alerts=[{"about": "o", "code": "x", "message": "y"}]), 0, ["source_alert"]),
        (stream("pipeline-a", "DRAINED", alerts=[{"about": "o", "code": "x", "message": "y"}]), 0, []),
        (stream(lag_seconds=299.0), 1, []),
        (stream(lag_seconds=301.0), 1, ["stream_behind"]),
    ],
)
def test_what_is_wrong_with_a_stream_is_named(found: StreamInfo, attached: int | None, codes: list[str]) -> None:
    assert [problem.code for problem in judge_streams([found], attached)] == codes


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
    """``started`` and ``totals`` are by minutes ago; the total is 9 now."""

    def ago(minutes: int) -> datetime:
        return NOW - timedelta(minutes=minutes)

    found = growing_item(
        stream("pipeline-a", totals={"dead_letters": 9}, started_at=render_moment(ago(started))),
        [FigurePoint(ago(minutes), {"dead_letters": total}) for minutes, total in totals.items()],
        NOW - HOUR,
    )
    assert (found and found.message.partition(" became")[0]) == said
