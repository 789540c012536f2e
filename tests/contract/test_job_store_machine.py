"""Any calls in any order do to every job store what they do to one of plain dicts, by a clock that jumps.

REFEED_STORE_EXAMPLES=2000 runs it for as long as one likes, from another seed each time.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import permutations
from random import Random
from threading import Barrier
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from jobs.store import ApiKey, Idempotency, JobFilter, SortOrder, sort_key
from model.change import ChangeRequest
from model.fault import FaultRecord
from model.job import JobState
from model.principal import STREAMS_OPERATE, Principal
from model.process import Process
from model.stream_options import StreamKind
from model.stream_record import StreamHome, StreamState, Wanted
from tests.draws import equal_draws
from tests.worlds.job_store import KINDS, NOON, PEOPLE, World, at_most, opened_world, outcome, state_of

# How many calls one walk makes, of which an example has up to three.
CALLS_A_WALK = 50
__all__ = ["equal_draws"]
EXAMPLES = int(os.environ.get("REFEED_STORE_EXAMPLES", "0"))
ANN, BOB = (Principal(f"key:{name}", frozenset({STREAMS_OPERATE}), ("orders", "t-*")) for name in ("ann", "bob"))
DRIVER = Process(1, 2, "boot")
YEARS = 3652 * 86_400.0
REQUESTS = (
    {"topic": "orders", "labels": {"env": "prod", "team": "a"}},
    {"topic": "Orders", "list": [1, None, {"half": "\ud800"}]},
    {"query": "SELECT '\u0000' -- \U0001f600"},
    {"topic": "pays", "labels": {"env": "test"}},
)


@pytest.fixture
def world(url):
    with opened_world(url) as world:
        yield world


Draw = Callable[[Random], Any]


def any_of(*values):
    return lambda random: random.choice(values)


def integers(least, most):
    return lambda random: random.randint(least, most)


def builds(make, *parts):
    return lambda random: make(*(part(random) for part in parts))


number = integers(0, 9)
person = any_of(*PEOPLE)
kind = any_of(*KINDS)
# Minutes, mostly: what others hold is met then.
seconds = any_of(-1.0, 0.0, 20.0, 600.0, 600.0, 600.0, 4000.0)
why = any_of(None, None, "why not")
fault = any_of(None, FaultRecord("driver_died", "Died."))
first_options = any_of(None, {"rate": 2}, {"labels": {"env": "test"}})
options = any_of(
    None, None, {"rate": 2}, {"rate": None, "canary": 5}, {"labels": {"env": "test"}}, {"labels": None}
)
approval = any_of(None, None, None, {"required": True, "by": None}, {"required": False, "by": None})
key = any_of(None, None, None, "k", "l")
# None expects nothing; else how far what is expected lies behind what is.
stale = any_of(None, None, None, 0, 0, 1)
limit = any_of(None, None, None, 1, 3)
stream = any_of("backup", "backup", "pipeline-a", "nobody")
order = any_of(
    *([], [SortOrder("topic", descending=True)], [SortOrder("state"), SortOrder("created_at", descending=True)]),
    *([SortOrder("created_by")], [SortOrder("created_by", descending=True), SortOrder("id")], [SortOrder("id")]),
)

# Every call with its arguments. Those with a name in capitals are made from the state: see ``_filled``.
CALLS: dict[str, dict[str, Draw]] = {
    "insert": {
        "NEW": number, "kind": kind, "actor": person, "request": any_of(*REQUESTS), "options": first_options,
        "state": any_of(*[JobState.PENDING] * 5, JobState.PAUSED, JobState.RUNNING),
        "approval": approval, "KEY": key, "GUARD": limit,
    },
    "begin_create": {
        "kind": kind, "actor": person, "KEY": any_of("k", "l"), "ATTEMPT": number, "seconds": seconds,
    },
    "abandon_create": {"actor": person, "KEY": any_of("k", "l"), "ATTEMPT": number},
    "begin_attempt": {"JOB": number, "owner": any_of(None, None, *PEOPLE)},
    "move": {
        "JOB": number, "state": any_of(*JobState), "actor": person, "why": why, "error": fault, "options": options,
        "driver": any_of(None, DRIVER),
        "awaits_person": any_of(False, True), "owner": any_of(*[None] * 6, *PEOPLE),
        "expected_version": stale, "expected_epoch": stale, "max_running": limit,
        "expected_state": any_of(*[None] * 5, JobState.RUNNING),
    },
    "change": {
        "JOB": number, "actor": person, "what": any_of("w"), "why": why, "options": options, "approval": approval,
        "findings": any_of(None, {"state": "complete"}), "expected_version": stale,
    },
    "forget_driver": {"JOB": number, "actor": person, "why": any_of("Idle."), "expected_epoch": any_of(0, 0, 1)},
    "set_progress": {"JOB": number, "progress": builds(lambda n: {"published": n}, integers(0, 2**40))},
    "claim": {"kind": kind, "owner": person, "limit": integers(0, 5), "lease_seconds": seconds},
    "take_over": {"kind": kind, "owner": person, "lease_seconds": seconds},
    "renew": {"owner": person, "lease_seconds": seconds},
    "release_all": {"owner": person},
    "restart": {
        "JOB": number, "HOLDER": any_of(None, None, None, *PEOPLE), "actor": person, "why": any_of("died"),
        "epoch": any_of(0, 0, 0, 1), "wait_seconds": seconds, "counts": any_of(False, True),
    },
    "open_webhook": {"digest": any_of("x", "y")},
    "list_unnotified": {"kind": kind, "limit": any_of(1, 9), "since": any_of(None, NOON), "hold_seconds": seconds},
    "mark_notified": {
        "JOB": number, "at": any_of(NOON), "NEWS": any_of(False, True), "was_told": any_of(True, False),
    },
    "list_unverified": {"kind": kind, "limit": any_of(99), "hold_seconds": seconds},
    "set_verification": {
        "JOB": number, "actor": person,
        "verdict": any_of({"state": "pending"}, {"state": "pending", "landed": 5}, {"state": "done"}),
        "epoch": any_of(0, 0, 0, 1), "again_seconds": any_of(None, -1.0, 60.0),
    },
    "create_change": {
        "asked": builds(
            lambda requester, name, verb, version, body: ChangeRequest(
                "stream", name, verb, {"timeout": body}, f"{verb} {name}", version, STREAMS_OPERATE, requester
            ),
            any_of(ANN, BOB), any_of("backup", "x"), any_of("drain", "end"), any_of(3, 4), any_of(5, 6),
        ),
    },
    "launch_stream": {
        "name": any_of("backup", "backup", "pipeline-a"), "actor": person, "release": any_of(None, "1.2"),
        "kind": any_of(*[StreamKind.BACKUP] * 2, StreamKind.PIPELINE), "options": any_of(None, {"slots": 4}),
        "why": why, "KEY": key, "GUARD": limit,
    },
    "end_stream": {
        "name": stream, "wanted": any_of(Wanted.DRAINED, Wanted.CANCELLED), "actor": person, "why": why,
        "timeout_seconds": any_of(30.0, 60.0), "versions": stale,
    },
    "change_stream": {
        "name": stream, "actor": person, "versions": stale,
        "options": any_of({"slots": 2, "batch_seconds": 1.5}, {"slots": None}, {}),
    },
    "take_streams": {"agent": person, "limit": integers(0, 2), "lease_seconds": seconds},
    "renew_streams": {"agent": person, "lease_seconds": seconds},
    "release_streams": {"agent": person, "name": any_of(None, "backup")},
    "report_stream": {
        "name": stream, "AGENT": any_of(None, None, None, *PEOPLE), "state": any_of(*StreamState, None, None),
        "instance_id": any_of(None, "in_1", "in_2"), "home": any_of(None, StreamHome("m", "/h")), "error": fault,
        "why": why,
    },
    "note_stream": {"name": stream, "actor": person, "what": any_of("noted"), "why": why, "of": any_of("s")},
    "insert_key": {
        "key": builds(
            lambda n, topics: ApiKey(f"key_{n}", f"rf_{n % 5}", "d" * 64, "ci", ("read",), topics, NOON, NOON),
            number, any_of(None, ("orders", "x")),
        ),
    },
    "find_key": {"prefix": any_of("rf_1", "rf_2", "rf_")},
    "revoke_key": {"key_id": any_of("key_1", "key_2", "key_none"), "NOW": any_of("at")},
    "touch_key": {"key_id": any_of("key_1", "key_2", "key_none"), "NOW": any_of("at")},
    "append_audit": {
        "actor": person, "action": any_of("backfills.run"), "target": any_of("bf_1", "bf_2"),
        "outcome": any_of("done", "refused"), "why": why,
    },
}  # fmt: skip

# What the states depend on comes oftener than the rest.
OFTEN = (
    "insert", "move", "move", "move", "change", "begin_attempt", "restart", "take_over", "claim",
    "set_verification", "mark_notified", "list_unnotified", "launch_stream", "end_stream", "report_stream",
    "report_stream", "take_streams", "change_stream", "run", "run", "run", "retry", "end", "create", "relaunch",
    "wait", "page", "page", "create_change", "decide",
)  # fmt: skip
# Steps of several calls, and time.
STEPS: dict[str, dict[str, Draw]] = {
    "run": {
        "kind": kind, "owner": person, "places": integers(1, 3), "seconds": seconds,
        "state": any_of(*JobState, JobState.RUNNING, JobState.RUNNING, JobState.FAILED),
    },
    "create": {"kind": kind, "actor": person},
    "turns": {"kind": kind, "owner": person, "actors": any_of("aab", "abc", "bca", "ccb")},
    "relaunch": {
        "agent": person, "error": fault, "ends": any_of([Wanted.DRAINED], [Wanted.CANCELLED, Wanted.DRAINED]),
    },
    "retry": {"kind": kind, "owner": person, "counts": any_of(False, True, True), "wait_seconds": seconds},
    "end": {
        "kind": kind, "approval": any_of(None, {"required": True, "by": None}), "has_begun": any_of(False, True),
        "calls": any_of((), (), (False, False, False, True, True)), "since_seconds": any_of(None, 20.0),
    },
    "page": {
        "kind": kind, "limit": integers(1, 4), "order": order,
        "since": any_of(None, "created_since", "ended_since"),
        "number": number, "later": any_of(False, True), "topic": any_of(*[None] * 6, "orders", "o' OR 1=1 --", ""),
        "kinds": any_of(KINDS[:1], KINDS[:1], KINDS[1:], KINDS, ()), "created_by": any_of(*[None] * 6, *PEOPLE),
        "subject": any_of(*[None] * 9, "stream/backup"),
        "id_prefix": any_of(*[""] * 8, KINDS[0][:2], KINDS[0][:2].upper(), "%"),
        "states": any_of(*[()] * 4, (JobState.PENDING, JobState.RUNNING), (JobState.FAILED,)),
        "labels": any_of(*[()] * 6, (("env", "test"),), (("team", "a"), ("env", "prod")), (("it's", "x"),)),
    },
    "decide": {
        "number": number, "state": any_of(*JobState), "actor": person, "why": why, "error": fault,
        "memory": any_of(None, {"decided_by": "b"}, {"result": {"stream": "backup"}}),
    },
    "wait": {"by": any_of(*[0.5] * 6, 5.0, 61.0, 700.0, 4000.0, 90_000.0, -3600.0, YEARS, -YEARS)},
}  # fmt: skip


class JobStoreMachine(RuleBasedStateMachine):
    """Makes each call to one of two replicas and to the model, and compares what they answer."""

    world: ClassVar[World]

    def __init__(self):
        super().__init__()
        self.model = self.world.empty()
        self.calls = 0

    def both(self, call):
        """Make the call to a replica and to the model, a moment after the last one."""
        self.calls += 1
        self.world.clock.now += timedelta(milliseconds=1)
        found = outcome(call, self.world.replicas[self.calls % 2])
        self.model.made_id = getattr(found, "id", "")
        assert found == outcome(call, self.model)
        return found

    def make(self, name, given):
        arguments = self._filled({**given})
        return self.both(lambda s: in_order(name, getattr(s, name)(**arguments)))

    def _filled(self, given):  # noqa: C901 - a line for each
        """Return the arguments, those in capitals made from what there is."""
        seen = None
        if "JOB" in given:
            jobs = {job_id: kept for job_id, kept in self.model.jobs.items() if kept.job.subject is None}
            seen = self._newest(jobs, given.pop("JOB"), lambda job_id: job_id[3:])
            given["job_id"] = "bf_none" if seen is None else seen.job.id
            seen = seen and seen.job
        elif "name" in given:
            seen = self.model.streams.get(given["name"])
            seen = seen and seen.record
        if "NEW" in given:
            given["job_id"] = f"{given['kind'][:2]}_{self.calls:04}"
        if (key := given.pop("KEY", None)) is not None:
            # Two requests come with one key, and two calls with each.
            attempt = given.get("NEW", given.get("ATTEMPT", 0))
            given["idempotency"] = Idempotency(key, f"digest {attempt // 8}", f"{attempt % 2}")
        if (most := given.pop("GUARD", None)) is not None:
            given["guard"] = at_most(most)
        for wanted, field in (("expected_version", "version"), ("expected_epoch", "epoch"), ("epoch", "epoch")):
            if given.get(wanted) is not None:
                given[wanted] = getattr(seen, field, 1) - given[wanted]
        if given.get("versions") is not None:
            given["versions"] = {getattr(seen, "version", 1) - given["versions"]}
        if "HOLDER" in given:
            given["owner"] = given.pop("HOLDER") or getattr(seen, "lease_owner", None) or "a"
        if "AGENT" in given:
            given["agent"] = given.pop("AGENT") or getattr(seen, "agent", None) or "a"
            given["state"] = given["state"] or StreamState(getattr(seen, "wanted", "RUNNING"))
        if "NEWS" in given:
            given["news_at"] = NOON if given.pop("NEWS") else getattr(seen, "news_at", None)
        if "NOW" in given:
            given["at"] = self.world.clock.now
        return {name: value for name, value in given.items() if not name.isupper()}

    def _newest(self, among, place, order):
        """Return one of the newest; seldom none."""
        names = sorted(among, key=order)[-4:]
        return among[names[place % len(names)]] if names and place < 9 else None

    def teardown(self):
        self.look()

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed):
        random = Random(seed)
        request, key = random.choice(REQUESTS), random.choice((None, "k"))
        approval, options = None, random.choice((None, {"rate": 2}))
        for actor, kind in zip("aabc", (*["backfill"] * 3, "merge"), strict=True):
            given = {"NEW": 1, "kind": kind, "actor": actor, "request": request, "approval": approval, "KEY": None}
            self.make("insert", given | {"options": options})
        self.make("launch_stream", {"name": "backup", "kind": StreamKind.BACKUP, "actor": "a", "KEY": key})

    @rule(seed=st.integers(0, 2**32))
    def walk(self, seed):
        """Make calls as a seed has them: hypothesis alone would draw few that meet each other."""
        random = Random(seed)
        made = []
        try:
            for _ in range(CALLS_A_WALK):
                name = random.choice(OFTEN if random.random() < 0.7 else [*CALLS])
                given = {each: draw(random) for each, draw in (STEPS.get(name) or CALLS[name]).items()}
                made.append(f"{name}({given})")
                if name in STEPS:
                    getattr(self, name)(**given)
                else:
                    self.make(name, given)
        except Exception as error:
            error.add_note("the last calls:\n" + "\n".join(made[-20:]))
            raise

    def wait(self, by):
        """Let time pass, or set the clock."""
        if 2010 < self.world.clock.now.year + by / 31_557_600 < 2100:
            self.world.clock.now += timedelta(seconds=by)

    def look(self):
        assert state_of(self.world.replicas[self.calls % 2]) == state_of(self.model)

    def run(self, kind, owner, places, state, seconds):
        """Take a job the way that supervisors do, and bring it to a state."""
        job = self.started(kind, owner, places, seconds)
        if job is not None:
            self.both(lambda s: s.move(job.id, state, actor="r", owner=owner, expected_epoch=job.epoch))

    def started(self, kind, owner, places, seconds):
        """Return a job that the owner has claimed and started; None where none is free."""
        limit = places + sum(self.model._busy(kind).values())
        found = self.both(lambda s: s.claim(kind, owner, limit=limit, lease_seconds=seconds))
        if not found:
            return None
        job = self.both(lambda s: s.begin_attempt(found[0].id, owner=owner))
        self.both(lambda s: s.move(job.id, JobState.RUNNING, actor="r", driver=DRIVER, owner=owner))
        return job

    def create(self, **given):
        """Take a key for two attempts of one create, which can let go of their own alone."""
        calls = (("begin_create", 0), ("abandon_create", 1), ("begin_create", 1), ("abandon_create", 0))
        for name, attempt in calls:
            of_kind = given if name == "begin_create" else {"actor": given["actor"]}
            self.make(name, {**of_kind, "KEY": "m", "ATTEMPT": attempt})

    def turns(self, kind, owner, actors):
        """Make jobs of several callers, and claim two of them and of those before, one, none and one."""
        for actor in actors:
            self.both(lambda s, actor=actor: s.insert(f"{kind[:2]}_{self.calls:04}", kind, {}, actor=actor))
        for places in (2, 1, 0, 1):
            limit = places + sum(self.model._busy(kind).values())
            self.both(lambda s, limit=limit: s.claim(kind, owner, limit=limit, lease_seconds=600.0))

    def relaunch(self, agent, error, ends):
        """End a stream that an agent has started, and launch it again."""
        name = "pipeline-c"
        for _ in range(2):
            self.both(lambda s: s.launch_stream(name, StreamKind.PIPELINE, actor="a"))
            self.both(lambda s: s.take_streams(agent, limit=9, lease_seconds=600.0))
            self.both(lambda s: s.report_stream(name, agent, StreamState.RUNNING, instance_id="in_1", error=error))
            self.both(lambda s: s.release_streams(agent, "backup"))
            for wanted in ends:
                self.both(lambda s, wanted=wanted: s.end_stream(name, wanted, actor="a"))
            self.both(lambda s: s.report_stream(name, agent, StreamState(ends[0]), error=error))

    def retry(self, kind, owner, counts, wait_seconds):
        """Restart a job whose driver died, end it before it is started, and let a person start it again."""
        job = self.started(kind, owner, 9, 600.0)
        if job is not None:
            given = {"epoch": job.epoch, "wait_seconds": wait_seconds, "counts": counts}
            self.both(lambda s: s.restart(job.id, owner, actor="r", why="died", **given))
            self.both(lambda s: s.claim(kind, owner, limit=9, lease_seconds=20.0))
            self.both(lambda s: s.move(job.id, JobState.FAILED, actor="r"))
            self.both(lambda s: s.move(job.id, JobState.PENDING, actor="a"))
            self.both(lambda s: s.claim(kind, owner, limit=9, lease_seconds=20.0))

    def end(self, kind, approval, has_begun, calls, since_seconds):
        """End a new job twice, and try to tell somebody of each end and to verify it."""
        job_id = self.both(
            lambda s: s.insert(f"{kind[:2]}_{self.calls:04}", kind, {"topic": "m"}, actor="a", approval=approval)
        ).id
        if has_begun:
            self.both(lambda s: s.begin_attempt(job_id))
        for state in (JobState.CANCELLED, JobState.PENDING, JobState.PAUSED, JobState.FAILED):
            job = self.both(lambda s, state=state: s.move(job_id, state, actor="a"))
            for was_told in calls:
                self.tell(job, since_seconds, was_told)
                self.wait(15.0)
            self.make("list_unverified", {"kind": kind, "limit": 99, "hold_seconds": -1.0})
            given = {"actor": "a", "epoch": job.epoch, "again_seconds": None}
            for number in range(2):
                verdict = {"state": "pending", "n": number}
                self.both(lambda s, verdict=verdict, given=given: s.set_verification(job_id, verdict, **given))

    def tell(self, job, since_seconds, was_told):
        """Tell somebody of a job's news, if that is due, or fail to."""
        since = None if since_seconds is None else self.world.clock.now - timedelta(seconds=since_seconds)
        due = self.both(lambda s: s.list_unnotified(job.kind, 9, since=since, hold_seconds=-1.0))
        if job.id in {each.id for each in due}:
            self.both(lambda s: s.mark_notified(job.id, NOON, news_at=job.news_at, was_told=was_told))

    def decide(self, number, **given):
        """Decide about one of the newest changes that wait, or did."""
        found = self._newest(self.model.asked, number, str)
        if found is not None:
            job_id = next(each for each, asked in self.model.asked.items() if asked is found)
            self.both(lambda s: s.move(job_id, **given, expected_state=JobState.PENDING))

    def page(self, *, kind, limit, order, since, number, later, **given):
        if given["labels"] == (("env", "test"),):
            self.make("change", {"JOB": number, "actor": "a", "what": "w", "options": {"labels": {"env": "test"}}})
            given |= {"topic": None, "states": ()}
        moments = sorted({kept.job.finished_at or kept.job.created_at for kept in self.model.jobs.values()})
        moment = moments[number % len(moments)] + timedelta(microseconds=later)
        where = JobFilter(**given, **({} if since is None else {since: moment}))
        after, found = None, [None] * limit
        while len(found) == limit:
            found = self.both(lambda s, after=after: s.list_jobs(where, limit=limit, order=order, after=after))
            after = found and sort_key(found[-1], order)
            # What is made between two pages takes nobody from the second one, and brings nobody twice.
            if number == 0:
                number = 1
                self.both(lambda s: s.insert(f"{kind[:2]}_{self.calls:04}", kind, {"topic": "m"}, actor="b"))


