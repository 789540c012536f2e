"""Jobs in steps on every job store: whatever happens at a step, the job ends within its bound."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from jobs.steps import Again, Done, Fail, Next, Stay, Step, StepKind, StepRun, StepRunner
from jobs.store import Job, JobStore
from jobs.store.step_jobs import begin_job, fail_job
from jobs.stream_threads import StreamThreads
from model.errors import JobChangedError, LeaseLostError, PubSubUnavailableError, SnapshotRefusedError
from model.fault import FaultRecord
from model.job import JobState
from model.stream_options import StreamKind
from tests.years.clock import Clock

SECONDS, ATTEMPTS = 60.0, 3
STEPS = ("pack", "carry", "unpack")


class KilledError(BaseException):
    """The agent's process is gone in the middle of a step."""


@dataclass(frozen=True)
class Here:
    agent: str | None


class Move:
    """A kind of job with a slow step between two fast ones, whose looks a test replaces, and an agent for it."""

    def __init__(self, store: JobStore, clock: Clock) -> None:
        store._database.now = lambda _: clock.now  # type: ignore[method-assign]
        store.launch_stream("backup", StreamKind.BACKUP, actor="ann")
        self.store = store
        self.clock = clock
        self.looks: dict[str, Callable[[StepRun[Here]], Any]] = {}
        self.looked: list[str] = []
        self.ended: list[JobState] = []
        self.gives_up: Callable[[StepRun[Here], FaultRecord], Next | Done | Fail] = lambda _, error: Fail(error)
        self.enter: Callable[[Job, str | None], None] = lambda *_: None
        self.hold("agent")

    def hold(self, agent: str) -> None:
        """Start an agent that holds the stream; the one before is gone."""
        for each in self.store.list_agents():
            self.store.release_streams(each)
        self.store.take_streams(agent, limit=1, lease_seconds=1200)
        self.threads = StreamThreads("test", now=lambda: self.clock.seconds)
        self.runner = StepRunner(self.store, [self.kind()], self.threads)
        self.place = Here(agent)

    def kind(self) -> StepKind[Here]:
        steps = [
            Step(
                name,
                self._look,
                SECONDS,
                attempts=ATTEMPTS,
                is_slow=name == "carry",
                passing=(PubSubUnavailableError,),
                gave_up=self._give_up,
            )
            for name in STEPS
        ]
        return StepKind("move", steps, entered=self.enter, ended=lambda job: self.ended.append(job.state), keep=2)

    def ask(self) -> Job:
        with self.store._database.write() as connection:
            now = self.store._database.now(connection)
            facts: dict[str, Any] = {"kind": "move", "prefix": "mv", "request": {"stream": "backup"}}
            return begin_job(connection, now, subject="stream/backup", step=STEPS[0], actor="ann", **facts)

    def look(self, seconds: float = 1.0) -> None:
        """Look once, wait for what was begun, and let time pass."""
        self.runner.look(self.runner.list_jobs(), lambda _: self.place)
        self.threads.join(10)
        self.clock.go(timedelta(seconds=seconds))

    def run(self, job: Job, *, looks: int = 10) -> Job:
        for _ in range(looks):
            self.look()
        return self.store.get(job.id)

    def _give_up(self, run: StepRun[Here], error: FaultRecord) -> Next | Done | Fail:
        return self.gives_up(run, error)

    def _look(self, run: StepRun[Here]) -> Any:
        job = run.job
        assert job.step is not None
        self.looked.append(job.step)
        found = self.looks.get(job.step)
        if found is not None:
            return found(run)
        after = STEPS.index(job.step) + 1
        return Done({"all": after}) if after == len(STEPS) else Next(STEPS[after], {job.step: "here"})


@pytest.fixture
def move(store: JobStore) -> Move:
    return Move(store, Clock(store.now()))


def test_steps_come_in_their_order_and_know_of_each_other(move: Move) -> None:
    job = move.run(move.ask())
    assert (job.state, job.memory) == (JobState.SUCCEEDED, {"pack": "here", "carry": "here", "all": 3})
    assert tuple(move.looked) == STEPS
    assert move.ended == [JobState.SUCCEEDED]
    lines = [event.what for event in move.store.list_events(job.id)]
    assert lines == [
        "created",
        "PENDING -> RUNNING",
        "began pack",
        "began carry",
        "began unpack",
        "RUNNING -> SUCCEEDED",
    ]


