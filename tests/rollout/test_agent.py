"""One process a stream, as the store wants it; the streams here are small scripts that take orders."""

import errno
import os
import signal
import sys
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jobs.lease_owner import LeaseOwner
from jobs.store import open_store
from jobs.store.tables import MANAGED_STREAMS
from model.event import HistoryEventType
from model.process import Process
from model.stream_options import StreamKind
from model.stream_record import StreamState, Wanted
from rollout import stream_logs
from rollout.agent import Agent
from rollout.releases import Releases
from rollout.starter import stream_arguments
from streams.control import BatchPace, ControlFile, StreamControl
from streams.folder import StreamFolder
from tests.rollout.wheels import write_small_release

# What a stream's process does with its control file and its status; "deaf" takes no orders.
STREAM = """
import os, signal, sys, time
from pathlib import Path
from streams.control import ControlFile
from streams.folder import StreamFolder
from streams.status import StatusFile

home, name, _, instance, mood = sys.argv[1:]
folder = StreamFolder.of(Path(home), name, instance)
status = StatusFile(folder.status, instance=instance)
orders = ControlFile(folder.control)
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
while True:
    control = orders.read()
    if mood == "broken":
        status.write_last(state="failed", error={"code": "checkpoint_corrupt", "message": "A file is damaged."})
        sys.exit(1)
    if mood != "deaf" and (stopped or control.order in ("drain", "cancel")):
        left = 0 if control.order == "drain" else 3
        end = "cancelled" if control.order == "cancel" else "stopped"
        status.write_last(state=end, not_committed=left, control_number=control.number)
        sys.exit(0)
    status.write(state="running", control_number=control.number)
    time.sleep(0.02)
"""


class Yard:
    """A home, its store, and agents whose clock the test moves."""

    def __init__(self, home, store):
        self.home = home
        self.store = store
        self.time = 1000.0
        self.said: list[str] = []
        self.moods: dict[str, str] = {}
        self.agents: list[Agent] = []
        self.agent = self.make_agent()

    def make_agent(self, **options):
        environment = {**os.environ, "REFEED_HOME": str(self.home), "PYTHONPATH": str(Path.cwd())}
        options = {"places": 10, "say": self.said.append, "now": lambda: self.time, **options}
        agent = Agent(self.store, environment=environment, **{"command": self._command, **options})
        self.agents.append(agent)
        return agent

    def _command(self, record, instance_id):
        mood = self.moods.get(record.name, "")
        return [sys.executable, "-c", STREAM, str(self.home), record.name, "--instance", instance_id, mood]

    def launch(self, name="backup", **options):
        return self.store.launch_stream(name, StreamKind.BACKUP, actor="ann", options=options)

    def record(self, name="backup"):
        return self.store.get_stream(name)

    def process(self, name="backup", agent=None):
        (found,) = [each for each in agent or self.agent if each.name == name]
        return found

    def look_until(self, is_true, why, agent=None):
        deadline = time.monotonic() + 30
        while not is_true():
            (agent or self.agent).look()
            assert time.monotonic() < deadline, f"{why}: {self.store.list_streams()} {self.said}"
            time.sleep(0.01)

    def start(self, name="backup", **options):
        self.launch(name, **options)
        self.look_until(lambda: self.record(name).state is StreamState.RUNNING, "it runs")
        return self.process(name)


@pytest.fixture
def yard(tmp_path):
    with closing(open_store(f"sqlite:///{tmp_path / 'jobs.db'}")) as store:
        yard = Yard(tmp_path / "home", store)
        yield yard
        for agent in yard.agents:
            for process in agent:
                process.kill()


def test_a_running_stream_s_log_is_rotated_by_its_agent(yard, monkeypatch):
    monkeypatch.setattr(stream_logs, "MAX_LOG_BYTES", 100)
    yard.start()
    log = yard.home / "logs" / "backup.log"
    with log.open("ab") as written:
        written.write(b"." * 200)
    yard.look_until(lambda: log.stat().st_size < 100, "it is rotated")
    assert log.with_name("backup.log.1").stat().st_size >= 200


