"""Schedules by a clock that the test moves: each slot once, whatever dies, overlaps, fails or is removed."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jobs.store import JobStore
from jobs.store.tables import MANIFESTS
from model.errors import (
    ForbiddenError,
    ManifestInvalidError,
    ManifestNotFoundError,
    RefeedError,
    RegistryError,
    RequestInvalidError,
    TopicNotFoundError,
)
from model.manifest_record import RunState, ScheduleRun
from model.principal import RUN, SCHEDULES_APPLY, SCOPES, Principal
from model.stream_options import StreamKind
from rollout.manifests import scheduler as module
from rollout.manifests.schedule import read_schedule
from rollout.manifests.scheduled_jobs import StartedJob
from rollout.manifests.scheduler import Scheduler
from rollout.manifests.schedules import ScheduleService
from rollout.manifests.service import ManifestService
from tests.work import counted

ANN = Principal("ann", frozenset(SCOPES), ("orders",))
HOURLY = "kind: Schedule\nname: hourly\ncron: 0 * * * *\njob: {kind: merge}\n"
NIGHTLY = "kind: Schedule\nname: hourly\ncron: 30 2 * * *\ntime_zone: Europe/Berlin\njob: {kind: merge}\n"


class Jobs:
    """What the schedules start: one job a key, whose state the test sets."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.principals: set[Principal] = set()
        self.states: dict[str, tuple[RunState, str | None]] = {}
        self.calls = 0
        self.error: RefeedError | None = None

    def start(self, run: ScheduleRun, principal: Principal) -> StartedJob:
        self.calls += 1
        if self.error is not None:
            raise self.error
        job_id = f"{run.slot:%d %H:%M}"
        if job_id not in self.made:
            self.made.append(job_id)
        self.principals.add(principal)
        return StartedJob("merge", job_id)

    def look(self, run: ScheduleRun) -> tuple[RunState, str | None]:
        return self.states.get(run.job_id, (RunState.RUNNING, None))

    def end(self, job_id: str, state: RunState = RunState.SUCCEEDED, why: str | None = None) -> None:
        self.states[job_id] = (state, why)


class Yard:
    """A store whose clock the test moves, and the schedulers of two replicas on it."""

    def __init__(self, path: Path, now: str) -> None:
        self.now = datetime.fromisoformat(now)
        self.seconds = 0.0
        self.store = JobStore(path)
        self.store._database.now = lambda _: self.now  # type: ignore[method-assign]
        self.jobs = Jobs()
        self.service = ManifestService(self.store)
        self.schedules = ScheduleService(self.store)
        self.schedulers = [Scheduler(self.store, self.jobs, steady=lambda: self.seconds) for _ in range(2)]

    def apply(self, text: str) -> None:
        name = text.split("name: ")[1].split("\n", maxsplit=1)[0]
        self.service.apply(name, text.encode(), principal=ANN)

    def go(self, duration: timedelta = timedelta(), step: timedelta = timedelta(minutes=3)) -> list[str]:
        """Let time pass with both replicas looking, and return the jobs that were made in it."""
        before = len(self.jobs.made)
        until = self.now + duration
        while True:
            for scheduler in self.schedulers:
                scheduler.tick()
            if self.now >= until:
                return self.jobs.made[before:]
            self.now += step
            self.seconds += step.total_seconds()

    def be_away(self, duration: timedelta) -> None:
        """Let time pass without anybody who looks."""
        self.now += duration
        self.seconds += duration.total_seconds()

    def runs(self, name: str = "hourly") -> list[tuple[str, str]]:
        return [(f"{run.slot:%d %H:%M}", run.state.value) for run in self.store.list_runs(name, limit=100)[::-1]]


@pytest.fixture
def yard(tmp_path):
    made = Yard(tmp_path / "jobs.db", "2026-03-02T00:30:00Z")
    yield made
    made.store.close()


def hours(number: float) -> timedelta:
    return timedelta(hours=number)


