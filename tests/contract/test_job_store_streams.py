"""Reports of streams in every job store: two pods with homes of their own, and an API with a third one."""

import os
import socket
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from inventory.streams import StreamOwner, read_streams
from jobs.store import JobStore, open_store
from jobs.store.tables import REPORTS
from model.errors import RequestInvalidError
from model.fault import FaultRecord
from model.stream import StreamReport
from rollout import stream_reports
from rollout.stream_reports import StreamReports
from streams.status import StatusFile
from tests.waiting import wait_until

REPORT = StreamReport("backup", "home-1", "pod-1", 7, "running", {"totals": {"messages": 3}})


@pytest.fixture(autouse=True)
def quick_reports(monkeypatch):
    monkeypatch.setattr(stream_reports, "_REPORT_SECONDS", 0.02)


class Pods:
    """Makes streams that run in pods, each with a hostname and a home of its own, on one shared store."""

    def __init__(self, url, folder, monkeypatch):
        self.url = url
        self.folder = folder
        self._monkeypatch = monkeypatch

    @contextmanager
    def stream(self, pod, name):
        home = self.folder / pod / "streams" / name
        home.mkdir(parents=True)
        self._monkeypatch.setattr(socket, "gethostname", lambda: pod)
        status = StatusFile(home / "status.json", instance=f"home-of-{pod}")
        with closing(open_store(self.url)) as store:
            reports = StreamReports(lambda: store, self.folder / pod)
            reports.follow([name])
            yield status
            reports.stop()

    def seen(self, store, groups=None):
        """What an API in a third pod shows."""
        found = read_streams(self.folder / "api", None, store.list_stream_reports(), groups)
        return {stream.name: stream for stream in found}

    def wait_for(self, store, name, state, messages=None):
        deadline = time.monotonic() + 20
        while (found := self.seen(store).get(name)) is None or (
            (found.state, found.totals.get("messages")) != (state, messages)
        ):
            assert time.monotonic() < deadline, f"{name} is not {state} with {messages} messages: {found}"
            time.sleep(0.01)
        return found


@pytest.fixture
def pods(url, tmp_path, monkeypatch):
    return Pods(url, tmp_path, monkeypatch)


def age(store, name, seconds):
    """Make the last report older, as if the stream had been killed then."""
    with store._database.write() as connection:
        at = datetime.now(UTC) - timedelta(seconds=seconds)
        connection.execute(REPORTS.update().where(REPORTS.c.name == name).values(reported_at=at))


def test_streams_of_two_pods_are_seen_by_an_api_that_shares_no_home_with_them(store, pods):
    with pods.stream("pod-1", "backup") as backup, pods.stream("pod-2", "pipeline-a") as pipeline:
        backup.write(state="running", totals={"messages": 0})
        pods.wait_for(store, "backup", "RUNNING", messages=0)
        backup.write(totals={"messages": 500}, batch_seconds=0.5)
        pipeline.write(state="waiting", error={"code": "storage_full", "message": "The disk is full."})
        waiting = pods.wait_for(store, "pipeline-a", "WAITING")
        running = pods.wait_for(store, "backup", "RUNNING", messages=500)
    assert running.owner == StreamOwner(host="pod-1", pid=os.getpid())
    assert (running.instance_id, running.totals) == ("home-of-pod-1", {"messages": 500})
    assert running.batch_seconds == 0.5
    assert running.rates["messages"] > 0
    assert running.over_seconds is not None
    assert 0 <= (running.seconds_since_report or 0) < 15
    assert (running.lag_seconds, running.lag_measured_at, running.backlog_messages) == (None, None, None)
    assert running.started_at is not None
    assert waiting.owner == StreamOwner(host="pod-2", pid=os.getpid())
    assert waiting.error == FaultRecord("storage_full", "The disk is full.")


def test_the_end_of_a_stream_is_reported_before_its_pod_goes(store, pods, log):
    with pods.stream("pod-1", "backup") as backup:
        backup.write(state="running")
        backup.write(state="stopped")
    assert "last_report_missing" not in log()
    assert pods.seen(store)["backup"].state == "DRAINED"
    age(store, "backup", 3600)
    assert pods.seen(store)["backup"].state == "DRAINED", "however long ago"


def test_a_stream_that_was_killed_in_its_pod_does_not_report_after_fifteen_seconds(store, pods):
    store.put_stream_reports(
        [(replace(REPORT, status={"totals": {"messages": 3}, "rates": {"messages": 1.0}}), 0.0)]
    )
    assert pods.seen(store)["backup"].state == "RUNNING"
    age(store, "backup", 16)
    found = pods.seen(store)["backup"]
    assert (found.state, found.rates, found.totals) == ("NOT_REPORTING", None, {"messages": 3})


def test_the_instance_that_runs_now_is_shown_and_not_the_pod_that_it_followed(store, pods):
    store.put_stream_reports([(replace(REPORT, state="stopped"), 0.0)])
    store.put_stream_reports([(replace(REPORT, instance="home-2", host="pod-2"), 0.0)])
    found = pods.seen(store)["backup"]
    assert (found.state, found.instance_id, found.owner) == ("RUNNING", "home-2", StreamOwner(host="pod-2", pid=7))
    assert [each.report.instance for each in store.list_stream_reports()] == ["home-2", "home-1"]


