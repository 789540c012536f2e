"""What streams, snapshots, updates and rollouts of an earlier Refeed go on as."""

import json
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from jobs.store import DELETION, RESTORE, SNAPSHOT, Idempotency, open_store
from model.errors import StreamStateError, UpdateInProgressError
from model.fault import FaultRecord
from model.job import JobState
from model.rollout_record import RolloutSide
from model.stream_snapshot import SnapshotPlace, SnapshotState
from model.stream_update import UpdateFault, UpdateReplay, UpdateRequest, UpdateState
from rollout.manifests.schedule import ScheduleManifest, read_schedule
from tests.worlds.migrations import AT, insert, insert_stream, migrate_to
from tests.worlds.snapshot_jobs import complete_snapshot
from tests.worlds.update_jobs import advance_update

pytestmark = pytest.mark.usefixtures("migrations")

RESTORES = (
    ("rs_1", "RUNNING", "waiting", None),
    ("rs_2", "RUNNING", "restored", None),
    ("rs_3", "RUNNING", "sought", None),
    ("rs_4", "SUCCEEDED", "sought", None),
    ("rs_5", "FAILED", "waiting", {"code": "snapshot_expired", "message": "It expired."}),
)


def test_streams_that_were_put_back_and_snapshots_that_were_deleted_go_on_as_jobs(empty: str) -> None:
    engine = migrate_to(empty, "0023")
    at = "2026-01-02T03:04:05+00:00"
    people = {"created_by": "ann", "created_at": at}
    with engine.begin() as connection:

        def insert(table: str, **values: Any) -> None:
            names = ", ".join(values)
            query = f"INSERT INTO {table} ({names}) VALUES ({', '.join(f':{name}' for name in values)})"
            connection.execute(sa.text(query), values)

        for name, *_ in RESTORES:
            stream = {"kind": "backup", "generation": 2, "options": "{}", "wanted": "RUNNING", "version": 3}
            times = {"drain_timeout_seconds": 60.0, "state": "RUNNING", "changed_at": at}
            insert("managed_streams", name=f"stream-{name}", **stream, **times, **people)
        made = {"kind": "backup", "with_source": True, "reason": "manual", "sources": "[]"}
        for snapshot, state, place in (
            ("sn_1", "DELETING", json.dumps({"host": "here", "location": "/snapshots/sn_1"})),
            ("sn_2", "DELETING", None),
            ("sn_3", "COMPLETED", None),
            ("sn_4", "PENDING", None),
            ("sn_5", "PENDING", json.dumps({"host": "here", "location": "/snapshots/sn_5"})),
            ("sn_6", "FAILED", json.dumps({"host": "here", "location": "/snapshots/sn_6"})),
            ("sn_7", "FAILED", None),
        ):
            insert(
                "stream_snapshots", id=snapshot, stream="stream-rs_1", state=state, place=place, **made, **people
            )
        for name, state, step, error in RESTORES:
            facts = {
                "generation": 2,
                "snapshot_id": "sn_3",
                "not_reverted": '["A table."]',
                "discard_staged": True,
            }
            ended = {"finished_at": None if state == "RUNNING" else at, "error": error and json.dumps(error)}
            key = {"idempotency_key": "ann\nkey" if name == "rs_4" else None, "fingerprint": "digest"}
            where = {"id": name, "stream": f"stream-{name}", "state": state, "step": step}
            insert("stream_restores", **where, **facts, **ended, **key, **people)
    engine.dispose()
    with closing(open_store(empty)) as store:
        for name, state, step, error in RESTORES:
            (found,) = store.list_restores(f"stream-{name}")
            assert (found.id, found.state, found.step) == (name, state, step)
            assert (found.snapshot_id, found.discard_staged) == ("sn_3", True)
            assert (found.created_by, found.not_reverted) == ("ann", ("A table.",))
            assert found.error == (None if error is None else FaultRecord(**error))
            assert (found.finished_at is None) == (state == "RUNNING")
        restores = store.list_step_jobs([RESTORE])
        assert [(job.id, job.step) for job in restores] == [
            ("rs_1", "stop"),
            ("rs_2", "put_back"),
            ("rs_3", "put_back"),
        ]
        assert all(store.note_step(job, {"seen": True}).memory["seen"] for job in restores)
        deletions = {job.request["snapshot_id"]: job for job in store.list_step_jobs([DELETION])}
        assert deletions.keys() == {"sn_1", "sn_2", "sn_6"}
        assert deletions["sn_1"].request["place"] == {"host": "here", "location": "/snapshots/sn_1"}
        assert deletions["sn_2"].request["place"] is None
        with pytest.raises(StreamStateError):
            store.delete_snapshot("sn_3")
        makings = {job.request["snapshot_id"]: job for job in store.list_step_jobs([SNAPSHOT])}
        assert makings.keys() == {"sn_4", "sn_5"}
        assert makings["sn_5"].memory["place"]["location"] == "/snapshots/sn_5"
        assert complete_snapshot(store, "sn_4").state is SnapshotState.COMPLETED
        assert store.delete_snapshot("sn_5").place == SnapshotPlace("here", "/snapshots/sn_5")
        again = Idempotency("key", "digest")
        assert store.create_restore("stream-rs_4", "sn_3", actor="ann", idempotency=again).id == "rs_4"


