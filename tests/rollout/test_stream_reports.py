"""Reports of the streams that an agent holds, in a store that other machines read."""

import os
import signal
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from inventory.streams import read_streams
from jobs.store import open_store
from model.errors import StoreUnavailableError
from model.stream_record import StreamState, Wanted
from rollout import stream_reports
from rollout.stream_reports import StreamReports
from streams.folder import STANDBY, StreamFolder
from streams.status import StatusFile
from tests.rollout.test_agent import Yard
from tests.waiting import wait_until

ROUND_SECONDS = 0.02


class Counted:
    """A store, and the reports of each transaction that it got; one that is ``away`` answers nothing."""

    def __init__(self, store):
        self._store = store
        self.batches: list[list[str]] = []
        self.is_away = False
        self.refusals = 0

    def note_event(self, *about, **fields):
        self._store.note_event(*about, **fields)

    def put_stream_reports(self, reports):
        if self.is_away:
            self.refusals += 1
            raise StoreUnavailableError("The job store does not answer.")
        self._store.put_stream_reports(reports)
        self.batches.append([report.instance for report, _ in reports])


class House:
    """A home, the store that it reports to, and the statuses of its streams."""

    def __init__(self, home, store):
        self.home = home
        self.store = store
        self.counted = Counted(store)
        self.reports = StreamReports(lambda: self.counted, home)  # type: ignore[arg-type,return-value]

    def status(self, name, instance):
        folder = StreamFolder.of(self.home, name, instance)
        folder.run.mkdir(parents=True)
        return StatusFile(folder.status, instance=instance)

    def stored(self):
        return {each.report.instance: each for each in self.store.list_stream_reports()}

    def states(self):
        return {instance: each.report.state for instance, each in self.stored().items()}

    def wait_for(self, **states):
        wait_until(lambda: self.states() == states, f"{states} are reported: {self.states()}")

    def pass_rounds(self):
        """Return after a report that began after this call: of a stream that was made for it."""
        status = self.status("other", f"in_other_{time.monotonic_ns()}")
        status.write(state="running")
        instance = str(status.fields()["instance"])
        wait_until(lambda: any(instance in batch for batch in self.counted.batches), "another one is reported")


@pytest.fixture
def house(tmp_path, monkeypatch):
    monkeypatch.setattr(stream_reports, "_REPORT_SECONDS", ROUND_SECONDS)
    with closing(open_store(f"sqlite:///{tmp_path / 'jobs.db'}")) as store:
        house = House(tmp_path / "home", store)
        yield house
        house.reports.stop()


def test_what_changed_is_reported_in_one_transaction_and_a_stream_that_hangs_falls_silent(house):
    names = [f"pipeline-{number}" for number in range(20)]
    statuses = [house.status(name, f"in_{name}") for name in names]
    for status in statuses:
        status.write(state="running", totals={"messages": 1})
    house.reports.follow([*names, "other"])
    wait_until(lambda: house.counted.batches, "they are reported")
    assert sorted(house.counted.batches[0]) == sorted(f"in_{name}" for name in names)

    for status in statuses[:3]:
        status.write(totals={"messages": 2})
    house.pass_rounds()
    later = [instance for batch in house.counted.batches[1:] for instance in batch if "other" not in instance]
    assert sorted(later) == [f"in_{name}" for name in names[:3]]


def test_a_topic_that_a_stream_has_attached_is_in_its_history_once(house):
    status = house.status("backup", "in_1")
    status.note_attached("orders")
    status.write(state="running")
    house.reports.follow(["backup", "other"])
    house.wait_for(in_1="running")
    for topic in ("orders", "members"):
        status.note_attached(topic)
        status.write(state="running")
        house.pass_rounds()
    # Another agent reports the same stream.
    again = StreamReports(lambda: house.counted, house.home)
    again.follow(["backup"])
    wait_until(lambda: ("backup", "in_1") in again._reported_at, "it has reported")
    again.stop()
    events = [each for each in house.store.list_last_events(limit=9) if each.resource == "topic"]
    assert sorted((each.id, each.actor, each.what) for each in events) == [
        ("members", "stream:backup", "attached, through refeed-backup.members"),
        ("orders", "stream:backup", "attached, through refeed-backup.orders"),
    ]


def test_the_end_of_a_stream_that_was_let_go_is_reported_and_then_nothing_of_it(house):
    status = house.status("backup", "in_1")
    status.write(state="running")
    house.reports.follow(["backup", "other"])
    house.wait_for(in_1="running")

    house.counted.is_away = True
    status.write_last(state="stopped")
    house.reports.follow(["other"])
    wait_until(lambda: house.counted.refusals > 2, "the store fails time and again")
    house.counted.is_away = False
    wait_until(lambda: house.states()["in_1"] == "stopped", "its end is reported when the store is back")

    # Another agent holds it.
    house.status("backup", "in_2").write(state="running")
    house.pass_rounds()
    assert "in_2" not in house.states()