def test_each_slot_has_one_job_however_many_replicas_look_and_it_is_the_schedule_s(yard):
    yard.apply(HOURLY)
    assert yard.go(hours(0.4)) == [], "no slot is past when a schedule is new"
    for job in ("02 01:00", "02 02:00"):
        assert yard.go(hours(1)) == [job]
        yard.jobs.end(job)
    yard.go()
    assert yard.runs() == [("02 01:00", "SUCCEEDED"), ("02 02:00", "SUCCEEDED")]
    (run, *_) = yard.store.list_runs("hourly", limit=1)
    assert (run.slot_start.hour, run.slot.hour) == (1, 2)
    assert yard.jobs.principals == {Principal("schedule:hourly", frozenset(SCOPES), ("orders",))}


def test_a_replica_that_dies_between_the_slot_and_its_job_is_followed_by_the_other(yard):
    yard.apply(HOURLY)
    yard.be_away(hours(0.5))
    yard.jobs.error = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        yard.schedulers[0].tick()
    assert yard.runs() == [("02 01:00", "STARTING")]
    yard.jobs.error = None
    yard.schedulers[1].tick()
    assert (yard.jobs.made, yard.runs()) == (["02 01:00"], [("02 01:00", "RUNNING")])


def test_missed_slots_are_not_made_up_for_without_a_catch_up(yard):
    yard.apply(HOURLY)
    yard.be_away(hours(5.25))
    assert yard.go(hours(0.2)) == []
    assert yard.go(hours(0.25)) == ["02 06:00"]


def test_slots_that_were_missed_are_decided_once_and_not_at_each_look(yard):
    yard.apply(HOURLY)
    before = yard.go()
    with counted(yard.store) as idle:
        yard.schedulers[0].tick()
    yard.be_away(hours(5.25))
    assert yard.go() == before
    with counted(yard.store) as work:
        yard.schedulers[0].tick()
    assert (work.statements, yard.runs()) == (idle.statements, [])


def test_a_look_reads_only_the_schedules_that_changed_or_have_a_slot_due(yard, monkeypatch):
    read = []

    def noted(document):
        read.append(document["name"])
        return read_schedule(document)

    monkeypatch.setattr(module, "read_schedule", noted)
    daily = HOURLY.replace("hourly", "daily").replace("0 * * * *", "0 0 * * *")
    yard.apply(HOURLY)
    yard.apply(daily)
    yard.go()
    read.clear()
    assert (yard.go(hours(0.4)), read) == ([], [])
    assert (yard.go(hours(0.2)), set(read)) == (["02 01:00"], {"hourly"})
    read.clear()
    yard.apply(daily.replace("0 0 * * *", "30 1 * * *"))
    assert (yard.go(hours(0.5)), set(read)) == (["02 01:30"], {"daily"})


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        ("{window_seconds: 86400, max: 1}", ["02 05:00"]),
        ("{window_seconds: 86400, max: 3}", ["02 03:00", "02 04:00", "02 05:00"]),
        ("{window_seconds: 8000, max: 10}", ["02 04:00", "02 05:00"]),
    ],
)
def test_a_catch_up_makes_the_newest_missed_slots_within_its_window_one_after_another(yard, catch_up, expected):
    yard.apply(f"{HOURLY}catch_up: {catch_up}\n")
    yard.be_away(hours(5.25))
    for number, job in enumerate(expected, 1):
        yard.go()
        assert yard.jobs.made == expected[:number], "the next one waits for the one before"
        yard.jobs.end(job)
    assert yard.go(hours(0.1)) == [], "what is older is settled too"
    assert [state for _, state in yard.runs()] == ["SUCCEEDED"] * len(expected)