def test_a_report_takes_the_place_of_the_last_one_and_old_pods_go(store):
    store.put_stream_reports([(REPORT, 0.0)])
    store.put_stream_reports([(replace(REPORT, host="pod-2", pid=8, state="waiting", status={"totals": {}}), 0.0)])
    (found,) = store.list_stream_reports()
    assert found.report == replace(REPORT, host="pod-2", pid=8, state="waiting", status={"totals": {}})
    assert 0 <= found.age_seconds < 15
    age(store, "backup", 8 * 86_400)
    store.put_stream_reports([(replace(REPORT, name="pipeline-a"), 0.0)])
    assert len(store.list_stream_reports()) == 2, "another stream's reports are none of its business"
    store.put_stream_reports([(replace(REPORT, instance="home-2"), 0.0)])
    assert [each.report.instance for each in store.list_stream_reports()] == ["home-2", "home-1"]


def test_reports_of_many_streams_are_kept_together_or_not_at_all_and_are_as_old_as_they_say(store):
    store.put_stream_reports([(REPORT, 0.0)])
    others = [replace(REPORT, name=f"pipeline-{number}") for number in range(3)]
    store.put_stream_reports([(replace(REPORT, state="stopped"), 5.0), *((each, 60.0) for each in others)])
    found = {each.report.name: each for each in store.list_stream_reports()}
    assert found["backup"].report.state == "stopped"
    assert 5 <= found["backup"].age_seconds < 15
    assert all(60 <= found[each.name].age_seconds < 75 for each in others)
    # A text that no database keeps.
    with pytest.raises(RequestInvalidError):
        store.put_stream_reports([(replace(REPORT, pid=9), 0.0), (replace(REPORT, name="x", host="\ud800"), 0.0)])
    assert {each.report.pid for each in store.list_stream_reports()} == {7}


def test_the_age_of_a_report_is_told_by_the_store_s_clock(make_postgresql_store, tmp_path, monkeypatch):
    """A pod whose clock is an hour slow is not silent; only PostgreSQL has hosts with clocks of their own."""
    pods = Pods(make_postgresql_store(), tmp_path, monkeypatch)
    with closing(open_store(pods.url)) as store, pods.stream("pod-1", "backup") as backup:
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() - 3600)
        backup.write(state="running")
        assert (pods.wait_for(store, "backup", "RUNNING").seconds_since_report or 0) < 15


def test_a_home_s_own_file_counts_where_it_is_newer_than_the_store(store, pods):
    store.put_stream_reports([(REPORT, 0.0)])
    age(store, "backup", 60)
    path = pods.folder / "api" / "streams" / "backup" / "status.json"
    path.parent.mkdir(parents=True)
    StatusFile(path, instance="home-1").write(state="draining")
    assert pods.seen(store)["backup"].state == "DRAINING"


def test_a_group_that_left_the_registry_is_over_once_it_does_not_run(store, pods):
    store.put_stream_reports([(replace(REPORT, name="pipeline-a"), 0.0)])
    store.put_stream_reports([(REPORT, 0.0)])
    assert pods.seen(store)["pipeline-a"].is_retired is None, "nobody can read the registry"
    assert not pods.seen(store, frozenset({"a"}))["pipeline-a"].is_retired
    running = pods.seen(store, frozenset())
    assert (running["pipeline-a"].is_retired, running["pipeline-a"].is_over) == (True, False)
    store.put_stream_reports([(replace(REPORT, name="pipeline-a", state="stopped"), 0.0)])
    store.put_stream_reports([(replace(REPORT, state="stopped"), 0.0)])
    drained = pods.seen(store, frozenset())
    assert (drained["pipeline-a"].is_over, drained["backup"].is_over) == (True, False)


def test_a_store_that_is_away_holds_nothing_up_and_is_said_once(url, store, pods, monkeypatch, log):
    """The status is written at once, whether the store hangs or fails, and reported when it is back."""
    hangs, is_away, failed = threading.Event(), True, []
    put = JobStore.put_stream_reports

    def fail(self, reports):
        if is_away:
            hangs.wait(20)
            failed.append(reports)
            with self._database.write() as connection:
                connection.exec_driver_sql("SELECT * FROM a_table_that_is_not_there")
        put(self, reports)

    monkeypatch.setattr(JobStore, "put_stream_reports", fail)
    with pods.stream("pod-1", "backup") as backup:
        began = time.monotonic()
        for number in range(50):
            backup.write(state="running", totals={"messages": number})
        assert time.monotonic() - began < 5, "a write waited for the store"
        hangs.set()
        wait_until(lambda: len(failed) > 3, "the store fails time and again")
        is_away = False
        pods.wait_for(store, "backup", "RUNNING", messages=49)
    assert log().count("streams_not_reported") == 1
    assert log().count("streams_reported_again") == 1


@pytest.fixture
def log(monkeypatch):
    """Return what gives the names of the events that were logged."""
    said = []

    class Log:
        def warning(self, event, **_):
            said.append(event)

        info = warning

    monkeypatch.setattr(stream_reports, "_log", Log())
    return lambda: said