def test_a_launched_stream_is_started_and_its_record_says_where_and_as_which_instance(yard):
    process = yard.start()
    record = yard.record()
    assert (record.state, record.agent, record.is_held) == (StreamState.RUNNING, yard.agent.owner, True)
    assert record.instance_id == process.instance_id
    assert record.home.path == str(yard.home / "streams" / "backup")
    assert [event.type for event in yard.store.list_stream_events("backup")] == [
        HistoryEventType.LAUNCHED,
        HistoryEventType.STARTED,
        HistoryEventType.MOVED,
    ]
    before = len(yard.store.list_stream_events("backup"))
    yard.agent.look()
    assert len(yard.store.list_stream_events("backup")) == before, "nothing has changed"


def test_a_pipeline_is_told_its_group_and_which_of_its_sources_were_renamed(yard):
    options = {"group": "eu", "mapping": {"orders": "sales"}}
    record = yard.store.launch_stream("shop", StreamKind.PIPELINE, actor="ann", options=options)
    expected = "pipeline run --group eu --mapping=orders=sales --name shop --instance in_1"
    assert " ".join(stream_arguments(record, "in_1")) == expected


def test_a_stream_is_of_the_release_that_its_record_names_once_it_is_there(yard, tmp_path):
    yard.store.launch_stream("backup", StreamKind.BACKUP, actor="ann", release="canary", options={"slots": 3})
    agent = yard.make_agent(command=None)
    yard.look_until(lambda: yard.record().state is StreamState.FAILED, "it can't be started", agent)
    error = yard.record().error
    assert error.code == "release_not_found"
    assert yard.record().instance_id is None

    says = "import os\nif sys.argv[1] == 'backup': print('slots', os.environ['REFEED_BACKUP_SLOTS'])"
    Releases(yard.home).add(write_small_release(tmp_path, "7.1", extra=says), name="canary")
    agent.look()
    assert yard.record().instance_id is None, "not before its time"
    yard.time += 60
    yard.look_until((yard.home / "logs" / "backup.log").exists, "it is started", agent)
    log = yard.home / "logs" / "backup.log"
    code = yard.home / "releases" / "canary" / "code" / "cli" / "main.py"
    yard.look_until(lambda: str(code) in log.read_text(), "the release's own code runs", agent)
    assert f"backup --name backup --instance {yard.record().instance_id}" in log.read_text()
    assert "slots 3" in log.read_text()


@pytest.mark.parametrize(("wanted", "left"), [(Wanted.DRAINED, 0), (Wanted.CANCELLED, 3)])
def test_a_stream_that_is_to_end_ends_and_stays_so_under_another_agent(yard, wanted, left):
    process = yard.start()
    yard.store.end_stream("backup", wanted, actor="ann", timeout_seconds=7)
    yard.look_until(lambda: yard.record().state.is_ended, "it ended")
    assert (yard.record().state, yard.record().agent) == (StreamState(wanted.value), None)
    control = ControlFile(process.folder.run / "control.json").read()
    drain = ("drain", 7.0) if wanted is Wanted.DRAINED else ("cancel", None)
    assert (control.order, control.timeout_seconds) == drain
    last = yard.store.list_stream_events("backup")[-1]
    assert last.why == ("3 messages were not committed. Pub/Sub delivers them again." if left else None)
    yard.make_agent().look()
    yard.agent.look()
    assert not [*yard.agents[0], *yard.agents[1]]
    yard.launch()
    yard.look_until(lambda: yard.record().state is StreamState.RUNNING, "launched again, it runs")
    assert yard.process().instance_id != process.instance_id


