"""Rollouts that a schedule begins: one a slot, whatever dies, and a run that follows its rollout to the end."""

from datetime import timedelta

import pytest

from model.errors import (
    ForbiddenError,
    ManifestInvalidError,
    ReleaseNotFoundError,
    RequestInvalidError,
    RolloutRefusedError,
    StreamNotFoundError,
)
from model.manifest_record import RunState
from model.principal import ROLLOUTS_APPLY, RUN, SCHEDULES_APPLY, Principal
from model.rollout_record import RolloutSide
from model.stream_record import Wanted
from model.stream_update import UpdateFault, UpdateState
from rollout.manifests.scheduled_jobs import ScheduledJobs
from rollout.manifests.scheduler import Scheduler
from tests.rollout.rollout_yard import NEW, OLD, TO_WATCH, Killed, Yard

ANN = Principal("ann", frozenset({SCHEDULES_APPLY, ROLLOUTS_APPLY}))
TEXT = """\
kind: Schedule
name: faster
cron: 0 13 * * *
job:
  kind: rollout
  request:
    stream: backup
    to: {release: "1.3", options: {slots: 2}, environment: {REFEED_BACKUP_BATCH_SECONDS: 3}}
    strategy: restart
    validate: {seconds: 60, min_messages: 10}
"""
PAUSED = TEXT + "on_failure: pause\n"


class Slots(Yard):
    """A running stream, and the schedulers of two replicas."""

    def __init__(self, path):
        super().__init__(path)
        others = dict.fromkeys(("backfills", "merges", "snapshots", "templates", "compactions"))
        jobs = ScheduledJobs(self.store, rollouts=self.rollouts, **others)
        self.schedulers = [Scheduler(self.store, jobs, steady=self.now.timestamp) for _ in range(2)]

    def schedule(self, text=TEXT, principal=ANN):
        self.manifests.apply("faster", text.encode(), principal=principal)

    def be_due(self, days=0.0):
        """Let the clock come to a slot, this day's or a later one's, and return its run."""
        self.now = self.now.replace(hour=13, minute=0, second=0) + timedelta(days=days)
        return self.look()

    def look(self):
        """Let both replicas look at the schedules, and return the newest run."""
        for scheduler in self.schedulers:
            scheduler.tick()
        return self.store.list_runs("faster", limit=1)[0]

    def end(self, *states):
        """Let the rollout go through some states to its end, as its agent would."""
        fault = None if states[-1] is UpdateState.STABLE else UpdateFault("update_failed", "Slow.")
        self.advance(*states[:-1])
        self.advance(states[-1], error=fault)
        return self.look()


@pytest.fixture
def slots(tmp_path):
    made = Slots(tmp_path / "jobs.db")
    yield made
    made.store.close()


def ids(slots):
    return [each.id for each in slots.store.list_updates()]


def test_a_slot_begins_a_rollout_of_what_runs_and_succeeds_when_it_is_stable(slots):
    slots.schedule()
    assert ids(slots) == [], "applying a schedule begins nothing"
    run = slots.be_due()
    made = slots.rollout
    assert (run.state, run.job_kind, run.job_id) == (RunState.RUNNING, "rollout", made.id)
    assert (made.manifest.name, made.created_by) == ("faster", "schedule:faster")
    before = RolloutSide(made.from_release, made.from_options)
    after = RolloutSide(made.request.release, made.to_options)
    assert (before, after, made.request.strategy) == (OLD, NEW, "restart")
    slots.advance(*TO_WATCH)
    assert slots.look().state is RunState.RUNNING
    done = slots.end(UpdateState.STABLE)
    assert (done.state, done.why, slots.side()) == (RunState.SUCCEEDED, None, NEW)


def test_a_slot_at_which_the_stream_runs_as_wanted_is_left_out_also_where_from_is_said(slots):
    said = TEXT.replace("    to:", '    from: {release: "1.2", options: {slots: 2}}\n    to:')
    slots.schedule(said)
    slots.be_due()
    assert slots.end(*TO_WATCH, UpdateState.STABLE).state is RunState.SUCCEEDED
    second = slots.be_due(days=1)
    assert (second.state, second.why) == (
        RunState.SKIPPED,
        "backup already runs with this release and these options: there is nothing to roll out.",
    )
    assert len(ids(slots)) == 1


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_replica_that_is_killed_between_the_rollout_and_its_note_leaves_one_rollout(
    slots, monkeypatch, *, has_ended
):
    slots.schedule()
    with monkeypatch.context() as patch:

        def die(*_, **__):
            raise Killed

        patch.setattr(slots.store, "change_run", die)
        with pytest.raises(Killed):
            slots.be_due()
    (run,) = slots.store.list_runs("faster", limit=10)
    assert (run.state, run.job_id, len(ids(slots))) == (RunState.STARTING, None, 1)
    if has_ended:
        slots.advance(*TO_WATCH, UpdateState.STABLE)
    slots.schedulers[1].tick()
    (run,) = slots.store.list_runs("faster", limit=10)
    assert (run.state, [run.job_id]) == (RunState.RUNNING, ids(slots))