# What a rollout was at, and what it is at without the query that is no step any more.
ROLLOUTS = (
    ("restart", "VALIDATING", UpdateState.WATCHING),
    ("update", "VALIDATING", UpdateState.WATCHING),
    ("rolling", "ROLLING_BACK", UpdateState.WATCHING),
    ("restart", "ROLLING_BACK", UpdateState.STOPPING_BACK),
    ("update", "STABLE", UpdateState.STABLE),
)


def insert_update(connection: sa.Connection, name: str, state: str, **given: Any) -> None:
    """Keep an update of the stream ``name`` as it was before updates were jobs."""
    request = {"release": "9", "options": {}, "mapping": {}, "validate_seconds": 60.0}
    facts = {"from_options": {}, "attempts": 0, "generation": 2, "created_by": "ann", "created_at": AT}
    facts |= {"changed_at": AT, "request": request, "state": state}
    insert(connection, "stream_updates", id=f"up_{name}", stream=name, **facts | given)


def insert_rollout(connection: sa.Connection, name: str, strategy: str, state: str, **given: Any) -> None:
    """Keep a rollout of the stream ``name`` that has a query."""
    validate = {"seconds": 60.0, "query": "SELECT 1", "max_bytes_billed": 10**9}
    document = {"kind": "Rollout", "name": name, "stream": name, "from": {}, "to": {"release": "9"}}
    document |= {"strategy": strategy, "validate": validate}
    manifest = {"kind": "Rollout", "digest": "d", "source": "api", "version": 1, "document": document}
    manifest |= {"scopes": [], "settled_until": AT, "changed_at": AT, "applied_by": "ann", "created_at": AT}
    insert(connection, "manifests", name=name, **manifest)
    side = {"release": None, "options": {}}
    steps = [{"state": each, "at": AT, "why": None} for each in ("PENDING", "VALIDATING", state)]
    facts = {"manifest": name, "digest": "d", "document": document, "stream": name, "strategy": strategy}
    facts |= {"from_side": side, "to_side": side, "version": 4, "steps": steps, "is_trusted": False}
    facts |= {"state": state, "changed_at": AT, "created_by": "ann", "created_at": AT}
    insert(connection, "rollouts", id=f"ro_{name}", **facts | given)


@pytest.mark.parametrize("query", ["SELECT 1", None])
def test_a_schedule_whose_rollouts_had_a_query_waits_for_a_person(empty: str, query: str | None) -> None:
    engine = migrate_to(empty, "0024")
    validate = {"seconds": 60.0} | ({} if query is None else {"query": query, "max_bytes_billed": 10**9})
    request = {"stream": "backup", "to": {"release": "9"}, "validate": validate}
    job = {"kind": "rollout", "request": request}
    document = {"kind": "Schedule", "name": "nightly", "cron": "0 3 * * *", "job": job}
    facts = {"kind": "Schedule", "digest": "d", "source": "api", "version": 1, "document": document}
    with engine.begin() as connection:
        facts |= {"scopes": [], "settled_until": AT, "changed_at": AT, "applied_by": "ann", "created_at": AT}
        insert(connection, "manifests", name="nightly", **facts)
    engine.dispose()
    with closing(open_store(empty)) as store:
        found = store.get_manifest("nightly")
        assert isinstance(read_schedule(found.document), ScheduleManifest)
        assert ("resume the schedule" in (found.paused or "")) == (query is not None)
        if query is not None:
            assert store.pause_schedule("nightly", None).paused is None