def test_a_catch_up_waits_for_the_run_that_the_service_left_behind(yard):
    yard.apply(f"{HOURLY}catch_up: {{window_seconds: 86400, max: 2}}\n")
    assert yard.go(hours(0.5)) == ["02 01:00"]
    yard.be_away(hours(3.25))
    assert yard.go() == []
    assert yard.runs() == [("02 01:00", "RUNNING"), ("02 03:00", "QUEUED"), ("02 04:00", "QUEUED")]
    yard.jobs.end("02 01:00", RunState.FAILED, "The service was stopped.")
    assert yard.go(timedelta(minutes=1)) == ["02 03:00"]
    yard.jobs.end("02 03:00")
    assert yard.go(timedelta(minutes=1)) == ["02 04:00"]
    yard.go(hours(1))
    assert yard.runs()[-1] == ("02 05:00", "SKIPPED"), "it was on time, so the overlap decides"


def missed(yard: Yard) -> list[str]:
    events = yard.store.list_last_events(limit=20, of=("manifest", "hourly"))
    return [f"{event.what}: {event.why}" for event in events if "slot" in (event.why or event.what)]


def test_slots_that_no_run_will_have_are_in_the_history_of_their_schedule(yard):
    yard.apply(f"{HOURLY}catch_up: {{window_seconds: 86400, max: 1}}\n")
    yard.be_away(hours(5.25))
    yard.go()
    yard.go()
    told = ["missed the slots from 2026-03-02T01:00Z to 2026-03-02T04:00Z: None"]
    assert missed(yard) == told
    yard.apply(HOURLY)
    yard.be_away(hours(1))
    yard.go()
    yard.go()
    told.insert(0, "missed the slot of 2026-03-02T06:00Z: None")
    assert missed(yard) == told
    yard.schedules.pause("hourly", principal=ANN)
    yard.be_away(hours(3))
    yard.schedules.resume("hourly", principal=ANN)
    told.insert(0, "resumed: The slots from 2026-03-02T07:00Z to 2026-03-02T09:00Z passed in the pause.")
    assert missed(yard) == told
    yard.schedules.pause("hourly", principal=ANN)
    yard.schedules.resume("hourly", principal=ANN)
    assert missed(yard) == told


def test_a_slot_beside_a_run_that_goes_on_is_left_out_by_default(yard):
    yard.apply(HOURLY)
    assert yard.go(hours(3)) == ["02 01:00"]
    assert yard.runs() == [("02 01:00", "RUNNING"), ("02 02:00", "SKIPPED"), ("02 03:00", "SKIPPED")]
    assert yard.store.list_runs("hourly", limit=1)[0].why == "The run of 2026-03-02T01:00Z has not ended."


def test_a_queue_holds_one_slot_and_it_starts_when_the_run_ends(yard):
    yard.apply(f"{HOURLY}overlap: queue\n")
    assert yard.go(hours(3)) == ["02 01:00"]
    assert yard.runs() == [("02 01:00", "RUNNING"), ("02 02:00", "QUEUED"), ("02 03:00", "SKIPPED")]
    yard.jobs.end("02 01:00")
    assert yard.go(timedelta(minutes=1)) == ["02 02:00"]


BOB = Principal("bob", frozenset({RUN, SCHEDULES_APPLY}))


def test_a_run_that_somebody_asks_for_is_made_once_as_theirs_and_stands_among_the_slots(yard):
    yard.apply(HOURLY)
    yard.go(hours(1))
    yard.jobs.end("02 01:00")
    yard.go()
    yard.jobs.principals.clear()
    first = yard.schedules.run("hourly", principal=BOB, idempotency_key="k")
    assert yard.schedules.run("hourly", principal=BOB, idempotency_key="k") == first
    assert (first.state, first.asked_by) == (RunState.STARTING, "bob")
    assert timedelta() < first.slot - yard.now < timedelta(seconds=1), "no slot has this instant"
    assert (first.slot_start.hour, first.request["slot_end"]) == (0, "2026-03-02T01:00:00+00:00")
    yard.go()
    assert yard.jobs.principals == {BOB}
    assert yard.schedules.run("hourly", principal=BOB, idempotency_key="k").state is RunState.RUNNING
    other = yard.schedules.run("hourly", principal=ANN, idempotency_key="k")
    assert (other.slot > first.slot, other.asked_by) == (True, "ann"), "the key is bob's"
    assert yard.runs() == [("02 01:00", "SUCCEEDED"), ("02 01:30", "RUNNING"), ("02 01:30", "SKIPPED")]


