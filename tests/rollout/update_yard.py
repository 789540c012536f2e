"""A stream that is a small script with the lock of its home, and agents that update it."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from jobs.store import JobStore, open_store
from model.errors import RegistryError
from model.principal import READ, STREAMS_OPERATE, Principal
from model.stream_options import StreamKind
from model.stream_record import StreamRecord, StreamState
from model.stream_snapshot import SnapshotState
from model.stream_update import StreamUpdate, UpdateRequest, UpdateState
from rollout.agent import Agent
from rollout.check import UpdateCheck
from rollout.checking import UpdateChecker
from rollout.process import StreamProcess
from rollout.snapshot_work import SnapshotWork
from rollout.starter import PreparedStart, StreamStarter
from rollout.update_work import UpdateWork
from streams.control import Order
from streams.folder import StreamFolder
from tests.worlds.snapshot_jobs import complete_snapshot

# Commits ten messages every 20 ms while it holds the home's lock; the mood says what goes wrong.
STREAM = """
import fcntl, os, signal, sys, time
from pathlib import Path
from streams.control import ControlFile
from streams.folder import StreamFolder
from streams.status import StatusFile

home, name, _, instance, mood = sys.argv[1:]
folder = StreamFolder.of(Path(home), name, instance)
status, orders = StatusFile(folder.status, instance=instance), ControlFile(folder.control)
said = {}
print(f"{instance} begins")

def end(text, code, **fields):
    status.write_last(state=text, **said, **fields)
    print(text, *fields.values())
    sys.exit(code)

if mood == "never ready":
    end("failed", 1, error={"code": "broken", "message": "It does not start."})
was_standby = orders.read().order == "stand_by"
while orders.read().order == "stand_by":
    if mood != "never stands by":
        status.write(state="standby")
    time.sleep(0.01)
if mood == "hangs" and was_standby:
    os.kill(os.getpid(), signal.SIGSTOP)
if mood == "not over":
    end("failed", 1, error={"code": "broken", "message": "It does not take over."})
folder.state.mkdir(parents=True, exist_ok=True)
lock = (folder.state / "lock").open("a+")
while orders.read().order not in ("drain", "cancel"):
    try:
        # As streams.lease, which takes longer to import than all else here.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        break
    except OSError:
        time.sleep(0.01)
totals = {"messages": 0, "dead_letters": 0, "faults": 0}
while mood == "silent" and orders.read().order not in ("drain", "cancel"):
    time.sleep(0.01)
while True:
    control = orders.read()
    if control.order in ("drain", "cancel") and mood != "deaf":
        break
    totals["messages"] += 0 if mood == "idle" else 10
    totals["dead_letters"] += 5 if mood == "bad" else 0
    said.setdefault("first_commit_at", time.time())
    said["last_commit_at"] = time.time()
    is_paused = control.order == "pause"
    state = "paused" if is_paused else "running"
    status.write(state=state, epoch=1, totals=dict(totals), control_number=control.number, **said)
    # After the hand-over, also where the agent looks late.
    if mood == "crash" and totals["messages"] > 250:
        end("failed", 1, error={"code": "broken", "message": "It crashed."})
    time.sleep(0.02)