def test_rollouts_go_on_without_their_query(empty: str) -> None:
    engine = migrate_to(empty, "0024")
    with engine.begin() as connection:
        for number, (strategy, state, _) in enumerate(ROLLOUTS):
            name = f"stream-{number}"
            insert_stream(connection, name, "DRAINED" if state == "ROLLING_BACK" else "RUNNING")
            error = {"code": "rollout_failed", "message": "1 row."} if state == "ROLLING_BACK" else None
            update = None if strategy == "restart" else f"up_{name}"
            if update is not None:
                ended = {"state": "STABLE", "finished_at": AT} if state == "STABLE" else {"state": "WATCHING"}
                insert_update(connection, name, **ended)
            insert_rollout(connection, name, strategy, state, error=error, update_id=update)
    engine.dispose()
    with closing(open_store(empty)) as store:
        found = sorted(store.list_updates(), key=lambda each: each.id)
        assert [each.state for each in found] == [state for *_, state in ROLLOUTS]
        assert all(each.request.validate_seconds == 60.0 for each in found)


@pytest.mark.parametrize(
    ("rollout", "is_trusted", "means"),
    [
        (None, False, "keep"),
        ("UPDATING", False, "fail"),
        # These lead back to what was STABLE before, and have nothing to prove.
        ("UPDATING", True, "keep"),
        ("ROLLING_BACK", False, "keep"),
    ],
)
def test_an_update_that_waited_for_a_person_is_judged_again(empty, rollout, is_trusted, means):
    engine = migrate_to(empty, "0024")
    at = "2026-01-02T03:04:05+00:00"
    request = {"release": "9", "options": {}, "mapping": {}, "validate_seconds": 60.0}
    error = {"code": "update_inconclusive", "message": "3 messages came.", "logs": {}}
    with engine.begin() as connection:
        insert_stream(connection, "backup")
        facts = {"from_options": {}, "attempts": 0, "generation": 2, "created_by": "ann", "created_at": at}
        facts |= {"changed_at": at, "request": request, "error": error, "state": "INCONCLUSIVE"}
        insert(connection, "stream_updates", id="up_1", stream="backup", **facts)
        if rollout is not None:
            insert_rollout(connection, "backup", "update", rollout, update_id="up_1", is_trusted=is_trusted)
    engine.dispose()
    with closing(open_store(empty)) as store:
        found = store.get_update("up_1" if rollout is None else "ro_backup")
        assert (found.state, found.error) == (UpdateState.WATCHING, None)
        assert found.request.when_inconclusive == means
        assert advance_update(store, found, UpdateState.STABLE).finished_at is not None


# The former state of an update, and the step and the state of its job.
UPDATES = (
    ("CHECKING", "check", JobState.RUNNING),
    ("SHADOWING", "shadow", JobState.RUNNING),
    ("SNAPSHOTTING", "snapshot", JobState.RUNNING),
    ("STARTING", "stand_by", JobState.RUNNING),
    ("HANDING_OVER", "hand_over", JobState.RUNNING),
    ("WATCHING", "watch", JobState.RUNNING),
    ("ROLLING_BACK", "back_stand_by", JobState.RUNNING),
    ("HANDING_BACK", "hand_back", JobState.RUNNING),
    ("STABLE", "watch", JobState.SUCCEEDED),
    ("REFUSED", "check", JobState.FAILED),
    ("ROLLED_BACK", None, JobState.FAILED),
    ("FAILED", None, JobState.FAILED),
)