def kill(*_: Any) -> Any:
    raise KilledError


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("step", STEPS)
def test_the_next_agent_goes_on_at_the_step_at_which_one_was_killed(move: Move, step: str) -> None:
    job = move.ask()
    move.looks[step] = kill
    while move.looked[-1:] != [step]:
        try:
            move.look()
        except KilledError:
            break
    move.looks.clear()
    move.hold("second agent")
    assert move.run(job).state is JobState.SUCCEEDED
    assert move.looked.count(step) == 2
    assert len(move.looked) == len(STEPS) + 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_kills_its_agent_each_time_ends_within_its_bound(move: Move, step: str) -> None:
    job, began = move.ask(), move.clock.now
    move.looks[step] = kill
    for number in range(100):
        try:
            move.look(10)
        except KilledError:
            move.clock.jump(timedelta(seconds=10))
        move.hold(f"agent {number}")
        if move.store.get(job.id).state.is_final:
            break
    ended = move.store.get(job.id)
    assert ended.state == JobState.FAILED
    assert ended.error.code == "step_timeout"
    assert move.clock.now - began <= timedelta(seconds=ATTEMPTS * (SECONDS + 10) + 30)
    assert move.ended == [JobState.FAILED]


def test_a_hung_step_is_begun_in_another_thread_and_what_it_says_later_is_refused(move: Move) -> None:
    wakes_up = threading.Event()
    job = move.ask()

    def hang(run: StepRun[Here]) -> Any:
        if run.job.attempt == 1:
            assert wakes_up.wait(30)
            return Next("pack")
        return Next("unpack") if wakes_up.is_set() else Stay()

    move.looks["carry"] = hang
    move.runner.look(move.runner.list_jobs(), lambda _: move.place)
    (hung,) = [each for each in threading.enumerate() if each.name == "test-backup"]
    move.clock.go(timedelta(seconds=SECONDS))
    move.look()
    again = move.store.get(job.id)
    assert (again.step, again.attempt) == ("carry", 2)
    wakes_up.set()
    hung.join(10)
    assert move.store.get(job.id) == again
    assert move.run(job).state is JobState.SUCCEEDED
    assert move.looked == ["pack", "carry", "carry", "carry", "unpack"]


def test_of_two_runs_of_an_attempt_the_one_that_noted_last_goes_on(move: Move) -> None:
    job = move.ask()

    def work(run: StepRun[Here]) -> Any:
        move.looks["carry"] = lambda later: later.note({"by": "later"}) or Done({"all": "later"})
        other = StepRunner(move.store, [move.kind()], StreamThreads("other"))
        run.note({"by": "earlier"})
        other.carry_out(move.store.get(job.id), move.place)
        return Done({"all": "earlier"})

    move.looks["carry"] = work
    ended = move.run(job)
    assert (ended.state, ended.memory["by"], ended.memory["all"]) == (JobState.SUCCEEDED, "later", "later")
    assert move.ended == [JobState.SUCCEEDED]


@pytest.mark.parametrize("step", STEPS)
def test_an_agent_that_lost_the_stream_in_the_middle_of_a_step_changes_nothing(move: Move, step: str) -> None:
    job = move.ask()

    def lose(*_: Any) -> Any:
        move.store.release_streams("agent")
        move.store.take_streams("other", limit=1, lease_seconds=1200)
        return Done()

    move.looks[step] = lose
    found = move.run(job)
    assert (found.state, found.step, found.attempt) == (JobState.RUNNING, step, 1)
    move.looks.clear()
    move.hold("other")
    assert move.run(job).state is JobState.SUCCEEDED


def test_what_an_agent_notes_that_lost_the_stream_is_refused(move: Move) -> None:
    job, refused = move.ask(), []

    def lose(run: StepRun[Here]) -> Any:
        move.store.release_streams("agent")
        move.store.take_streams("other", limit=1, lease_seconds=1200)
        try:
            run.note({"by": "agent"})
        except LeaseLostError as exc:
            refused.append(exc)
            raise
        return Stay()

    move.looks["carry"] = lose
    found = move.run(job, looks=3)
    assert refused
    assert "by" not in found.memory


@pytest.mark.parametrize("step", STEPS)
def test_what_passes_by_itself_is_waited_for_and_anything_else_ends_the_job(move: Move, step: str) -> None:
    errors: list[Exception] = [PubSubUnavailableError("Away."), PubSubUnavailableError("Away.")]
    job = move.ask()

    def fail(*_: Any) -> Any:
        if errors:
            raise errors.pop()
        raise SnapshotRefusedError("No.")

    move.looks[step] = fail
    ended = move.run(job, looks=40)
    assert (ended.state, ended.error.message, ended.attempt) == (JobState.FAILED, "No.", 1)
    assert move.looked.count(step) == 3