def test_a_run_that_somebody_asks_for_and_the_slots_give_way_to_each_other_by_the_overlap(yard):
    yard.apply(HOURLY)
    yard.go(hours(0.8))
    skipped = yard.schedules.run("hourly", principal=BOB)
    assert (skipped.state, skipped.why) == (RunState.SKIPPED, "The run of 2026-03-02T01:00Z has not ended.")
    yard.jobs.end("02 01:00")
    yard.go(timedelta(minutes=3))
    assert yard.schedules.run("hourly", principal=BOB).state is RunState.STARTING
    yard.go(hours(1))
    assert [state for _, state in yard.runs()] == ["SUCCEEDED", "SKIPPED", "RUNNING", "SKIPPED"]
    yard.apply(f"{HOURLY}overlap: queue\n")
    queued = yard.schedules.run("hourly", principal=BOB)
    assert queued.state is RunState.QUEUED
    assert yard.schedules.run("hourly", principal=BOB).state is RunState.SKIPPED, "one waits at most"
    yard.jobs.end(f"{yard.store.list_living_runs()[0].slot:%d %H:%M}")
    made = yard.go(timedelta(minutes=3))
    assert made == [f"{queued.slot:%d %H:%M}"]


def test_a_paused_schedule_runs_when_somebody_asks_and_none_without_the_right_to_its_job(yard):
    yard.apply(HOURLY)
    yard.schedules.pause("hourly", principal=ANN)
    for missing in (RUN, SCHEDULES_APPLY):
        with pytest.raises(ForbiddenError):
            yard.schedules.run("hourly", principal=Principal("eve", BOB.scopes - {missing}))
    for call in (yard.schedules.run, yard.schedules.pause, yard.schedules.get):
        with pytest.raises(ManifestNotFoundError, match=r"There is no schedule hourlly\. Did you mean hourly\?"):
            call("hourlly", principal=ANN)
    assert yard.runs() == []
    yard.schedules.run("hourly", principal=BOB)
    yard.go(hours(2))
    assert [state for _, state in yard.runs()] == ["RUNNING"]


def test_a_failed_run_pauses_the_schedule_and_resuming_makes_no_past_slot(yard):
    yard.apply(f"{HOURLY}on_failure: pause\ncatch_up: {{window_seconds: 86400, max: 5}}\n")
    yard.go(hours(0.5))
    yard.jobs.end("02 01:00", RunState.FAILED, "the driver died")
    assert yard.go(hours(3)) == []
    shown = yard.schedules.get("hourly", principal=ANN)
    assert shown.record.paused == "The run of 2026-03-02T01:00Z failed: the driver died"
    assert shown.next_slots == ()
    resumed = yard.schedules.resume("hourly", principal=ANN)
    assert (resumed.record.paused, resumed.next_slots[0]) == (None, datetime(2026, 3, 2, 5, tzinfo=UTC))
    assert yard.go(hours(0.25)) == []
    assert yard.go(hours(1)) == ["02 05:00"]


def test_without_pause_a_failed_run_is_followed_by_the_next_slot(yard):
    yard.apply(HOURLY)
    yard.go(hours(0.5))
    yard.jobs.end("02 01:00", RunState.FAILED)
    assert yard.go(hours(1)) == ["02 02:00"]