def test_updates_are_jobs_with_all_that_was_known_of_them(empty: str) -> None:
    engine = migrate_to(empty, "0025")
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    request = {"release": "9", "options": {"slots": 4}, "mapping": {}, "validate_seconds": 60.0}
    error = {"code": "stream_died", "message": "It ended.", "logs": {"new": "the end"}}
    facts = {"from_release": "8", "from_options": {"slots": 2}, "generation": 3, "created_by": "ann"}
    facts |= {"snapshot_id": "sn_1", "instance_id": "in_2", "outgoing_id": "in_1", "attempts": 2}
    facts |= {"figures": {"before": {"rate": 1.0}}, "checked": {"has_way_back": True}, "paused_seconds": 0.5}
    facts |= {name: at.isoformat() for name in ("created_at", "changed_at", "handed_over_at")}
    with engine.begin() as connection:
        for state, _, job_state in UPDATES:
            insert_stream(connection, f"stream-{state}")
            ended = {"finished_at": at.isoformat() if job_state.is_final else None}
            ended |= {"error": error if state in {"FAILED", "ROLLING_BACK"} else None}
            ended |= (
                {"replay": {"since": None, "until": at.isoformat(), "topics": ["orders"]}}
                if ended["error"]
                else {}
            )
            key = {"idempotency_key": "ann\nkey", "fingerprint": "digest"} if state == "STABLE" else {}
            where = {"id": f"up_{state}", "stream": f"stream-{state}", "state": state, "request": request}
            insert(connection, "stream_updates", **where, **facts, **ended, **key)
    engine.dispose()
    with closing(open_store(empty)) as store:
        for state, step, job_state in UPDATES:
            (found,) = store.list_updates(f"stream-{state}")
            job = store.get(found.id)
            assert (found.state, job.step, job.state) == (state, step, job_state)
            assert (found.request.release, found.from_release, found.generation) == ("9", "8", 3)
            assert (found.snapshot_id, found.instance_id, found.outgoing_id) == ("sn_1", "in_2", "in_1")
            assert (found.attempts, found.has_way_back, found.paused_seconds) == (2, True, 0.5)
            assert (found.changed_at, found.handed_over_at, found.created_at) == (at, at, at)
            assert (found.finished_at is None) == (not job_state.is_final)
            if state in {"FAILED", "ROLLING_BACK"}:
                assert found.error == UpdateFault(**error)
                assert found.replay == UpdateReplay(None, at, ("orders",))
        living = {each.state for each in store.list_updates(living=True)}
        assert living == {state for state, _, job_state in UPDATES if not job_state.is_final}
        with pytest.raises(UpdateInProgressError):
            store.change_stream("stream-WATCHING", actor="ann", options={"batch_seconds": 1.0})
        again = Idempotency("key", "digest")
        asked = UpdateRequest("9", {}, {})
        assert store.create_update("stream-STABLE", asked, actor="ann", idempotency=again).id == "up_STABLE"
        assert store.take_update_back("up_STARTING", UpdateFault("a", "b"), actor="ann").finished_at is not None


SIDES = {"from_side": {"release": "1.2", "options": {"slots": 2, "mapping": {"a": "b"}}}}
SIDES["to_side"] = {"release": "1.3", "options": {"slots": 4}}
THROUGH = ("DRAINING", "STARTING", "WATCHING", "ROLLING_BACK", "STARTING_BACK")
# The former state of a restart, what its stream was to be and was, and the step of its job.
RESTARTS = (
    ("PENDING", "RUNNING", "RUNNING", "check"),
    ("DRAINING", "DRAINED", "DRAINING", "stop"),
    ("DRAINING", "DRAINED", "DRAINED", "stop"),
    ("STARTING", "RUNNING", "STARTING", "start"),
    ("WATCHING", "RUNNING", "RUNNING", "watch"),
    ("ROLLING_BACK", "DRAINED", "DRAINING", "back_stop"),
    ("STARTING_BACK", "RUNNING", "STARTING", "back_start"),
    ("STABLE", "RUNNING", "RUNNING", None),
    ("REFUSED", "RUNNING", "RUNNING", None),
    ("CANCELLED", "RUNNING", "RUNNING", None),
    ("ROLLED_BACK", "RUNNING", "RUNNING", None),
    ("HALTED", "RUNNING", "RUNNING", None),
    ("FAILED", "CANCELLED", "CANCELLED", None),
)
FAULT = {"code": "rollout_failed", "message": "Slow."}


def insert_restart(connection: sa.Connection, name: str, state: str, **given: Any) -> None:
    """Keep a rollout by a restart as it was before rollouts were updates."""
    passed = THROUGH[: THROUGH.index(state)] if state in THROUGH else ()
    if state in {"STABLE", "HALTED"}:
        passed = THROUGH[:3]
    if state == "ROLLED_BACK":
        passed = THROUGH
    steps = [{"state": each, "at": AT, "why": None} for each in ("PENDING", *passed)]
    if state != "PENDING":
        steps.append({"state": state, "at": AT, "why": "So it is."})
    is_ended = state not in {"PENDING", *THROUGH}
    is_failed = state in {"ROLLING_BACK", "STARTING_BACK", "REFUSED", "ROLLED_BACK", "HALTED", "FAILED"}
    figures = {"before": {"messages": 1.0}, "instance_id": "in_2"} if passed else None
    facts = {"error": FAULT if is_failed else None, "finished_at": AT if is_ended else None, "generation": 2}
    facts |= {"steps": steps, "compared": figures, **SIDES}
    insert_rollout(connection, name, "restart", state, **facts | given)
    if state == "HALTED":
        halting = sa.text("UPDATE rollouts SET document = :document WHERE id = :id")
        document = {"strategy": "restart", "on_failure": "halt", "validate": {"seconds": 60.0}}
        connection.execute(halting, {"document": json.dumps(document), "id": f"ro_{name}"})