def test_an_error_in_characters_that_no_database_takes_ends_the_job_all_the_same(move: Move) -> None:
    job = move.ask()

    def refuse(*_: Any) -> Any:
        raise SnapshotRefusedError("It is of the group \ud800\0.")

    move.looks["carry"] = refuse
    ended = move.run(job)
    assert (ended.state, ended.error.message) == (JobState.FAILED, "It is of the group ??.")


def test_an_error_that_nobody_expects_ends_the_job_with_a_sentence(move: Move) -> None:
    job = move.ask()
    move.looks["carry"] = lambda *_: 1 // 0
    ended = move.run(job)
    assert ended.error is not None
    assert (ended.state, move.looked.count("carry")) == (JobState.FAILED, 1)
    assert ended.error.message == "The step carry failed (ZeroDivisionError). The agent's log has the reason."


def test_a_step_that_fails_is_tried_as_often_as_one_that_is_late_and_may_lead_elsewhere_then(move: Move) -> None:
    job = move.ask()
    why: list[str] = []
    move.looks["carry"] = lambda _: Again("It fell.")
    move.gives_up = lambda _, error: why.append(error.message) or Next("unpack", {"by": "hand"}, "by hand")
    done = move.run(job, looks=30)
    assert (done.state, done.memory["by"]) == (JobState.SUCCEEDED, "hand")
    assert (move.looked.count("carry"), why) == (ATTEMPTS, [f"It fell. It was tried {ATTEMPTS} times."])
    told = [(event.what, event.why) for event in move.store.list_events(job.id)]
    assert told.count(("began carry again", "It fell.")) == ATTEMPTS - 1
    assert ("began unpack", "by hand") in told


def test_a_late_step_may_lead_elsewhere_and_one_that_raises_on_the_way_ends_the_job(move: Move) -> None:
    job = move.ask()
    move.looks["carry"] = lambda _: Stay()
    move.gives_up = lambda *_: Next("unpack")
    for _ in range(ATTEMPTS):
        move.look(SECONDS)
    assert move.run(job).state is JobState.SUCCEEDED
    other = move.ask()
    move.gives_up = lambda *_: 1 // 0
    for _ in range(ATTEMPTS + 1):
        move.look(SECONDS)
    ended = move.run(other)
    assert (ended.state, "ZeroDivisionError" in ended.error.message) == (JobState.FAILED, True)


def test_a_step_ends_a_job_as_it_says_and_keeps_what_it_found(move: Move) -> None:
    job = move.ask()
    move.looks["pack"] = lambda _: Fail(FaultRecord("unwanted", "Ann."), {"found": 1}, JobState.CANCELLED)
    ended = move.run(job)
    assert (ended.state, ended.error) == (JobState.CANCELLED, FaultRecord("unwanted", "Ann."))
    assert ended.memory == {"found": 1}
    assert move.ended == [JobState.CANCELLED]


def test_the_subject_changes_with_the_beginning_of_a_step_or_not_at_all(move: Move) -> None:
    job, entered = move.ask(), []

    def enter(begun: Job, why: str | None) -> None:
        entered.append((begun.step, why))
        move.store.note_stream("backup", actor="agent", what=f"begins {begun.step}")
        if begun.step == "carry":
            raise SnapshotRefusedError("It can't be.")

    move.enter = enter
    move.hold("second agent")
    for _ in range(3):
        move.look()
    found = move.store.get(job.id)
    assert (found.step, found.attempt) == ("pack", 1), "carry was never begun"
    assert entered[:2] == [("pack", None), ("carry", None)]
    assert [event.what for event in move.store.list_stream_events("backup")] == ["launched", "begins pack"]


def test_a_job_that_can_t_be_looked_after_keeps_no_other_from_its_step(move: Move) -> None:
    first, last = move.ask(), move.ask()

    def find_place(job: Job) -> Here:
        if job.id == first.id:
            raise ZeroDivisionError
        return move.place

    looked = move.runner.look(move.runner.list_jobs(), find_place)
    assert [(job.id, job.state) for job in looked] == [(first.id, JobState.PENDING), (last.id, JobState.RUNNING)]
    move.threads.join(10)


def test_a_step_of_a_later_release_is_left_alone(move: Move) -> None:
    job = move.ask()
    move.store.begin_step(job, "weigh", owner=None)
    assert move.run(job).step == "weigh"
    assert move.looked == []


def test_a_step_that_a_clock_years_ahead_has_begun_is_begun_again(move: Move) -> None:
    job = move.ask()
    move.looks["pack"] = lambda *_: Stay()
    move.clock.jump(timedelta(days=3650))
    move.look()
    move.clock.jump(timedelta(days=-3650))
    move.look(SECONDS)
    move.look(SECONDS)
    assert move.store.get(job.id).attempt == ATTEMPTS