def test_another_cron_makes_no_past_slot_and_another_job_forgets_none(yard):
    caught_up = HOURLY + "catch_up: {window_seconds: 86400, max: 5}\n"
    yard.apply(caught_up)
    yard.be_away(hours(2))
    yard.apply(caught_up.replace("cron: 0 *", "cron: 10 *"))
    assert yard.go(hours(0.1)) == [], "01:10 and 02:10 were past"
    yard.be_away(hours(1))
    yard.apply(
        caught_up.replace("cron: 0 *", "cron: 10 *").replace(
            "{kind: merge}", "{kind: merge, request: {source: a}}"
        )
    )
    assert yard.go() == ["02 03:10"], "it was missed, and only the job is another one"
    assert yard.store.list_runs("hourly", limit=1)[0].request["job"]["request"]["source"] == "a"


def test_a_schedule_that_is_removed_lets_its_run_end_and_what_has_not_begun_never_does(yard):
    yard.apply(f"{HOURLY}overlap: queue\n")
    yard.go(hours(2))
    assert yard.runs() == [("02 01:00", "RUNNING"), ("02 02:00", "QUEUED")]
    yard.service.remove("hourly", principal=ANN)
    assert yard.go(hours(2)) == []
    assert yard.runs() == [("02 01:00", "RUNNING"), ("02 02:00", "SKIPPED")]
    yard.jobs.end("02 01:00")
    yard.go()
    assert yard.runs()[0] == ("02 01:00", "SUCCEEDED")
    yard.apply(HOURLY)
    assert yard.go(hours(1)) == ["02 05:00"], "it counts from when it came back"


def test_a_start_that_fails_for_a_passing_reason_is_tried_every_minute_until_the_next_slot(yard):
    yard.apply(HOURLY)
    yard.jobs.error = RegistryError("The registry does not answer.")
    yard.go(hours(0.6), step=timedelta(seconds=10))
    assert yard.runs() == [("02 01:00", "STARTING")]
    assert 5 <= yard.jobs.calls <= 14, "a minute, and each of two replicas"
    assert yard.store.list_runs("hourly", limit=1)[0].why == "The registry does not answer."
    yard.jobs.error = None
    assert yard.go(timedelta(minutes=1)) == ["02 01:00"]
    yard.jobs.end("02 01:00")
    yard.jobs.error = RegistryError("The registry does not answer.")
    yard.go(hours(2.5))
    assert yard.runs()[1] == ("02 02:00", "FAILED")


def test_a_start_that_is_refused_has_failed_and_one_with_nothing_to_do_is_left_out(yard):
    yard.apply(HOURLY)
    yard.jobs.error = TopicNotFoundError("There is no topic orders.")
    yard.go(hours(1))
    nothing = {"code": "nothing_to_merge", "message": "Nothing.", "pointer": "/source"}
    yard.jobs.error = RequestInvalidError("Nothing to merge.", errors=[nothing])
    yard.go(hours(1))
    assert yard.runs() == [("02 01:00", "FAILED"), ("02 02:00", "SKIPPED")]


@pytest.mark.parametrize(
    ("now", "expected"), [("2026-03-29T00:20:00Z", ["29 01:00"]), ("2026-10-25T00:20:00Z", ["25 00:30"])]
)
def test_through_a_change_of_the_clocks_the_night_has_one_run(tmp_path, now, expected):
    yard = Yard(tmp_path / "jobs.db", now)
    yard.apply(NIGHTLY)
    assert yard.go(hours(1.5), step=timedelta(minutes=2)) == expected
    yard.store.close()


def pause(yard: Yard) -> None:
    yard.schedules.pause("hourly", principal=ANN)
    yard.schedules.resume("hourly", principal=ANN)


def apply_other(yard: Yard) -> None:
    yard.apply(HOURLY.replace("0 *", "0,30 *"))