def test_rollouts_by_a_restart_are_updates_at_the_same_step(empty: str) -> None:
    engine = migrate_to(empty, "0026")
    with engine.begin() as connection:
        for number, (state, wanted, is_now, _) in enumerate(RESTARTS):
            insert_stream(connection, f"s-{number}", wanted, is_now)
            insert_restart(connection, f"s-{number}", state, reverses="ro_0" if state == "PENDING" else None)
    engine.dispose()

    with closing(open_store(empty)) as store:
        for number, (state, wanted, is_now, step) in enumerate(RESTARTS):
            (found,) = store.list_updates(f"s-{number}")
            job = store.get(found.id)
            assert (found.id, job.subject) == (f"ro_s-{number}", f"stream/s-{number}")
            assert (found.manifest.name, found.reverses) == (f"s-{number}", "ro_0" if state == "PENDING" else None)
            before = RolloutSide(found.from_release, found.from_options)
            after = RolloutSide(found.request.release, found.to_options)
            assert (before, after) == tuple(RolloutSide(**side) for side in SIDES.values())
            assert found.request.validate_seconds == 60.0
            record = store.get_stream(f"s-{number}")
            if step is None:
                assert found.state == {"CANCELLED": "ROLLED_BACK", "HALTED": "FAILED"}.get(state, state)
                assert found.finished_at is not None
                assert (record.wanted, record.state) == (wanted, is_now)
                assert (found.error is None) == (state in {"STABLE", "CANCELLED"})
            else:
                assert (job.step, job.state.is_final, record.wanted) == (step, False, "RUNNING")
                assert record.is_living, "its agent takes it and goes on with it"
                assert (found.error is None) == (state not in {"ROLLING_BACK", "STARTING_BACK"})
        (watched,) = store.list_updates("s-4")
        assert (watched.instance_id, watched.figures["before"]) == ("in_2", {"messages": 1.0})
        assert store.get_update("ro_s-5").error.code == "update_failed"
        steps = [each.fields["step"] for each in store.list_events("ro_s-10") if "step" in each.fields]
        assert steps == ["stop", "start", "watch", "back_stop", "back_start"]
        assert {each.stream for each in store.list_updates(living=True)} == {f"s-{n}" for n in range(7)}
        with pytest.raises(UpdateInProgressError):
            store.change_stream("s-4", actor="ann", options={"batch_seconds": 1.0})
        store.take_update_back("ro_s-3", UpdateFault("update_unwanted", "b"), actor="ann")
        assert store.get_update("ro_s-3").state is UpdateState.STOPPING_BACK


@pytest.mark.parametrize(
    ("state", "wanted", "changes"),
    [
        ("DRAINING", "RUNNING", {}),
        ("DRAINING", "CANCELLED", {}),
        ("DRAINING", "DRAINED", {"drained_by": "bob"}),
        ("STARTING", "DRAINED", {}),
        ("WATCHING", "RUNNING", {"generation": 1}),
    ],
)
def test_a_rollout_whose_stream_somebody_ended_or_launched_is_over(empty, state, wanted, changes):
    engine = migrate_to(empty, "0026")
    with engine.begin() as connection:
        insert_stream(connection, "backup", wanted)
        for actor in ("rollout:backup", *filter(None, [changes.get("drained_by")])):
            line = {"at": AT, "actor": actor, "what": "wanted DRAINED", "type": "wanted", "fields": {}}
            insert(connection, "stream_events", stream="backup", generation=2, **line)
        insert_restart(connection, "backup", state, generation=changes.get("generation", 2))
    engine.dispose()

    with closing(open_store(empty)) as store:
        found = store.get_update("ro_backup")
        assert (found.state, found.error.code) == (UpdateState.FAILED, "update_abandoned")
        assert store.get_stream("backup").wanted == wanted


