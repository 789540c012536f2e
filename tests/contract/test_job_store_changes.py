"""Changes that wait for a second person, as jobs in every job store, and approvals of an earlier Refeed."""

from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from jobs.store import CHANGE, JobFilter, change_of, open_store
from model.change import ChangeRequest
from model.errors import JobStateError, StreamChangedError
from model.fault import FaultRecord
from model.job import JobState, new_job_id
from model.principal import STREAMS_OPERATE, Principal
from model.stream_record import Wanted
from rollout.changes import ChangeService
from rollout.service import StreamService
from rollout.snapshots import SnapshotService
from rollout.stream_changes import stream_acts
from rollout.updates import UpdateService
from tests.worlds.migrations import AT, insert, insert_stream, migrate_to

ANN = Principal("key:ann", frozenset({STREAMS_OPERATE}), ("orders",))
BOB = Principal("key:bob", frozenset({STREAMS_OPERATE}))
ASKED = ChangeRequest(
    "stream", "backup", "drain", {"timeout_seconds": 7.0}, "Drain.", 1, STREAMS_OPERATE, requester=ANN
)
LATE = FaultRecord("approval_late", "Nobody decided in time.")
# What an earlier Refeed had waiting, and what had become of others.
WAITING = ("drain", "cancel", "rollback", "update")
IDS = {
    name: new_job_id("ap")
    for name in (*WAITING, "approved", "rejected", "changed", "late", "forgotten", "manifest")
}


def test_a_waiting_change_keeps_its_request_and_its_requester(store):
    made = change_of(store.create_change(ASKED))
    assert (made.request, made.state, made.decided_by, made.decided_at) == (ASKED, JobState.PENDING, None, None)
    assert made.expires_at == made.created_at + timedelta(days=1)
    assert store.get(made.id).subject == "stream/backup"
    assert [event.what for event in store.list_events(made.id)] == ["created"]


def test_the_same_request_of_the_same_caller_is_one_change_while_it_waits(store):
    made = store.create_change(ASKED)
    more = replace(ANN, scopes=frozenset({STREAMS_OPERATE, "backfills.read"}))
    assert store.create_change(replace(ASKED, requester=more)) == made
    others = [
        replace(ASKED, requester=BOB),
        replace(ASKED, version=2),
        replace(ASKED, verb="cancel"),
        replace(ASKED, name="other"),
        replace(ASKED, body={"timeout_seconds": 8.0}),
    ]
    assert len({made.id, *(store.create_change(other).id for other in others)}) == 6
    store.move(made.id, JobState.CANCELLED, actor="key:bob")
    again = store.create_change(ASKED)
    assert again.id != made.id
    later = again.created_at + timedelta(days=1)
    store._database.now = lambda _: later  # type: ignore[method-assign]
    assert store.create_change(ASKED).id != again.id, "nobody can approve the one of before any more"


def test_no_loop_takes_a_change_for_a_job_with_a_driver_or_forgets_it(store):
    waits, failed = store.create_change(ASKED), store.create_change(replace(ASKED, verb="cancel"))
    store.move(failed.id, JobState.FAILED, actor="refeed", error=LATE)
    for kind in ("backfill", "merge", "compaction"):
        assert store.claim(kind, "a", limit=9, lease_seconds=60) == []
        assert store.take_over(kind, "a", lease_seconds=60) == []
        assert store.list_unnotified(kind, 9) == store.list_unverified(kind, 9) == []
        assert store.forget_jobs(kind, keep=0, keep_for=timedelta(0)) == 0
    assert store.list_step_jobs(("update", "restore", "snapshot", "deletion")) == []
    assert (store.count_jobs(), store.find_last_failures(), store.list_active()) == ([], {}, [])
    everything = store.list_jobs(JobFilter(kinds=(CHANGE,)), limit=9)
    assert [job.id for job in everything] == [failed.id, waits.id]
    assert [job.id for job in store.list_active(CHANGE)] == [waits.id]


def insert_approval(connection, key, state, **given):
    asked = {"kind": "stream", "name": "s-drain", "action": "drain", "request": {"timeout_seconds": 7.0}}
    asked |= {"what": "Drain.", "version": 1, "scope": STREAMS_OPERATE, "requested_by": "key:ann"}
    asked |= {"scopes": [STREAMS_OPERATE], "topics": ["orders"], "requested_at": AT, "expires_at": AT}
    insert(connection, "approvals", id=IDS[key], state=state, **asked | given)