@pytest.mark.parametrize("touch", [lambda _: None, pause, apply_other])
def test_a_clock_that_was_years_ahead_costs_no_slot_once_it_is_right(yard, touch):
    yard.apply(HOURLY)
    yard.go(hours(1))
    yard.jobs.end("02 01:00")
    yard.go()
    right = yard.now
    yard.be_away(timedelta(days=3650))
    (ahead,) = yard.go(hours(1))
    yard.jobs.end(ahead)
    touch(yard)
    yard.now = right
    assert yard.go(hours(0.6)) == ["02 02:00"]
    assert len(yard.store.list_runs("hourly", limit=100)) == len(yard.jobs.made) == 3, "each slot once"


def test_a_clock_that_is_set_back_runs_no_slot_again(yard):
    yard.apply(f"{HOURLY}overlap: queue\ncatch_up: {{window_seconds: 86400, max: 5}}\n")
    for _ in range(4):
        for job in yard.go(hours(1)):
            yard.jobs.end(job)
    made, runs = list(yard.jobs.made), yard.runs()
    yard.go()
    for back in (hours(1), hours(3)):
        right = yard.now
        yard.now -= back
        assert yard.go(back - timedelta(minutes=2)) == []
        yard.now = right
    yard.go()
    assert yard.jobs.made == made
    assert [run for run, _ in yard.runs()] == [run for run, _ in runs]


def test_a_schedule_that_a_newer_release_has_kept_keeps_no_other_from_its_slots(yard):
    yard.apply(HOURLY)
    yard.apply(HOURLY.replace("hourly", "later"))
    document = {**yard.store.get_manifest("hourly").document, "jitter": 5}
    with yard.store._database.write() as connection:
        named = MANIFESTS.c.name == "hourly"
        connection.execute(MANIFESTS.update().where(named).values(document=document))
    yard.go(hours(1))
    assert (yard.runs(), len(yard.runs("later"))) == ([], 1)
    with pytest.raises(ManifestInvalidError, match=r"The stored manifest hourly .* \(jitter: .* Apply it again"):
        yard.schedules.get("hourly", principal=ANN)
    yard.apply(f"{HOURLY}description: again\n")
    yard.go(hours(1))
    assert len(yard.runs()) == 1


def test_what_has_not_begun_of_a_schedule_that_became_a_rollout_never_does(yard):
    yard.store.launch_stream("backup", StreamKind.BACKUP, actor="ann", release="1.2")
    yard.apply(f"{HOURLY}overlap: queue\n")
    yard.go(hours(2))
    assert yard.runs() == [("02 01:00", "RUNNING"), ("02 02:00", "QUEUED")]
    yard.apply("kind: Rollout\nname: hourly\nstream: backup\nfrom: {release: '1.2'}\nto: {release: '1.3'}\n")
    yard.jobs.end("02 01:00")
    yard.go()
    assert yard.runs() == [("02 01:00", "SUCCEEDED"), ("02 02:00", "SKIPPED")]


def test_a_replica_that_dies_between_a_failure_and_the_pause_leaves_neither(yard, monkeypatch):
    yard.apply(f"{HOURLY}on_failure: pause\n")
    assert yard.go(hours(1)) == ["02 01:00"]
    yard.jobs.end("02 01:00", RunState.FAILED, "It broke.")

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(yard.store, "pause_schedule", die)
        with pytest.raises(KeyboardInterrupt):
            yard.schedulers[0].tick()
    assert yard.go(hours(2)) == []
    assert yard.runs() == [("02 01:00", "FAILED")]
    assert yard.store.get_manifest("hourly").paused == "The run of 2026-03-02T01:00Z failed: It broke."


def test_a_slot_waits_for_a_run_that_somebody_asked_for_after_the_slot_had_ended(yard):
    yard.apply(HOURLY + "overlap: queue\ncatch_up: {window_seconds: 3600, max: 1}\n")
    yard.be_away(hours(0.55))
    yard.schedules.run("hourly", principal=ANN)
    assert yard.go() == ["02 01:03"]
    assert yard.go() == [], "the slot of 01:00 waits, although it is before"
    yard.jobs.end("02 01:03")
    assert yard.go() + yard.go() == ["02 01:00"]