def in_order(name, found):
    """Return a list in an order of its own where that of the call does not count."""
    return sorted(found, key=lambda job: job.id) if name == "list_unverified" else found


def test_any_calls_in_any_order_do_what_they_do_to_a_dict(world, monkeypatch):
    monkeypatch.setattr(JobStoreMachine, "world", world, raising=False)
    chosen = settings(
        max_examples=EXAMPLES or (12 if world.replicas[0].is_shared else 24),
        stateful_step_count=3,
        derandomize=not EXAMPLES,
        phases=[Phase.generate, *([Phase.shrink] if EXAMPLES else [])],
        report_multiple_bugs=False,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(JobStoreMachine, settings=chosen)


CALLERS = 4
NEXT = Idempotency("key", "digest")
RACES: dict[str, Callable[[Any, int], Any]] = {
    "move": lambda s, n: s.move("bf_0", JobState.CANCELLED, actor=f"x{n}"),
    "move from a version": lambda s, n: s.move("bf_1", JobState.PAUSED, actor=f"x{n}", expected_version=1),
    "take a place": lambda s, n: s.move(f"bf_{n}", JobState.RUNNING, actor="x", max_running=2),
    "insert alone": lambda s, n: s.insert(f"mg_{n}", "merge", {}, actor="ann", guard=at_most(1)),
    "insert": lambda s, n: s.insert(f"mg_{n}", "merge", {}, actor="ann"),
    "insert with a key": lambda s, n: s.insert(f"mg_{n}", "merge", {}, actor="ann", idempotency=NEXT),
    "begin a create": lambda s, n: s.begin_create("merge", Idempotency("k", "d", str(n)), actor="ann"),
    "claim": lambda s, n: s.claim("backfill", f"{n}", limit=n + 2, lease_seconds=60),
    "begin an attempt": lambda s, n: s.begin_attempt("bf_2"),
    "change": lambda s, n: s.change("bf_3", actor="ann", what="w", options={f"o{n}": n}),
    "decide": lambda s, n: s.move(
        s.list_active("change")[0].id,
        JobState.RUNNING,
        actor=f"x{n}",
        expected_state=JobState.PENDING,
        memory={"n": n},
    ),
    "launch": lambda s, n: s.launch_stream("pipeline-b", StreamKind.PIPELINE, actor=f"x{n}"),
    "launch alone": lambda s, n: s.launch_stream(f"p-{n}", StreamKind.PIPELINE, actor="x", guard=at_most(2)),
    "change a stream and report it": lambda s, n: (
        s.change_stream("backup", actor="ann", options={f"slots_{n}": n})
        if n % 2
        else s.report_stream("backup", "a", StreamState.RUNNING, instance_id=f"in_{n}")
    ),
    "revoke": lambda s, n: s.revoke_key("key_1", NOON + timedelta(seconds=n)),
}


@pytest.mark.parametrize("race", RACES)
def test_calls_that_come_at_once_do_what_they_do_one_after_the_other(world, race):
    model = world.empty()
    asked = ChangeRequest("stream", "backup", "drain", {}, "Drain.", 1, STREAMS_OPERATE, ANN)
    key = ApiKey("key_1", "rf_1", "d" * 64, "ci", ("backfills.read",), None, NOON)
    for call in (
        *(lambda s, n=n: s.insert(f"bf_{n}", "backfill", {}, actor=f"{n % 3}") for n in range(6)),
        lambda s: s.create_change(asked),
        lambda s: s.launch_stream("backup", StreamKind.BACKUP, actor="ann"),
        lambda s: s.take_streams("a", limit=1, lease_seconds=60),
        lambda s: s.insert_key(key),
    ):
        model.made_id = getattr(call(world.replicas[0]), "id", "")
        call(model)
    start = Barrier(CALLERS)

    def call_at_once(number):
        start.wait(20)
        return outcome(lambda s: RACES[race](s, number), world.replicas[number % 2])

    with ThreadPoolExecutor(CALLERS) as pool:
        found = list(pool.map(call_at_once, range(CALLERS)))
    state = state_of(world.replicas[0])
    for order in permutations(range(CALLERS)):
        one = model.copy()
        answers = {number: outcome(lambda s, number=number: RACES[race](s, number), one) for number in order}
        if [answers[number] for number in range(CALLERS)] == found and state_of(one) == state:
            return
    pytest.fail(f"in no order is this what comes of it: {found}")