def test_the_subject_changes_with_the_end_of_the_job_or_not_at_all(move: Move) -> None:
    job = move.store.begin_step(move.ask(), "unpack", owner=None)

    def end(ended: Job) -> None:
        move.store.note_stream("backup", actor="agent", what=f"{ended.id} {ended.state}")
        raise SnapshotRefusedError("It can't be.")

    with pytest.raises(SnapshotRefusedError):
        move.store.end_step_job(job, JobState.SUCCEEDED, owner=None, ended=end)
    assert move.store.get(job.id) == job
    assert [event.what for event in move.store.list_stream_events("backup")] == ["launched"]


def test_an_ended_job_takes_no_more_steps(move: Move) -> None:
    job = move.run(move.ask())
    for call in (
        lambda: move.store.begin_step(job, "pack", owner=None),
        lambda: move.store.note_step(job, {"more": 1}),
        lambda: move.store.end_step_job(job, JobState.FAILED, owner=None),
    ):
        with pytest.raises(JobChangedError):
            call()


def test_the_newest_jobs_that_ended_are_kept_and_every_one_that_has_not(move: Move) -> None:
    waiting = move.store.begin_step(move.ask(), "weigh", owner=None)
    ended = [move.run(move.ask(), looks=2).id for _ in range(4)]
    move.store.get(waiting.id)
    with move.store._database.read() as connection:
        ids = set(connection.exec_driver_sql("SELECT id FROM jobs").scalars())
        lines = set(connection.exec_driver_sql("SELECT id FROM events WHERE resource != 'stream'").scalars())
    assert ids == lines == {waiting.id, *ended[-2:]}


def test_a_job_that_somebody_else_ended_and_forgot_keeps_no_other_from_its_step(move: Move) -> None:
    first, last = move.ask(), move.ask()
    for _ in range(2):
        move.ask()

    def find_place(job: Job) -> Here:
        if job.id == first.id:
            # Only two are kept, and three newer ones are there.
            other = StepRunner(move.store, [move.kind()], StreamThreads("other"))
            begun = move.store.begin_step(job, "unpack", owner=None)
            other.carry_out(begun, move.place)
        return move.place

    move.runner.look(move.runner.list_jobs(), find_place)
    assert move.store.get(last.id).state is JobState.RUNNING
    move.threads.join(10)


def test_of_a_stream_one_slow_step_is_under_way_however_many_are_late(move: Move) -> None:
    wakes_up = threading.Event()
    under_way: list[str] = []

    def fail(*_: Any) -> Any:
        raise PubSubUnavailableError("Away.")

    def work(run: StepRun[Here]) -> Any:
        under_way.append(run.job.id)
        assert wakes_up.wait(30)
        return Stay()

    move.looks["carry"] = fail
    for _ in range(3):
        move.ask()
    move.look(SECONDS)
    move.looks["carry"] = work
    move.runner.look(move.runner.list_jobs(), lambda _: move.place)
    move.runner.look(move.runner.list_jobs(), lambda _: move.place)
    assert len(under_way) == 1
    wakes_up.set()
    move.threads.join(10)


def test_a_job_that_its_stream_ends_keeps_what_its_step_noted_at_the_same_moment(move: Move) -> None:
    job = move.store.begin_step(move.ask(), "carry", owner=None)

    def end() -> None:
        with move.store._database.write() as connection:
            fail_job(connection, job.id, FaultRecord("ended", "Over."), move.clock.now)

    ending = threading.Thread(target=end)
    with move.store._database.write():
        move.store.note_step(job, {"sought": True})
        ending.start()
        ending.join(0.5)
    ending.join(10)
    ended = move.store.get(job.id)
    assert (ended.state, ended.memory) == (JobState.FAILED, {"sought": True})


def test_figures_of_jobs_are_of_those_that_people_ask_for(move: Move) -> None:
    failed = move.store.begin_step(move.ask(), "unpack", owner=None)
    move.store.end_step_job(failed, JobState.FAILED, owner=None)
    move.ask()
    assert (move.store.count_jobs(), move.store.find_last_failures(), move.store.list_active()) == ([], {}, [])


def test_a_look_asks_the_store_for_the_time_once_however_many_jobs_there_are(move, monkeypatch):
    move.looks["pack"] = lambda *_: Stay()
    for _ in range(5):
        move.ask()
    move.look()
    asked: list[int] = []
    now = move.store.now
    monkeypatch.setattr(move.store, "now", lambda: asked.append(1) or now())
    move.look()
    assert len(asked) == 1