def test_another_pace_is_an_order_and_no_other_process(yard):
    process = yard.start(batch_seconds=2.0)
    assert process.control.pace.batch_seconds == 2.0
    yard.store.change_stream("backup", actor="ann", options={"batch_seconds": 0.5, "batch_bytes": 5_000_000})
    yard.agent.look()
    assert process.control == StreamControl(2, "run", None, 0.5, 5_000_000)
    yard.store.change_stream("backup", actor="ann", options={"batch_seconds": None, "batch_bytes": None})
    yard.agent.look()
    settings = yard.agent._settings
    pace = BatchPace(settings.backup_batch_seconds, settings.backup_batch_bytes)
    assert process.control.pace == pace, "the deployment's again"
    yard.agent.look()
    assert (process.control.number, yard.process().pid) == (3, process.pid)


def test_a_stream_that_somebody_paused_is_left_so_until_it_goes_on_or_is_to_end(yard):
    process = yard.start(batch_seconds=2.0)
    before = process.control
    assert process.pause(60.0) == before.number + 1
    yard.store.change_stream("backup", actor="ann", options={"batch_seconds": 0.5})
    yard.agent.look()
    assert (process.control.order, process.control.timeout_seconds) == ("pause", 60.0)
    # The next agent ends the pause of one that was killed.
    yard.store.release_streams(yard.agent.owner)
    successor = yard.make_agent()
    successor.look()
    adopted = yard.process(agent=successor)
    assert (adopted.control.order, adopted.control.batch_seconds) == ("run", 0.5)
    adopted.pause(60.0)
    yard.store.end_stream("backup", Wanted.CANCELLED, actor="ann")
    successor.look()
    adopted.resume()
    assert adopted.control.order == "cancel"
    yard.look_until(lambda: yard.record().state is StreamState.CANCELLED, "it ended", successor)
    yard.agent.look()


def test_a_stream_that_dies_is_tried_again_ever_more_slowly_and_nothing_else_ends(yard):
    other = yard.start("archive")
    yard.start()
    waits = []
    for _ in range(5):
        os.killpg(yard.process().pid, signal.SIGKILL)
        yard.look_until(lambda: yard.record().state is StreamState.FAILED, "it failed")
        began = yard.time
        while len(list(yard.agent)) == 1:
            yard.time += 0.5
            yard.agent.look()
        waits.append(yard.time - began)
        yard.look_until(lambda: yard.record().state is StreamState.RUNNING, "it runs again")
    assert waits == [1.0, 5.0, 25.0, 60.0, 60.0]
    assert any("ended by signal SIGKILL" in line for line in yard.said)
    assert yard.process("archive").pid == other.pid
    # One that ran for long is tried again soon.
    yard.time += 600
    os.killpg(yard.process().pid, signal.SIGKILL)
    yard.look_until(lambda: yard.record().state is StreamState.FAILED, "it failed")
    yard.time += 1
    yard.agent.look()
    assert len(list(yard.agent)) == 2


def test_a_stream_that_fails_says_why_and_can_still_be_drained(yard):
    yard.moods["backup"] = "broken"
    yard.launch()
    yard.look_until(lambda: yard.record().state is StreamState.FAILED, "it failed")
    error = yard.record().error
    assert (error.code, error.message) == ("checkpoint_corrupt", "A file is damaged.")
    yard.store.end_stream("backup", Wanted.DRAINED, actor="ann")
    yard.agent.look()
    assert yard.record().state is StreamState.DRAINED


@pytest.mark.parametrize(("wanted", "seconds"), [(Wanted.DRAINED, 67.0), (Wanted.CANCELLED, 15.0)])
def test_a_process_that_takes_no_orders_is_killed_after_a_grace(yard, wanted, seconds):
    yard.moods["backup"] = "deaf"
    process = yard.start()
    yard.store.end_stream("backup", wanted, actor="ann", timeout_seconds=7)
    yard.agent.look()
    assert yard.record().state is StreamState.DRAINING
    yard.time += seconds - 0.1
    yard.agent.look()
    assert process.is_running
    yard.time += 0.2
    yard.look_until(lambda: yard.record().state.is_ended, "it was killed")
    assert not process.is_running