@pytest.mark.parametrize(
    ("state", "step", "then"),
    [
        ("DRAINING", "stop", UpdateState.STOPPING),
        ("STARTING", "back_stop", UpdateState.STOPPING_BACK),
        ("WATCHING", "back_stop", UpdateState.STOPPING_BACK),
        ("ROLLED_BACK", None, UpdateState.ROLLED_BACK),
    ],
)
def test_a_restart_that_was_cancelled_goes_back(empty, state, step, then):
    engine = migrate_to(empty, "0026")
    with engine.begin() as connection:
        insert_stream(connection, "backup", "DRAINED" if state == "DRAINING" else "RUNNING")
        insert_restart(connection, "backup", state, unwanted_by="bob")
    engine.dispose()

    with closing(open_store(empty)) as store:
        found = store.get_update("ro_backup")
        assert (found.state, found.unwanted_by) == (then, "bob")
        assert (found.error.code, found.error.message) == ("update_unwanted", "bob cancelled the rollout.")
        assert step in (None, store.get(found.id).step)


@pytest.mark.parametrize(
    ("update", "step", "given", "then"),
    [
        ("RUNNING", "snapshot", {}, UpdateState.SNAPSHOTTING),
        ("RUNNING", "watch", {}, UpdateState.WATCHING),
        ("RUNNING", "snapshot", {"unwanted_by": "bob"}, UpdateState.ROLLED_BACK),
        ("RUNNING", "hand_over", {"unwanted_by": "bob"}, UpdateState.HANDING_OVER),
        ("RUNNING", "watch", {"unwanted_by": "bob"}, UpdateState.ROLLING_BACK),
        ("SUCCEEDED", "watch", {"state": "STABLE", "is_trusted": True}, UpdateState.STABLE),
        ("FAILED", "shadow", {"state": "HALTED"}, UpdateState.FAILED),
    ],
)
def test_a_rollout_joins_the_update_that_carries_it_out(empty, update, step, given, then):
    engine = migrate_to(empty, "0026")
    request = {"stream": "backup", "generation": 2, "from_release": "1.2", "from_options": {}}
    request["update"] = {"release": "9", "options": {"slots": 4}, "mapping": {}, "validate_seconds": 0.0}
    is_ended = update != "RUNNING"
    error = {"code": "shadow_differs", "message": "1 row.", "logs": {}} if update == "FAILED" else None
    error = {"code": "update_inconclusive", "message": "0.", "logs": {}} if update == "SUCCEEDED" else error
    memory = {"checked": {"has_way_back": True, "no_way_back": []}, **({"error": error} if error else {})}
    memory |= {} if step in {"shadow", "snapshot"} else {"outgoing_id": "in_1", "handed_over_at": AT}
    with engine.begin() as connection:
        insert_stream(connection, "backup")
        facts = {"kind": "update", "state": update, "subject": "stream/backup", "step": step, "attempt": 1}
        facts |= {"created_by": "rollout:backup", "created_at": AT, "step_began_at": AT, "progress": {}}
        facts |= {"finished_at": AT if is_ended else None, "epoch": 0, "version": 3, "memory": memory}
        failed = {"code": "shadow_differs", "message": "1 row."} if update == "FAILED" else None
        insert(connection, "jobs", id="up_1", request=request, error=failed, **facts)
        line = {"at": AT, "actor": "agent", "what": "began", "type": "step", "fields": {"step": "check"}}
        insert(connection, "events", job_id="up_1", **line)
        ended = {"finished_at": AT if is_ended else None, "update_id": "up_1"}
        insert_rollout(connection, "backup", "rolling", **{"state": "UPDATING"} | ended | given)
    engine.dispose()

    with closing(open_store(empty)) as store:
        (found,) = store.list_updates()
        assert (found.id, found.state, found.manifest.name) == ("ro_backup", then, "backup")
        assert found.request.options == {"slots": 4}
        assert [each.id for each in store.list_updates("backup")] == ["ro_backup"]
        assert found.unwanted_by == given.get("unwanted_by")
        assert [each.what for each in store.list_events("ro_backup")] == ["began"]
        if "unwanted_by" in given:
            assert found.error.message == "bob cancelled the rollout."
        if given.get("is_trusted"):
            assert (found.request.is_trusted, found.error) == (True, None)
