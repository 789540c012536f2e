"""What is shown of a stream that was launched: its record, and the report of its newest process."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from connectors.pubsub.stats import SubscriptionStats
from inventory.status import judge_streams, waiting_item
from inventory.streams import StreamOut, StreamOwner, read_streams
from jobs.lease_owner import LeaseOwner
from model.fault import FaultRecord
from model.moment import render_time
from model.stream import StoredReport, StreamReport
from model.stream_options import StreamKind
from model.stream_record import StreamHome, StreamRecord, StreamState, Wanted

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FAULT = FaultRecord("process_ended", "It ended with code 1.")


@pytest.fixture
def agent() -> str:
    return str(LeaseOwner.current())


@pytest.fixture
def record(agent: str) -> StreamRecord:
    return StreamRecord(
        name="backup",
        kind=StreamKind.BACKUP,
        release="1.2",
        options={"slots": 4},
        wanted=Wanted.RUNNING,
        drain_timeout_seconds=120.0,
        state=StreamState.RUNNING,
        generation=2,
        version=5,
        instance_id="in_2",
        agent=agent,
        is_held=True,
        home=StreamHome("m", "/h"),
        snapshot_id=None,
        error=None,
        created_by="ann",
        created_at=NOW,
        launched_by="bob",
        launched_at=NOW,
        changed_at=NOW,
    )


def report(instance: str = "in_2", state: str = "running", age: float = 1.0, **status: Any) -> StoredReport:
    return StoredReport(StreamReport("backup", instance, "m", 7, state, status), NOW, age)


def show(record: StreamRecord, *reports: StoredReport, folder: Path = Path("/nowhere")) -> StreamOut:
    (found,) = read_streams(folder, None, reports, None, [record])
    return found


def test_what_was_asked_for_stands_beside_what_is_reported(record: StreamRecord) -> None:
    found = show(record, report(totals={"messages": 5, "redelivered": 2}))
    assert (found.name, found.kind, found.state, found.wanted) == ("backup", "backup", "RUNNING", "RUNNING")
    assert (found.release, found.options, found.generation) == ("1.2", {"slots": 4}, 2)
    assert (found.instance_id, found.owner, found.etag) == ("in_2", StreamOwner(host="m", pid=7), '"5"')
    assert (found.redelivered, found.totals, found.not_committed) == (2, {"messages": 5, "redelivered": 2}, None)
    assert (found.home, found.created_by) == (StreamHome("m", "/h"), "ann")
    assert (found.launched_by, found.launched_at) == ("bob", NOW)
    assert (found.created_at, found.drain_timeout_seconds) == (NOW, None)
    assert found.agent.pid > 0


def test_a_stream_that_was_started_by_hand_has_the_same_fields_and_null_in_them() -> None:
    (found,) = read_streams(Path("/nowhere"), None, [report("home-1")])
    assert (found.kind, found.state, found.instance_id) == ("backup", "RUNNING", "home-1")
    assert {found.wanted, found.generation, found.release, found.options, found.agent, found.etag} == {None}
    (rows,) = read_streams(
        Path("/nowhere"), None, [replace(report(), report=replace(report().report, name="pipeline-a"))]
    )
    assert rows.kind == "pipeline"


REPORTED = [
    # A record's part, what the newest report says, and what is shown.
    ({}, report(), "RUNNING"),
    ({}, report(state="waiting"), "WAITING"),
    ({}, report(age=16), "NOT_REPORTING"),
    ({"state": StreamState.STARTING, "instance_id": None}, None, "STARTING"),
    ({"state": StreamState.STARTING}, report("in_1", "stopped"), "STARTING"),
    (
        {"state": StreamState.FAILED, "error": FAULT},
        report(state="failed", error={"code": "a", "message": "b"}),
        "FAILED",
    ),
    ({"state": StreamState.FAILED, "error": FAULT}, report(age=16), "FAILED"),
    ({"is_held": False}, None, "NOT_REPORTING"),
    ({"is_held": False}, report(), "RUNNING"),
    ({"state": StreamState.UPDATING}, report(), "UPDATING"),
    ({"wanted": Wanted.DRAINED}, report(), "DRAINING"),
    ({"wanted": Wanted.DRAINED}, report(state="stopped"), "DRAINING"),
    ({"wanted": Wanted.CANCELLED}, report(), "DRAINING"),
    ({"wanted": Wanted.DRAINED}, report(age=16), "NOT_REPORTING"),
    ({"wanted": Wanted.DRAINED, "state": StreamState.DRAINED}, report(state="stopped", age=900), "DRAINED"),
    ({"wanted": Wanted.CANCELLED, "state": StreamState.CANCELLED}, None, "CANCELLED"),
    # Somebody runs it by hand under its name.
    ({"wanted": Wanted.DRAINED, "state": StreamState.DRAINED}, report("home-1"), "RUNNING"),
    ({"wanted": Wanted.DRAINED, "state": StreamState.DRAINED}, report("home-1", "stopped"), "DRAINED"),
    ({"state": StreamState.STARTING, "instance_id": None}, report("home-1", "stopped"), "STARTING"),
    ({"state": StreamState.STARTING, "instance_id": None}, report("home-1", age=900), "STARTING"),
]


@pytest.mark.parametrize(("fields", "newest", "state"), REPORTED)
def test_the_agent_says_how_a_stream_ended_and_the_stream_how_it_runs(record, fields, newest, state):
    assert show(replace(record, **fields), *([] if newest is None else [newest])).state == state


def test_the_figures_of_a_process_before_this_one_are_not_shown_as_its_own(record: StreamRecord) -> None:
    found = show(record, report("in_1", totals={"messages": 9}, age=0.5), report(totals={"messages": 1}, age=3))
    assert (found.instance_id, found.totals) == ("in_2", {"messages": 1})
    starting = replace(record, state=StreamState.STARTING, instance_id="in_3")
    for before in (report("in_1", totals={"messages": 9}), report("home-1", "stopped", totals={"messages": 9})):
        shown = show(starting, before)
        assert (shown.instance_id, shown.state, shown.totals, shown.reported_at) == ("in_3", "STARTING", {}, None)


def test_a_drain_that_took_too_long_says_how_many_messages_it_gave_back(record: StreamRecord) -> None:
    drained = replace(
        record,
        wanted=Wanted.DRAINED,
        state=StreamState.DRAINED,
        drain_timeout_seconds=5.0,
        error=FaultRecord("drain_timed_out", "3 messages were not committed."),
    )
    found = show(drained, report(state="stopped", not_committed=3))
    assert (found.not_committed, found.drain_timeout_seconds) == (3, 5.0)
    assert found.error == FaultRecord("drain_timed_out", "3 messages were not committed.")


def test_a_group_is_retired_by_its_name_and_not_by_the_stream_s(record: StreamRecord) -> None:
    rows = replace(record, name="rows", kind=StreamKind.PIPELINE, options={"group": "orders"})
    (found,) = read_streams(Path("/nowhere"), None, [], frozenset({"orders"}), [rows])
    assert (found.name, found.kind, found.is_retired) == ("rows", "pipeline", False)
    (found,) = read_streams(Path("/nowhere"), None, [], frozenset({"members"}), [rows])
    assert found.is_retired


@pytest.mark.parametrize(
    ("fields", "codes"),
    [
        ({}, []),
        ({"is_held": False}, ["stream_without_agent"]),
        ({"is_held": False, "wanted": Wanted.DRAINED, "state": StreamState.DRAINED}, []),
        ({"state": StreamState.FAILED, "error": FAULT}, ["stream_failing"]),
    ],
)
def test_a_stream_that_nobody_looks_after_is_a_problem(record, fields, codes):
    found = show(replace(record, name="backup", **fields), report())
    assert [problem.code for problem in judge_streams([found], None)] == codes


def test_the_backup_under_another_name_is_the_backup(record: StreamRecord) -> None:
    found = show(replace(record, name="everything", state=StreamState.DRAINED, wanted=Wanted.DRAINED))
    assert [problem.code for problem in judge_streams([found], 2)] == ["backup_not_running"]


WEEK = 7 * 86_400
STATS = {"refeed-backup.a": SubscriptionStats(0, 0.0), "refeed-backup.b": SubscriptionStats(3, 6.5 * 86_400)}


def age_of(shown: datetime | None) -> float:
    assert shown is not None
    return (shown - datetime.now(UTC)).total_seconds()


def test_what_waits_is_kept_as_long_as_the_subscription_with_the_oldest_message_keeps_it() -> None:
    retentions = {"refeed-backup.a": 600, "refeed-backup.b": WEEK, "other": 600}
    (found,) = read_streams(Path("/nowhere"), STATS, [report("home-1")], retentions=retentions)
    assert age_of(found.retained_until) == pytest.approx(0.5 * 86_400, abs=60)
    assert [problem.code for problem in judge_streams([found], None)] == ["messages_expire", "stream_behind"]
    (none,) = read_streams(
        Path("/nowhere"), {"refeed-backup.a": SubscriptionStats(0, 0.0)}, [report("home-1")], retentions=retentions
    )
    assert none.retained_until is None, "nothing waits"
    assert read_streams(Path("/nowhere"), STATS, [report("home-1")])[0].retained_until is None


@pytest.mark.parametrize("newest", [[], [report("in_3", "starting")]], ids=["not reported", "reads its sources"])
def test_pubsub_s_figures_of_a_stream_that_starts_are_those_of_its_subscriptions_before(record, newest):
    """A relaunched stream has its backlog and lag in the minute before its first batch."""
    starting = replace(record, kind=StreamKind.PIPELINE, state=StreamState.STARTING, instance_id="in_3")
    ended = report(state="stopped", age=90, subscriptions=["refeed-pipeline.a"], totals={"messages": 9})
    older = report("in_1", "stopped", age=900, subscriptions=["refeed-pipeline.b"])
    stats = {"refeed-pipeline.a": SubscriptionStats(20, 45.0), "refeed-pipeline.b": SubscriptionStats(7, 300.0)}
    reports = [ended, older, *newest]
    (found,) = read_streams(
        Path("/nowhere"), stats, reports, None, [starting], retentions={"refeed-pipeline.a": WEEK}
    )
    assert (found.state, found.backlog_messages, found.lag_seconds, found.totals) == ("STARTING", 20, 45.0, {})
    assert age_of(found.retained_until) == pytest.approx(WEEK - 45, abs=60)
    (unmeasured,) = read_streams(Path("/nowhere"), None, reports, None, [starting])
    assert (unmeasured.backlog_messages, unmeasured.lag_seconds) == (None, None)


@pytest.mark.parametrize(
    ("state", "reported", "backlog"),
    [
        (StreamState.STARTING, [], None),
        (StreamState.STARTING, [report(state="starting")], None),
        (StreamState.DRAINING, [report(state="stopped")], None),
        (StreamState.STARTING, [report()], 0),
        (StreamState.RUNNING, [report()], 0),
    ],
    ids=["not reported", "starts", "stopped for a restore", "runs", "runs, and its agent knows"],
)
def test_nothing_is_known_to_wait_for_a_stream_only_once_it_runs(record, state, reported, backlog):
    """A restore seeks before the start, and what it brings back is in no table yet."""
    stats = {"refeed-backup.a": SubscriptionStats(0, 0.0)}
    (found,) = read_streams(Path("/nowhere"), stats, reported, None, [replace(record, state=state)])
    assert (found.backlog_messages, found.lag_seconds) == (backlog, backlog)
    (pending,) = read_streams(
        Path("/nowhere"),
        {"refeed-backup.a": SubscriptionStats(3, 1.0)},
        reported,
        None,
        [replace(record, state=state)],
    )
    assert pending.backlog_messages == 3, "what waits is known"


def test_the_last_sample_of_a_stream_that_ended_bounds_what_came_after_it(record: StreamRecord) -> None:
    """At Google, where nobody measures for a stream that does not run."""
    at = datetime.now(UTC).timestamp() - 86_400
    ended = report(
        state="stopped",
        age=86_400,
        backlog={"oldest_unacked_seconds": 3600.0, "messages": None, "sampled_at": at},
        subscriptions=["refeed-pipeline.a", "gone"],
    )
    drained = replace(record, kind=StreamKind.PIPELINE, wanted=Wanted.DRAINED, state=StreamState.DRAINED)
    (found,) = read_streams(
        Path("/nowhere"), None, [ended], None, [drained], retentions={"refeed-pipeline.a": WEEK, "other": 60}
    )
    assert age_of(found.retained_until) == pytest.approx(6 * 86_400 - 3600, abs=60)
    assert (found.lag_seconds, found.backlog_messages) == (None, None), "a day old"
    assert judge_streams([found], None) == []
    item = waiting_item(drained, found)
    assert (item.kind, item.resource, item.id, item.state) == ("ended", "stream", "backup", "DRAINED")
    assert (
        item.message
        == f"It is DRAINED. Pub/Sub keeps its pending messages until {render_time(found.retained_until)}."
    )
