"""Updates as an agent carries them out; the streams are small scripts that hold the lock of the home."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from jobs.store import JobStore, open_store
from model import failpoint
from model.errors import RegistryError
from model.principal import STREAMS_OPERATE, Principal
from model.stream_options import StreamKind
from model.stream_record import StreamRecord, StreamState, Wanted
from model.stream_snapshot import SnapshotReason, SnapshotState
from model.stream_update import StreamUpdate, UpdateFault, UpdateRequest, UpdateState
from rollout.agent import Agent
from rollout.check import CheckReason, Remedy, UpdateCheck
from rollout.checking import UpdateChecker
from rollout.process import StreamProcess
from rollout.snapshot_work import SnapshotWork
from rollout.starter import PreparedStart, StreamStarter
from rollout.update_work import UpdateWork
from rollout.updates import UpdateService
from streams.control import Order
from streams.folder import StreamFolder

# Commits ten messages every 20 ms while it holds the home's lock; the mood says what goes wrong.
STREAM = """
import os, signal, sys, time
from contextlib import ExitStack
from pathlib import Path
from model.errors import LeaseHeldError
from streams.control import ControlFile
from streams.folder import StreamFolder
from streams.lease import lock_home
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
    status.write(state="standby")
    time.sleep(0.01)
if mood == "hangs" and was_standby:
    os.kill(os.getpid(), signal.SIGSTOP)
if mood == "not over":
    end("failed", 1, error={"code": "broken", "message": "It does not take over."})
with ExitStack() as owned:
    while orders.read().order not in ("drain", "cancel"):
        try:
            owned.enter_context(lock_home(folder.state))
            break
        except LeaseHeldError:
            time.sleep(0.01)
    totals = {"messages": 0, "dead_letters": 0, "faults": 0}
    while True:
        control = orders.read()
        if control.order in ("drain", "cancel") and mood != "deaf":
            break
        totals["messages"] += 0 if mood == "idle" else 10
        totals["dead_letters"] += 5 if mood == "bad" else 0
        said.setdefault("first_commit_at", time.time())
        said["last_commit_at"] = time.time()
        status.write(state="running", epoch=1, totals=dict(totals), control_number=control.number, **said)
        if mood == "crash" and totals["messages"] > 50:
            end("failed", 1, error={"code": "broken", "message": "It crashed."})
        time.sleep(0.02)