def test_both_processes_of_a_hand_over_are_reported_and_a_standby_is_not(house):
    old, new = house.status("backup", "in_1"), house.status("backup", "in_2")
    old.write(state="running")
    new.write(state=STANDBY)
    house.reports.follow(["backup", "other"])
    house.pass_rounds()
    assert {name: state for name, state in house.states().items() if "other" not in name} == {"in_1": "running"}
    new.write(state="running", totals={"messages": 1})
    old.write_last(state="stopped")
    wait_until(lambda: house.states() | {"in_1": "stopped", "in_2": "running"} == house.states(), "both are there")


def test_a_report_is_as_old_as_its_status_so_that_an_agent_revives_nothing(house):
    status = house.status("backup", "in_1")
    status.write(state="running")
    path = StreamFolder.of(house.home, "backup", "in_1").status
    at = status.fields()["at"]
    path.write_text(path.read_text().replace(str(at), str(at - 3600)))
    house.reports.follow(["backup"])
    house.wait_for(in_1="running")
    assert 3600 <= house.stored()["in_1"].age_seconds < 3660
    (shown,) = read_streams(house.home / "another", None, house.store.list_stream_reports())
    assert shown.state == "NOT_REPORTING"


def test_a_stream_whose_words_the_store_can_not_keep_keeps_no_other_from_its_report(house, monkeypatch):
    said = []
    monkeypatch.setattr(stream_reports._log, "warning", lambda event, **said_of: said.append((event, said_of)))
    bad, good, damaged = (house.status(name, f"in_{name}") for name in ("bad", "good", "damaged"))
    damaged.write(state="running")
    StreamFolder.of(house.home, "damaged", "in_damaged").status.write_text('{"state": "running", "pid": 7}')
    bad.note(host="\ud800")
    for status in (bad, good):
        status.write(state="running")
    house.reports.follow(["bad", "good", "damaged", "other"])
    house.wait_for(in_good="running")
    bad.write()
    house.pass_rounds()
    assert [(event, given["stream"]) for event, given in said] == [("stream_not_reported", "bad")]


@pytest.fixture
def yard(tmp_path, monkeypatch):
    monkeypatch.setattr(stream_reports, "_REPORT_SECONDS", ROUND_SECONDS)
    with closing(open_store(f"sqlite:///{tmp_path / 'jobs.db'}")) as store:
        yard = Yard(tmp_path / "home", store)
        yield yard
        for agent in yard.agents:
            for process in agent:
                process.kill()


def seen(yard):
    """What an API without the agent's home shows."""
    found = read_streams(yard.home / "no", None, yard.store.list_stream_reports(), None, yard.store.list_streams())
    return {each.name: each.state for each in found}


def make_reporting_agent(yard, open_reports_store=None):
    yard.agent = yard.make_agent(reports=StreamReports(open_reports_store or (lambda: yard.store), yard.home))


def test_an_agent_reports_its_streams_whose_processes_know_of_no_job_store(yard, tmp_path, monkeypatch):
    """So that one of an older release goes on beside a store that it can't read."""
    monkeypatch.setenv("REFEED_JOB_STORE", f"sqlite:///{tmp_path / 'of-a-newer-release.db'}")
    make_reporting_agent(yard)
    process = yard.start()
    assert b"REFEED_JOB_STORE" not in Path(f"/proc/{process.pid}/environ").read_bytes()
    wait_until(lambda: yard.store.list_stream_reports() != [], "it is reported")
    assert seen(yard) == {"backup": "RUNNING"}, "it is shown where its home is not"
    (stored,) = yard.store.list_stream_reports()
    assert (stored.report.pid, stored.report.instance) == (process.pid, process.instance_id)

    yard.agent.stop(seconds=10)
    assert not process.is_running
    (stored,) = yard.store.list_stream_reports()
    assert stored.report.state == "stopped"
    assert not list(tmp_path.glob("of-a-newer*"))


def test_the_end_of_a_stream_between_two_agents_is_reported_by_the_second_one(yard):
    process = yard.start()
    yard.store.end_stream("backup", Wanted.DRAINED, actor="ann")
    os.kill(process.pid, signal.SIGTERM)
    wait_until(lambda: not process.is_running, "it has drained")
    assert yard.store.list_stream_reports() == []
    yard.store.release_streams(yard.agent.owner)
    make_reporting_agent(yard)
    yard.look_until(lambda: yard.record().state is StreamState.DRAINED, "it is let go of in the same look")
    wait_until(lambda: [each.report.state for each in yard.store.list_stream_reports()] == ["stopped"], "its end")


def test_a_store_that_hangs_keeps_no_look_waiting(yard):
    hangs, called = threading.Event(), threading.Event()

    def open_never():
        called.set()
        hangs.wait(60)
        raise StoreUnavailableError("The job store does not answer.")

    make_reporting_agent(yard, open_never)
    yard.start()
    try:
        assert called.wait(20)
        began = time.monotonic()
        for _ in range(3):
            yard.time += 10
            yard.agent.look()
        assert time.monotonic() - began < 5
        assert yard.record().is_held
    finally:
        hangs.set()
