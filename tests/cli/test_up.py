import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict

import pytest

from app.deployment import Deployment
from cli import up
from cli.processes import free_port
from cli.running import RunningUp
from cli.stack import Stack
from model.errors import ProcessEndedError, StoreUnavailableError
from model.principal import STREAMS_OPERATE, STREAMS_READ, Principal
from model.process import Process
from rollout.agent import Agent
from rollout.child import Child
from tests.cli.conftest import count_openings

# Where nobody listens.
ADDRESSES = {
    "api_url": "http://127.0.0.1:1",
    "pubsub_emulator_host": "127.0.0.1:1",
    "project": "refeed-local",
    "up": {"pid": 2**22 + 1, "start_ticks": 1, "boot_id": "another"},
}
SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def sleeper(tmp_path):
    child = Child("sleeper", SLEEPER, environment=os.environ, log=tmp_path / "sleeper.log")
    yield child
    child.kill()


@pytest.fixture
def signals():
    """The process's handlers as they were, afterwards: one that drains hears no further Ctrl-C."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("topics", ["", "orders,healthz"])
def test_a_fault_of_the_collector_ends_it_before_anything_starts(refeed, home, monkeypatch, topics):
    monkeypatch.setenv("REFEED_COLLECTOR_TOPICS", topics)
    ports = ["--port", str(free_port()), "--pubsub-port", str(free_port()), "--collector-port", str(free_port())]
    result = refeed("up", *ports)
    assert result.code == 2
    assert "REFEED_COLLECTOR_TOPICS" in result.err
    assert not (home / "logs").exists()


@pytest.mark.parametrize("option", ["--port", "--pubsub-port", "--collector-port"])
def test_a_taken_port_ends_it_before_anything_starts(refeed, pubsub_server, home, option):
    ports = {"--port": free_port(), "--pubsub-port": free_port(), "--collector-port": free_port()}
    ports[option] = pubsub_server.port
    result = refeed("up", *(text for name, port in ports.items() for text in (name, str(port))))
    assert result.code == 1
    assert "port_taken" in result.err
    assert option in result.err
    assert not (home / "logs").exists()


def test_what_a_killed_up_left_running_is_ended(home):
    with subprocess.Popen(SLEEPER, start_new_session=True) as orphan:
        process = Process.of(orphan.pid)
        assert process is not None
        (home / "run").mkdir(parents=True)
        (home / "run" / "up.json").write_text(json.dumps({**ADDRESSES, "processes": {"backup": asdict(process)}}))
        with up._hold_home(home) as path:
            assert orphan.wait(timeout=20) == -signal.SIGKILL
        noted = RunningUp.read(path)
        assert list(noted.left()) == []


def test_a_port_that_a_dead_process_still_holds_is_waited_for(home, monkeypatch, sleeper):
    process = Process.of(sleeper.start().pid)
    assert process is not None
    (home / "run").mkdir(parents=True)
    (home / "run" / "up.json").write_text(json.dumps({**ADDRESSES, "processes": {"api": asdict(process)}}))
    answers = iter([True, True])
    monkeypatch.setattr(up, "is_listening", lambda address: next(answers, False))
    with up._hold_home(home):
        assert not sleeper.is_running
        assert next(answers, None) is None, "asked until it was free"


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"processes": {"api": {"pid": 1}}, "api_url": "x"}'])
def test_a_record_of_another_shape_is_no_obstacle(home, text):
    (home / "run").mkdir(parents=True)
    (home / "run" / "up.json").write_text(text)
    with up._hold_home(home) as record:
        assert record.name == "up.json"


def test_a_process_that_only_has_the_same_number_is_left_alone(home, sleeper):
    process = Process.of(sleeper.start().pid)
    assert process is not None
    (home / "run").mkdir(parents=True)
    earlier = asdict(process) | {"start_ticks": process.start_ticks - 1}
    (home / "run" / "up.json").write_text(json.dumps({**ADDRESSES, "processes": {"backup": earlier}}))
    with up._hold_home(home):
        assert sleeper.is_running


def test_a_dead_child_is_started_again_three_times_a_minute(sleeper, capsys):
    restarts = []
    sleeper.start()
    for _ in range(3):
        sleeper.kill()
        up._restart(sleeper, restarts)
        assert sleeper.is_running
    assert capsys.readouterr().err.count("starting sleeper again") == 3
    sleeper.kill()
    with pytest.raises(ProcessEndedError, match="ended 4 times within a minute"):
        up._restart(sleeper, restarts)


def test_deaths_of_an_hour_ago_do_not_count(sleeper):
    restarts = [time.monotonic() - 3600] * 5
    sleeper.start()
    sleeper.kill()
    up._restart(sleeper, restarts)
    assert sleeper.is_running
    assert len(restarts) == 1


def test_the_terminal_s_process_opens_the_job_store_once(refeed, monkeypatch, signals):
    opened = count_openings(monkeypatch)
    looked = []

    def look_twice(agent):
        looked.append(list(agent))
        if len(looked) > 1:
            raise KeyboardInterrupt
        return []

    # Its children open their own; the API's is counted in tests/cli/test_services.py.
    monkeypatch.setattr("cli.stack.Stack.start", lambda *_, **__: None)
    monkeypatch.setattr(Agent, "look", look_twice)
    monkeypatch.setattr(up, "_LOOK_SECONDS", 0.01)
    result = refeed("up", "--port", str(free_port()), "--pubsub-port", str(free_port()))
    assert (result.code, looked) == (0, [[], []])
    assert "all stopped" in result.err
    assert len(opened) == 1


def test_everything_is_ended_in_order_also_after_an_error(refeed, home, monkeypatch, signals):
    ended = []
    started = Child("first", SLEEPER, environment=os.environ, log=home / "first.log")

    def start(self, children, **_):
        for child in (started, Child("second", SLEEPER, environment=os.environ, log=home / "second.log")):
            children.start(child)
        raise ProcessEndedError("One of them ended.")

    def note(method):
        def stop(self, **options):
            ended.append(getattr(self, "name", type(self).__name__))
            method(self, **options)
            if ended[-1] == "second":
                raise OSError("it can't be ended")

        return stop

    monkeypatch.setattr("cli.stack.Stack.start", start)
    for owner, method in ((Agent, "stop"), (Child, "stop"), (Stack, "close")):
        monkeypatch.setattr(owner, method, note(getattr(owner, method)))
    try:
        with pytest.raises(OSError, match="can't be ended"):
            up.up(port=free_port(), pubsub_port=free_port())
        assert ended == ["Agent", "second", "first", "Stack"]
        assert not started.is_running
    finally:
        started.kill()


@pytest.mark.parametrize(
    ("before", "wanted"),
    [(signal.SIG_DFL, signal.default_int_handler), (signal.SIG_IGN, signal.SIG_IGN)],
    ids=["closed", "nohup"],
)
@pytest.mark.usefixtures("home", "signals")
def test_a_terminal_that_is_closed_drains_unless_nohup_says_to_go_on(refeed, monkeypatch, before, wanted):
    handlers = []

    def start(*_, **__):
        handlers.append(signal.getsignal(signal.SIGHUP))
        raise KeyboardInterrupt

    monkeypatch.setattr("cli.stack.Stack.start", start)
    signal.signal(signal.SIGHUP, before)
    result = refeed("up", "--port", free_port(), "--pubsub-port", free_port())
    assert (result.code, handlers) == (0, [wanted])
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_disk_that_does_not_take_the_record_ends_nothing_of_what_runs(refeed, home, monkeypatch, signals):
    running = []

    def start(_, children, **__):
        (home / "run" / "up.tmp").mkdir()
        running.append(
            children.start(Child("first", SLEEPER, environment=os.environ, log=home / "first.log")).is_running
        )
        raise KeyboardInterrupt

    monkeypatch.setattr("cli.stack.Stack.start", start)
    result = refeed("up", "--port", free_port(), "--pubsub-port", free_port())
    assert (result.code, running) == (0, [True])
    assert f"{home / 'run' / 'up.json'} can't be written: Is a directory" in result.err


@pytest.fixture
def streams(home, tmp_path):
    environment = {**os.environ, "REFEED_HOME": str(home)}
    stack = Stack(home, pubsub_port=free_port(), api_port=free_port(), environment=environment)
    with Deployment(stack.settings) as deployment, up._Streams(stack, deployment, lambda: None) as streams:
        yield streams


def test_a_backup_that_a_person_drained_is_neither_waited_for_nor_started(streams, monkeypatch):
    monkeypatch.setattr(Agent, "_start", lambda *_: None)
    assert not streams.is_backing_up()
    ann = Principal("ann", frozenset({STREAMS_READ, STREAMS_OPERATE}))
    streams._wanted._service.drain("backup", principal=ann)
    assert streams.is_backing_up()
    assert list(streams) == []


def test_a_backup_that_dies_before_it_ever_ran_ends_everything_and_later_its_fourth_death_in_a_minute_does(
    streams, monkeypatch
):
    died = ProcessEndedError("backup ended with code 1.", name="backup", exit_code=1)
    other = ProcessEndedError("pipeline-a ended with code 1.", name="pipeline-a", exit_code=1)
    monkeypatch.setattr(Agent, "look", lambda _: [other, died])
    with pytest.raises(ProcessEndedError, match=r"^backup ended with code 1\.$"):
        streams.look()
    streams._has_run = True
    for _ in range(3):
        streams.look()
    with pytest.raises(ProcessEndedError, match="backup ended 4 times within a minute"):
        streams.look()


def test_a_store_that_is_away_ends_nothing(streams, monkeypatch, capsys):
    def fail(_):
        raise StoreUnavailableError("The job store does not answer.")

    monkeypatch.setattr(Agent, "look", fail)
    streams.look()
    assert "does not answer" in capsys.readouterr().err