def test_the_process_of_a_killed_agent_goes_on_under_the_next_one(yard):
    process = yard.start()
    # What the store and the machine have after a kill -9 of the agent.
    yard.store.release_streams(yard.agent.owner)
    successor = yard.make_agent()
    successor.look()
    adopted = yard.process(agent=successor)
    assert (adopted.pid, adopted.instance_id) == (process.pid, process.instance_id)
    assert yard.record().instance_id == process.instance_id
    # The first one was only frozen: it leaves the process to its successor.
    yard.agent.look()
    assert (list(yard.agent), process.is_running) == ([], True)
    # An adopted process takes orders, too, and its end is seen.
    yard.store.end_stream("backup", Wanted.DRAINED, actor="ann")
    yard.look_until(lambda: yard.record().state is StreamState.DRAINED, "it drained", successor)
    assert not adopted.is_running
    yard.agent.look()


def test_an_agent_that_is_known_to_be_dead_keeps_nobody_waiting(yard):
    dead = replace(LeaseOwner.current(), process=replace(LeaseOwner.current().process, start_ticks=1))
    yard.launch()
    yard.store.take_streams(str(dead), limit=1, lease_seconds=3600)
    yard.agent.look()
    assert yard.record().agent == yard.agent.owner


def test_a_standby_gets_a_stream_when_its_agent_s_lease_expires_and_not_before(yard):
    first = yard.make_agent()
    yard.launch()
    yard.look_until(lambda: yard.record().state is StreamState.RUNNING, "it runs", first)
    yard.agent.look()
    assert (list(yard.agent), yard.record().agent) == ([], first.owner)
    with yard.store._database.write() as connection:
        connection.execute(MANAGED_STREAMS.update().values(agent_until=datetime.now(UTC) - timedelta(seconds=1)))
    yard.agent.look()
    assert yard.record().agent == yard.agent.owner
    first.look()
    assert [process.name for process in yard.agent] == ["backup"], "its process goes on, one and the same"
    yard.process().kill()
    yard.look_until(lambda: not first._left, "its first agent has seen its end", first)


def test_a_process_of_another_home_takes_no_orders_from_here_and_is_ended(yard, tmp_path):
    left = yard.start()
    other = Yard(tmp_path / "other", yard.store)
    yard.agents.append(other.agent)
    yard.store.release_streams(yard.agent.owner)
    other.look_until(lambda: yard.record().instance_id != left.instance_id, "it is started in its own home")
    assert not left.is_running
    other.look_until(lambda: yard.record().state is StreamState.RUNNING, "it runs")
    home = yard.record().home
    assert home.path == str(tmp_path / "other" / "streams" / "backup")
    yard.store.end_stream("backup", Wanted.DRAINED, actor="ann")
    other.look_until(lambda: yard.record().state is StreamState.DRAINED, "it follows its orders")


def test_an_agent_that_lost_a_stream_to_another_machine_ends_its_process(yard):
    process = yard.start()
    elsewhere = Process(1, 1, "another-boot")
    yard.store.release_streams(yard.agent.owner)
    yard.store.take_streams(str(LeaseOwner("other", elsewhere)), limit=1, lease_seconds=3600)
    yard.agent.look()
    assert not process.is_running
    assert list(yard.agent) == []


def test_an_agent_that_stops_drains_its_streams_which_stay_wanted(yard):
    process = yard.start()
    yard.agent.stop()
    record = yard.record()
    assert (process.is_running, process.status()["state"]) == (False, "stopped")
    assert (record.wanted, record.state, record.agent) == (Wanted.RUNNING, StreamState.STARTING, None)
    successor = yard.make_agent()
    yard.look_until(lambda: yard.record().state is StreamState.RUNNING, "it runs again", successor)


def test_an_agent_takes_no_more_streams_than_it_has_places(yard):
    small = yard.make_agent(places=1)
    yard.launch("a")
    yard.launch("b")
    small.look()
    assert [process.name for process in small] == ["a"]
    yard.agent.look()
    assert [process.name for process in yard.agent] == ["b"]