@pytest.mark.parametrize(
    ("halts", "states", "expected"),
    [
        ("", (*TO_WATCH, UpdateState.STABLE), RunState.SUCCEEDED),
        ("", (*TO_WATCH, UpdateState.ROLLED_BACK), RunState.FAILED),
        ("    on_failure: halt\n", (*TO_WATCH, UpdateState.FAILED), RunState.FAILED),
        ("", (UpdateState.REFUSED,), RunState.FAILED),
        ("", (UpdateState.FAILED,), RunState.FAILED),
        ("", (), RunState.CANCELLED),
    ],
)
def test_a_run_ends_as_its_rollout_and_pauses_only_when_that_failed(slots, halts, states, expected):
    slots.schedule(TEXT + halts + "on_failure: pause\n")
    made_id = slots.be_due().job_id
    if expected is RunState.CANCELLED:
        slots.updates.cancel(made_id, principal=ANN)
        run, why = slots.look(), "ann took the update back while it was CHECKING."
    else:
        run, why = slots.end(*states), None if expected is RunState.SUCCEEDED else "Slow."
    assert (run.state, run.why) == (expected, why)
    paused = slots.store.get_manifest("faster").paused
    is_paused = paused == f"The run of 2026-03-02T13:00Z failed: {why}"
    assert (is_paused, paused is None) == (expected is RunState.FAILED, expected is not RunState.FAILED)


def test_what_runs_otherwise_than_from_says_and_a_stream_that_has_ended_fail_with_the_reason(slots):
    slots.schedule(TEXT.replace("    to:", '    from: {release: "1.1"}\n    to:'))
    run = slots.be_due()
    assert (run.state, ids(slots)) == (RunState.FAILED, [])
    assert "release is 1.2, but in 'from' it is 1.1" in run.why
    slots.schedule(TEXT.replace('release: "1.3"', 'release: "1.2"'))
    slots.store.end_stream("backup", Wanted.DRAINED, actor="bob")
    slots.drain()
    run = slots.be_due(days=1)
    assert (run.state, run.why, ids(slots)) == (
        RunState.FAILED,
        "backup is DRAINED: launch it with the other release.",
        [],
    )


@pytest.mark.parametrize("missing", [ROLLOUTS_APPLY, SCHEDULES_APPLY])
def test_who_applies_it_may_apply_rollouts_as_well_as_schedules(slots, missing):
    principal = Principal("bob", (ANN.scopes | {RUN}) - {missing})
    with pytest.raises(ForbiddenError):
        slots.schedule(principal=principal)
    assert slots.store.list_manifests() == []


@pytest.mark.parametrize(
    ("old", "new", "error", "words"),
    [
        ("stream: backup", "stream: backups", StreamNotFoundError, "Did you mean backup?"),
        ('"1.3"', '"1.4"', ReleaseNotFoundError, "No agent has a release 1.4."),
        (
            "strategy: restart",
            "strategy: rolling",
            RolloutRefusedError,
            "faster: only a pipeline can use the strategy rolling",
        ),
        ("{slots: 2}", "{group: a}", RequestInvalidError, "A backup stream has no option group"),
        ("cron: 0 13 * * *", f"cron: 0 13 * * *\ndescription: {'d' * 2001}", ManifestInvalidError, "/description"),
        ("environment: {", "environment: {PATH: a, ", ManifestInvalidError, "/job/request/to/environment/PATH"),
        ('"1.3"', '"{{ slot.end }}"', ManifestInvalidError, "/job/request/to/release"),
        ("    to:", "    colour: red\n    to:", ManifestInvalidError, "/job/request/colour"),
        (
            "validate: {",
            "validate: {may_differ: [a], ",
            ManifestInvalidError,
            "works only with the strategy `rolling`",
        ),
    ],
)
def test_a_rollout_that_could_not_be_is_refused_when_the_schedule_is_applied(slots, old, new, error, words):
    assert old in TEXT
    with pytest.raises(error) as caught:
        slots.schedule(TEXT.replace(old, new))
    pointers = [each["pointer"] for each in caught.value.details.get("errors", ())]
    assert words in caught.value.message or words in pointers
    if error is RequestInvalidError:
        assert pointers == ["/job/request/to/options/group"]
    assert slots.store.list_manifests() == []


def test_a_schedule_is_changed_and_removed_while_its_rollout_goes_on_to_its_end(slots):
    slots.schedule()
    slots.be_due()
    slots.schedule(PAUSED)
    (again,) = slots.manifests.apply_all(PAUSED.encode(), principal=ANN, validate_only=True).plans
    assert (again.action, again.note) == ("none", None), "a schedule tries its rollout again at its next slot"
    slots.manifests.remove("faster", principal=ANN)
    run = slots.end(*TO_WATCH, UpdateState.STABLE)
    assert (run.state, slots.store.list_manifests()) == (RunState.SUCCEEDED, [])