@pytest.fixture
def earlier(empty):
    """A store of an earlier Refeed, with a held action of every kind."""
    engine = migrate_to(empty, "0032")
    now = datetime.now(UTC)
    waits = {"requested_at": now.isoformat(), "expires_at": (now + timedelta(days=1)).isoformat(), "version": 3}
    update = {"release": None, "options": {"slots": 3}, "mapping": {}, "validate_seconds": 1.0, "min_messages": 0}
    bodies = {
        "drain": {"timeout_seconds": 7.0},
        "cancel": {},
        "rollback": {"snapshot": "sn_1", "discard_staged": False},
        "update": update | {"reason": None},
    }
    with engine.begin() as connection:
        for action in WAITING:
            insert_stream(connection, f"s-{action}")
            given = {"name": f"s-{action}", "action": action, "request": bodies[action], **waits}
            insert_approval(connection, action, "WAITING", **given)
        snapshot = {"stream": "s-rollback", "kind": "backup", "with_source": False, "reason": "manual"}
        snapshot |= {"state": "COMPLETED", "sources": [], "created_by": "key:ann", "created_at": AT}
        snapshot |= {"format_version": 1, "taken_at": AT, "place": {"host": "here", "location": "/sn_1"}}
        insert(connection, "stream_snapshots", id="sn_1", **snapshot)
        decided = {"decided_by": "key:bob", "decided_at": AT}
        insert_approval(connection, "approved", "APPROVED", outcome={"stream": "s-drain"}, **decided)
        insert_approval(connection, "rejected", "REJECTED", reason="Not on a Friday.", topics=None, **decided)
        error = {"code": "stream_changed", "message": "It has changed."}
        insert_approval(connection, "changed", "EXPIRED", error=error)
        insert_approval(connection, "late", "WAITING")
        insert_approval(connection, "forgotten", "WAITING")
        insert_approval(connection, "manifest", "EXPIRED", kind="manifest", name="nightly", action="remove")
    engine.dispose()
    with closing(open_store(empty)) as store:
        yield store


def test_approvals_of_an_earlier_refeed_are_changes_with_their_ids(earlier):
    jobs = {job.id: job for job in earlier.list_jobs(JobFilter(kinds=(CHANGE,)), limit=99)}
    assert set(jobs) == set(IDS.values())
    found = {name: change_of(jobs[job_id]) for name, job_id in IDS.items()}
    moment = datetime.fromisoformat(AT)
    waits = found["drain"]
    assert (waits.request, waits.state) == (replace(ASKED, name="s-drain", version=3), JobState.PENDING)
    assert (waits.decided_by, waits.decided_at, waits.finished_at) == (None, None, None)
    approved, rejected, changed = found["approved"], found["rejected"], found["changed"]
    assert (approved.state, approved.result) == (JobState.SUCCEEDED, {"stream": "s-drain"})
    assert (approved.decided_by, approved.decided_at, approved.finished_at) == ("key:bob", moment, moment)
    assert (rejected.state, rejected.reason) == (JobState.CANCELLED, "Not on a Friday.")
    assert (rejected.decided_by, rejected.decided_at) == ("key:bob", moment)
    assert (rejected.request.requester.topics, approved.request.requester.topics) == (None, ("orders",))
    assert (changed.state, str(changed.error)) == (JobState.FAILED, "stream_changed: It has changed.")
    assert (changed.decided_by, changed.finished_at) == (None, moment)
    assert (found["manifest"].request.resource, found["manifest"].state) == ("manifest", JobState.FAILED)
    told = [(event.actor, event.what, event.why) for event in earlier.list_events(rejected.id)]
    assert told == [("key:ann", "created", None), ("key:bob", "PENDING -> CANCELLED", "Not on a Friday.")]


def test_what_waited_in_an_earlier_refeed_is_decided_in_this_one(earlier):
    acts = stream_acts(StreamService(earlier), SnapshotService(earlier), UpdateService(earlier))
    changes = ChangeService(earlier, acts)
    with pytest.raises(JobStateError, match="is FAILED"):
        changes.approve(IDS["late"], principal=BOB)
    assert earlier.get(IDS["forgotten"]).state is JobState.PENDING
    changes.expire()
    for name in ("late", "forgotten"):
        late = earlier.get(IDS[name])
        assert (late.state, late.error) == (JobState.FAILED, LATE)
    assert changes.approve(IDS["drain"], principal=BOB).result == {"stream": "s-drain"}
    assert earlier.get_stream("s-drain").wanted is Wanted.DRAINED
    earlier.change_stream("s-cancel", actor="eve", options={"batch_seconds": 2.0})
    with pytest.raises(StreamChangedError):
        changes.approve(IDS["cancel"], principal=BOB)
    assert earlier.get(IDS["cancel"]).state is JobState.FAILED
    updated = changes.approve(IDS["update"], principal=BOB).result
    assert earlier.get_update(updated["update"]).created_by == "key:ann"
    went_back = changes.approve(IDS["rollback"], principal=BOB).result
    assert [each.id for each in earlier.list_restores("s-rollback")] == [went_back["rollback"]]
    assert changes.list_inbox(principal=BOB) == []