end("stopped", 0, not_committed=0)
"""
ANN = Principal("ann", frozenset({STREAMS_OPERATE}))
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

    def look(self, _: Any) -> None:
        for made in self.store.list_snapshots(states=(SnapshotState.PENDING,)):
            facts = {"format_version": 1, "size_bytes": 1, "seconds_paused": 0.0, "known_messages": 0}
            self.store.complete_snapshot(made.id, made.place, sources=[], taken_at=datetime.now(UTC), **facts)

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
            self.store,
            open_checker=lambda: cast("UpdateChecker", self.checker),
            read_lag=lambda *_: self.lag,
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
        request = UpdateRequest("new", {"slots": 8}, {}, **{"validate_seconds": 0.3, "min_messages": 20} | given)
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


def test_a_new_release_takes_the_stream_over_is_watched_and_stays(yard: Yard) -> None:
    asked = yard.update()
    shown: set[StreamState] = set()
    yard.look_until(lambda: shown.add(yard.record().state) or yard.living().state.is_ended, "it ends")
    done = yard.living()
    assert (done.id, done.state, done.error) == (asked.id, UpdateState.STABLE, None)
    assert StreamState.UPDATING in shown
    record = yard.record()
    assert (record.release, record.options) == ("new", {"slots": 8})
    assert record.instance_id == done.instance_id != yard.first == done.outgoing_id
    assert done.has_way_back is True
    assert done.paused_seconds is not None
    assert 0 <= done.paused_seconds < 10
    assert done.figures is not None
    assert done.figures["after"]["messages"] >= 20
    (snapshot,) = yard.store.list_snapshots()
    assert (snapshot.id, snapshot.reason) == (done.snapshot_id, SnapshotReason.UPDATE)
    yard.check_one_runs("new")


def test_an_update_that_the_check_refuses_touches_nothing_and_says_what_to_do(yard: Yard) -> None:
    reason = CheckReason("source_renamed", "sources.orders", "orders is gone.", Remedy.MAP)
    yard.checker.found = UpdateCheck((reason,), (), ())
    yard.update()
    refused = yard.look_until_it_is(UpdateState.REFUSED)
    assert refused.error is not None
    assert refused.error.code == "update_refused"
    assert refused.error.message == f"orders is gone. {Remedy.MAP.advice}"
    assert refused.checked is not None
    assert [each["code"] for each in refused.checked["reasons"]] == ["source_renamed"]
    yard.checker.found = RegistryError("The registry can't be read.")
    yard.update()
    refused = yard.look_until_it_is(UpdateState.REFUSED)
    assert refused.error is not None
    assert refused.error.message == "The registry can't be read."
    assert yard.check_one_runs("old").instance_id == yard.first


@pytest.mark.parametrize("mood", ["never ready", "gone"])
def test_a_new_release_that_does_not_start_leaves_the_old_one_running(yard: Yard, mood: str) -> None:
    yard.moods["new"] = mood
    yard.update()
    failed = yard.look_until_it_is(UpdateState.FAILED)
    assert failed.error is not None
    assert failed.error.code == "standby_failed"
    why = "Its packages are gone." if mood == "gone" else "It does not start."
    assert why in failed.error.message
    assert failed.attempts == (0 if mood == "gone" else 3)
    assert yard.check_one_runs("old").instance_id == yard.first


@pytest.mark.parametrize(
    ("mood", "code", "why"),
    [
        ("not over", "stream_died", "ended in the hand-over"),
        ("crash", "stream_died", "It crashed."),
        ("bad", "update_failed", "became dead letters"),
    ],
)
def test_a_new_release_that_fails_goes_back_by_itself_with_both_logs(
    yard: Yard, mood: str, code: str, why: str
) -> None:
    yard.moods["new"] = mood
    yard.update(validate_seconds=20)
    back = yard.look_until_it_is(UpdateState.ROLLED_BACK)
    assert back.error is not None
    assert back.error.code == code
    assert why in back.error.message
    assert back.outgoing_id is not None
    assert f"{yard.first} begins" in back.error.logs["old"]
    assert "in_" in back.error.logs["new"]
    process = yard.check_one_runs("old")
    assert process.instance_id == back.instance_id != yard.first
    assert yard.record().options == {}
    assert back.replay is None, "a backup stages nothing"


def test_too_few_messages_wait_for_a_person(yard: Yard) -> None:
    yard.moods["new"] = "idle"
    yard.update()
    waits = yard.look_until_it_is(UpdateState.INCONCLUSIVE)
    assert waits.error is not None
    assert "0 messages came" in waits.error.message
    yard.check_one_runs("new")
    UpdateService(yard.store).roll_back(waits.id, principal=ANN)
    yard.look_until_it_is(UpdateState.ROLLED_BACK)
    yard.check_one_runs("old")


def test_a_lag_that_nobody_knows_waits_for_a_person(yard: Yard) -> None:
    yard.lag = None
    yard.update()
    waits = yard.look_until_it_is(UpdateState.INCONCLUSIVE)
    assert waits.error is not None
    assert waits.error.message == "Not known of both releases: lag_seconds."


def test_an_update_without_a_way_back_only_goes_forward(yard: Yard) -> None:
    yard.checker.found = NO_WAY_BACK
    yard.moods["new"] = "crash"
    yard.update(validate_seconds=20)
    failed = yard.look_until_it_is(UpdateState.FAILED)
    assert failed.has_way_back is False
    assert any("there is no way back" in (each.why or "") for each in yard.store.list_stream_events("backup"))
    assert failed.error is not None
    assert failed.error.code == "no_way_back"
    assert "old can't read the journal" in failed.error.message
    yard.moods["new"] = ""
    yard.look_until(lambda: yard.record().state is StreamState.FAILED, "the agent sees that it ended")
    assert yard.record().release == "new"


def test_a_new_release_that_never_owned_the_stream_goes_back_also_without_a_way_back(yard: Yard) -> None:
    yard.checker.found = NO_WAY_BACK
    yard.moods["new"] = "not over"
    yard.update()
    yard.look_until_it_is(UpdateState.ROLLED_BACK)
    yard.check_one_runs("old")


def test_an_old_release_that_can_t_be_started_again_leaves_the_new_one(yard: Yard) -> None:
    yard.moods["new"] = "bad"
    yard.moods["old"] = "gone"
    yard.update(validate_seconds=20)
    failed = yard.look_until_it_is(UpdateState.FAILED)
    assert failed.error is not None
    assert failed.error.code == "no_way_back"
    assert "became dead letters" in failed.error.message
    assert yard.check_one_runs("new").instance_id == failed.instance_id


def test_a_process_that_does_not_let_go_is_killed_and_the_new_one_goes_on(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollout.update_work._DRAIN_SECONDS", 0.1)
    monkeypatch.setattr("rollout.handover.KILL_GRACE_SECONDS", 0.1)
    yard.moods["new"] = "deaf"
    yard.update()
    yard.look_until_it_is(UpdateState.STABLE)
    request = UpdateRequest("newer", {}, {}, 0.2, 20)
    yard.store.create_update("backup", request, actor="ann")
    yard.look_until_it_is(UpdateState.STABLE)
    yard.check_one_runs("newer")


@pytest.mark.parametrize("state", [UpdateState.STARTING, UpdateState.WATCHING])
def test_a_drain_ends_the_update_with_its_stream(yard: Yard, state: UpdateState) -> None:
    yard.moods["new"] = "" if state is UpdateState.WATCHING else "never ready"
    yard.update(validate_seconds=20)
    yard.look_until_it_is(state)
    yard.store.end_stream("backup", Wanted.DRAINED, actor="ann")
    yard.look_until(lambda: yard.record().state is StreamState.DRAINED, "it is drained")
    assert yard.living().state is UpdateState.FAILED
    assert yard.instances() == []


def test_an_update_that_is_taken_back_before_its_hand_over_ends_the_standby(yard: Yard) -> None:
    yard.update()
    yard.look_until(lambda: yard.living().instance_id is not None, "a standby is started")
    UpdateService(yard.store).roll_back(yard.living().id, principal=ANN)
    assert yard.check_one_runs("old").instance_id == yard.first


@pytest.mark.parametrize(
    "place", [name for name in failpoint.FAILPOINTS if name.startswith("update.") and "rolling" not in name]
)
def test_an_agent_that_is_killed_at_any_step_is_followed_by_one_that_goes_forward(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    kill_at(monkeypatch, place)
    yard.update()
    look_until_killed(yard)
    yard.agent = yard.make_agent()
    done = yard.look_until_it_is(UpdateState.STABLE, UpdateState.INCONCLUSIVE, UpdateState.FAILED)
    # Where the old release's last figures were lost with the agent, a person decides.
    assert done.state is UpdateState.STABLE, done
    yard.check_one_runs("new")


@pytest.mark.parametrize("place", ["update.rolling_back", "update.standby_started", "update.ordered"])
def test_an_agent_that_is_killed_on_the_way_back_is_followed_by_one_that_goes_back(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    yard.moods["new"] = "bad"
    # The places of a hand-over are passed once on the way there.
    kill_at(monkeypatch, place, skip=0 if place == "update.rolling_back" else 1)
    yard.update(validate_seconds=20)
    look_until_killed(yard)
    yard.agent = yard.make_agent()
    yard.look_until_it_is(UpdateState.ROLLED_BACK)
    yard.check_one_runs("old")


@pytest.mark.parametrize("is_over", [True, False])
def test_a_standby_whose_update_another_machine_s_agent_goes_on_with_is_ended_here(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    kill_at(monkeypatch, "update.standby_started")
    yard.update()
    look_until_killed(yard)
    orphan = yard.await_standby()
    yard.store.release_streams(yard.agent.owner)
    yard.store.take_streams("elsewhere", limit=1, lease_seconds=600)
    if is_over:
        fault = UpdateFault("standby_failed", "It did not start.")
        yard.store.advance_update(yard.living(), UpdateState.FAILED, error=fault)
    else:
        yard.store.note_update(yard.living(), instance_id="in_elsewhere", attempts=2)
    yard.agent = yard.make_agent()
    yard.look_until(
        lambda: orphan not in [each.instance_id for each in yard.instances()],
        "an agent that does not hold the stream ends the standby",
    )
    assert yard.record().agent == "elsewhere"


def test_a_standby_that_its_update_names_is_no_orphan(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_at(monkeypatch, "update.standby_started")
    yard.update()
    look_until_killed(yard)
    standby = yard.await_standby()
    yard.store.release_streams(yard.agent.owner)
    yard.store.take_streams("elsewhere", limit=1, lease_seconds=600)
    yard.agent = yard.make_agent()
    yard.agent.look()
    assert {each.instance_id for each in yard.instances()} == {yard.first, standby}


def kill_at(monkeypatch: pytest.MonkeyPatch, place: str, *, skip: int = 0) -> None:
    """Let the agent end where ``place`` is passed, once."""
    passed: list[str] = []

    def hit(name: str) -> None:
        if name == place:
            passed.append(name)
            if len(passed) == skip + 1:
                raise Killed

    monkeypatch.setattr("rollout.update_work.failpoint.hit", hit)


def look_until_killed(yard: Yard) -> None:
    if yard.living().state is UpdateState.CHECKING:
        # The check is made in a thread of its own, which ends with its agent.
        yard.agent._updates._check = yard.agent._updates._run_check  # type: ignore[union-attr,method-assign]
    with pytest.raises(Killed):
        yard.look_until(lambda: False, "it passes the place")


def test_a_watch_lasts_by_the_store_s_clock_whatever_the_agent_s_shows(yard: Yard) -> None:
    yard.store._database.now = lambda _: datetime.now(UTC) - timedelta(hours=1)  # type: ignore[method-assign]
    yard.update(validate_seconds=60)
    yard.look_until_it_is(UpdateState.WATCHING)
    yard.look_until(lambda: yard.status().get("totals", {}).get("messages", 0) > 100, "messages come")
    yard.agent.look()
    assert yard.living().state is UpdateState.WATCHING


def test_a_check_that_raises_what_nobody_expects_is_not_tried_at_every_look(yard: Yard) -> None:
    checks: list[int] = []

    def fail(*_: Any, **__: Any) -> UpdateCheck:
        checks.append(1)
        raise ZeroDivisionError

    yard.checker.check = fail  # type: ignore[method-assign]
    yard.update()
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        yard.agent.look()
    assert len(checks) == 1