end("stopped", 0, not_committed=0)
"""
ANN = Principal("ann", frozenset({READ, STREAMS_OPERATE}))
WAY_BACK = UpdateCheck((), ("something changes",), ())
NO_WAY_BACK = replace(WAY_BACK, no_way_back=("old can't read the journal",))


class Killed(BaseException):
    """The agent is killed here."""


class Checker:
    """Answers each check with one result."""

    def __init__(self) -> None:
        self.found: UpdateCheck | RegistryError = WAY_BACK

    def check(self, *_: Any, **__: Any) -> UpdateCheck:
        if isinstance(self.found, RegistryError):
            raise self.found
        return self.found


class Snapshots:
    """Makes every snapshot at once."""

    def __init__(self, store: JobStore) -> None:
        self.store = store
        self.fails = False

    def look(self, _: Any, ended: Any = ()) -> None:
        for made in self.store.list_snapshots(states=(SnapshotState.PENDING,)):
            complete_snapshot(self.store, made.id)

    def is_going_back(self, _: str) -> bool:
        return False

    def stop(self) -> None:
        pass


class Yard:
    """A home, its store, and agents; the mood of a stream's process is that of its release."""

    def __init__(self, home: Path, store: JobStore) -> None:
        self.home = home
        self.store = store
        self.moods: dict[str | None, str] = {}
        self.checker = Checker()
        self.lag: float | None = 0.0
        self.started: list[StreamProcess] = []
        self.works: list[UpdateWork] = []
        self.agent = self.make_agent()
        store.launch_stream("backup", StreamKind.BACKUP, actor="ann", release="old")
        self.look_until(lambda: "rates" in self.status(), "the old release runs")
        self.first = self.record().instance_id

    def make_agent(self) -> Agent:
        work = UpdateWork(
            self.store, open_checker=lambda: cast("UpdateChecker", self.checker), read_lag=lambda *_: self.lag
        )
        agent = Agent(
            self.store,
            environment={**os.environ, "REFEED_HOME": str(self.home), "PYTHONPATH": str(Path.cwd())},
            places=10,
            # The next agent does not wait long for the lease of one that was killed.
            lease_seconds=1.0,
            snapshots=cast("SnapshotWork", Snapshots(self.store)),
            updates=work,
        )
        # All of it but the command is an agent's own; releases that are not installed have no start of theirs.
        agent._starter = Starter(agent._starter, self)
        self.works.append(work)
        return agent

    def record(self) -> StreamRecord:
        return self.store.get_stream("backup")

    def status(self) -> Mapping[str, Any]:
        (found,) = [each.status() for each in self.agent] or [{}]
        return found

    def update(self, **given: Any) -> StreamUpdate:
        request = UpdateRequest("new", {"slots": 8}, {}, **{"validate_seconds": 0.3, "min_messages": 5} | given)
        return self.store.create_update("backup", request, actor="ann")

    def living(self) -> StreamUpdate:
        (found, *_) = self.store.list_updates("backup")
        return found

    def look_until(self, is_true: Callable[[], Any], why: str) -> None:
        deadline = time.monotonic() + 30
        while not is_true():
            self.agent.look()
            assert time.monotonic() < deadline, f"{why}: {self.store.list_updates()} {self.record()}"
            time.sleep(0.01)

    def look_until_it_is(self, *states: UpdateState) -> StreamUpdate:
        self.look_until(lambda: self.living().state in states, f"it is {states}")
        return self.living()

    def instances(self) -> list[StreamProcess]:
        """Every process of the stream on this machine, also those that another agent started."""
        folders = sorted((self.home / "streams" / "backup" / "instances").iterdir())
        found = [StreamProcess.find(StreamFolder.of(self.home, "backup", each.name)) for each in folders]
        return [each for each in found if each is not None]

    def await_standby(self) -> str | None:
        """Return the instance beside the first one; a command's name is read a moment after it began."""
        deadline = time.monotonic() + 30
        while len(found := {each.instance_id for each in self.instances()} - {self.first}) != 1:
            assert time.monotonic() < deadline, f"a standby is started: {found}"
            time.sleep(0.01)
        return found.pop()

    def check_one_runs(self, release: str) -> StreamProcess:
        """One process runs in the end, that of the record, and it commits."""

        def is_alone() -> bool:
            self.agent.look()
            runs = [each.instance_id for each in self.instances()]
            return runs == [self.record().instance_id] and self.record().state is StreamState.RUNNING

        self.look_until(is_alone, "one process is left")
        assert self.record().release == release
        (process,) = self.instances()
        return process


@dataclass
class Kept:
    """A prepared start whose process the test ends."""

    prepared: PreparedStart
    started: list[StreamProcess]

    @property
    def folder(self) -> StreamFolder:
        return self.prepared.folder

    def start(self, order: Order = "run") -> StreamProcess:
        self.started.append(self.prepared.start(order))
        return self.started[-1]


class Starter(StreamStarter):
    """Starts the script with the mood of the release, in the home of another starter."""

    def __init__(self, own: StreamStarter, yard: Yard) -> None:
        super().__init__(own._environment, command=self._script)
        self._yard = yard

    def prepare(self, record: StreamRecord, instance_id: str, *, is_standby: bool = False) -> Any:
        if self._yard.moods.get(record.release) == "gone":
            raise RegistryError("Its packages are gone.")
        self._release = record.release
        prepared = super().prepare(replace(record, release=None), instance_id, is_standby=is_standby)
        return Kept(prepared, self._yard.started)

    def _script(self, record: StreamRecord, instance_id: str) -> list[str]:
        mood = self._yard.moods.get(self._release, "")
        home = str(self._yard.home)
        return [sys.executable, "-u", "-c", STREAM, home, record.name, "--instance", instance_id, mood]


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    with closing(open_store(f"sqlite:///{tmp_path / 'jobs.db'}")) as store:
        yard = Yard(tmp_path / "home", store)
        yield yard
        for process in yard.started:
            process.kill()
        for work in yard.works:
            work.stop()


def kill_at(monkeypatch: pytest.MonkeyPatch, place: str, *, skip: int = 0) -> None:
    """Let the agent end where ``place`` is passed, once."""
    passed: list[str] = []

    def hit(name: str) -> None:
        if name == place:
            passed.append(name)
            if len(passed) == skip + 1:
                raise Killed

    monkeypatch.setattr("model.failpoint.hit", hit)


def look_until_killed(yard: Yard) -> None:
    if yard.living().state is UpdateState.CHECKING:
        # The check is made in a thread of its own, which ends with its agent.
        begin_here = lambda _stream, _job, work: work()  # noqa: E731
        yard.agent._updates._threads.begin = begin_here  # type: ignore[union-attr,method-assign]
    with pytest.raises(Killed):
        yard.look_until(lambda: False, "it passes the place")