def test_folders_of_old_starts_are_removed_and_the_last_ones_kept(yard):
    for number in range(6):
        old = StreamFolder.of(yard.home, "backup", f"in_00{number}")
        old.run.mkdir(parents=True)
    process = yard.start()
    found = sorted(path.name for path in process.folder.run.parent.iterdir())
    assert found[-1] == process.instance_id
    assert len(found) <= 4


class GoingBack:
    """A stream's restore that begins and ends when the test says so."""

    def __init__(self):
        self.is_on = False
        self.seen: list[bool] = []

    def look(self, held, ended):
        self.seen += [process is not None and process.is_running for _, process, _ in held]

    def is_going_back(self, stream):
        assert stream == "backup"
        return self.is_on

    def stop(self):
        self.is_on = False


def test_a_process_that_an_agent_left_is_found_before_anything_is_done_to_its_state(yard):
    process = yard.start()
    yard.store.release_streams(yard.agent.owner)
    work = GoingBack()
    second = yard.make_agent(snapshots=work, lease_seconds=60.0)
    second.owner = "another"
    second.look()
    assert work.seen == []
    second.look()
    assert work.seen == [True]
    assert yard.process(agent=second).pid == process.pid


def test_a_stream_that_goes_back_is_drained_and_started_again_when_that_has_ended(yard):
    work = GoingBack()
    yard.agent = yard.make_agent(snapshots=work)
    process = yard.start()
    work.is_on = True
    yard.look_until(lambda: not process.is_running, "it drains")
    control = ControlFile(process.folder.run / "control.json").read()
    assert (control.order, control.timeout_seconds) == ("drain", yard.record().drain_timeout_seconds)
    for _ in range(5):
        yard.agent.look()
    assert not [*yard.agent]
    assert work.seen[-1] is False
    assert (yard.record().wanted, yard.record().agent) == (Wanted.RUNNING, yard.agent.owner)
    assert "FAILED" not in [event.fields.get("to") for event in yard.store.list_stream_events("backup")]
    work.is_on = False
    yard.look_until(lambda: yard.record().state is StreamState.RUNNING, "it runs again")
    assert yard.process().instance_id != process.instance_id


def test_an_agent_reports_the_releases_of_its_home_until_it_stops(yard, tmp_path):
    yard.agent.look()
    (found,) = yard.store.list_agent_reports()
    assert (found.report.agent, found.report.home, found.report.releases) == (yard.agent.owner, str(yard.home), [])
    Releases(yard.home).add(write_small_release(tmp_path, "7.1"), name="canary")
    damaged = yard.home / "releases" / "damaged" / "release.json"
    damaged.parent.mkdir()
    damaged.write_text("{")
    # Without a renewal in between, of which the clock knows nothing.
    yard.agent.look()
    (found,) = yard.store.list_agent_reports()
    assert [release["name"] for release in found.report.releases] == ["canary"]
    yard.agent.stop()
    assert yard.store.list_agent_reports() == []


def test_a_process_whose_order_a_full_disk_does_not_take_is_killed_after_the_same_grace(yard, monkeypatch):
    process = yard.start()

    def fill_disk(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(StreamControl, "write", fill_disk)
    yard.store.end_stream("backup", Wanted.CANCELLED, actor="ann")
    yard.agent.look()
    assert (yard.record().state, process.is_running) == (StreamState.DRAINING, True)
    yard.time += 15.1
    yard.look_until(lambda: yard.record().state is StreamState.CANCELLED, "it was killed")
    assert not process.is_running


def test_an_agent_stops_all_its_streams_within_one_deadline(yard):
    names = [f"backup-{number}" for number in range(4)]
    for name in names:
        yard.moods[name] = "deaf"
        yard.start(name)
    processes = list(yard.agent)
    began = time.monotonic()
    yard.agent.stop(seconds=2)
    assert time.monotonic() - began < 7.5
    assert not any(process.is_running for process in processes)
    assert {yard.record(name).agent for name in names} == {None}
