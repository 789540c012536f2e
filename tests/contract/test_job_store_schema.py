"""How a job store is opened: its schema, what an earlier Refeed left, and what can't be opened."""

import json
import socket
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from jobs.store import DELETION, RESTORE, SNAPSHOT, Idempotency, JobFilter, JobStore, open_store
from jobs.store.tables import METADATA, SCHEMA_REVISION
from model.errors import SettingsError, StoreError, StoreUnavailableError, StreamStateError
from model.fault import FaultRecord
from model.job import JobState
from model.rollout_record import RolloutState
from model.stream_snapshot import SnapshotPlace, SnapshotState
from model.stream_update import UpdateState
from rollout.manifests.rollout import read_rollout
from rollout.manifests.schedule import ScheduleManifest, read_schedule
from tests.worlds.snapshot_jobs import complete_snapshot

pytestmark = pytest.mark.usefixtures("migrations")

ROOT = Path(__file__).parents[2]
KIND = "backfill"

# What Refeed made before it had migrations, word for word.
EARLIER = """
CREATE TABLE jobs (
    id TEXT NOT NULL, kind TEXT NOT NULL, state TEXT NOT NULL, request TEXT NOT NULL, created_by TEXT NOT NULL,
    created_at TEXT NOT NULL, started_at TEXT, finished_at TEXT, progress TEXT NOT NULL, error TEXT,
    epoch INTEGER NOT NULL, driver TEXT, idempotency_key TEXT, fingerprint TEXT, version INTEGER NOT NULL,
    PRIMARY KEY (id), UNIQUE (idempotency_key)
);
CREATE INDEX jobs_by_state ON jobs (kind, state);
CREATE TABLE events (
    number INTEGER NOT NULL, job_id TEXT NOT NULL, at TEXT NOT NULL, actor TEXT NOT NULL, what TEXT NOT NULL,
    why TEXT,
    PRIMARY KEY (number), FOREIGN KEY(job_id) REFERENCES jobs (id)
);
CREATE INDEX ix_events_job_id ON events (job_id);
INSERT INTO jobs VALUES (
    'bf_1', 'backfill', 'FAILED', '{"query": "SELECT 1", "topic": "orders", "labels": {"env": "prod"}}', 'ann',
    '2026-01-02T03:04:05.000006+00:00', '2026-01-02T03:04:06+00:00', '2026-01-02T03:05:00.5+00:00',
    '{"selected": 5, "published": 3}', '{"code": "driver_died", "message": "Died."}', 2,
    '{"pid": 1, "start_ticks": 2, "boot_id": "b"}', 'key', 'digest', 7
);
INSERT INTO jobs VALUES (
    'bf_2', 'backfill', 'PENDING', '{"query": "SELECT 2", "topic": "pays", "labels": {}}', 'bob',
    '2026-01-02T03:04:05+00:00', NULL, NULL, '{}', NULL, 0, NULL, NULL, NULL, 1
);
INSERT INTO events VALUES (1, 'bf_1', '2026-01-02T03:04:05.000006+00:00', 'ann', 'created', NULL);
INSERT INTO events VALUES (2, 'bf_1', '2026-01-02T03:05:00+00:00', 'refeed', 'RUNNING -> FAILED', 'Died.');
"""


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(EARLIER)
    connection.close()
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the url of a database without any table."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    made: str = request.getfixturevalue("postgresql").make_database()
    return made


def test_the_migrations_make_the_tables_that_the_store_uses(empty: str) -> None:
    open_store(empty).close()
    engine = sa.create_engine(empty.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), METADATA)
    engine.dispose()

    assert differences == []


HISTORY = (
    ("ann", "created", "created", {}),
    ("refeed", "PENDING -> RUNNING", "moved", {"from": "PENDING", "to": "RUNNING"}),
    (
        "ann",
        "changed description, rate_limit_messages_per_second",
        "changed",
        {"options": ["description", "rate_limit_messages_per_second"]},
    ),
    ("driver", "RUNNING -> PAUSED", "moved", {"from": "RUNNING", "to": "PAUSED"}),
    ("bob", "approved", "approved", {}),
    ("refeed", "driver ended", "driver_ended", {}),
    ("driver", "orders merged, members failed", "found", {}),
    ("refeed", "verification incomplete", "found", {"state": "incomplete"}),
    ("ann", "reverted", "changed", {"options": ["reverted"]}),
    ("ann", "reverted in part", "changed", {}),
)
FINDINGS = {"sources": {"orders": {"source": "orders", "state": "merged"}}}


def migrate_to(empty: str, revision: str) -> sa.Engine:
    """Return a database as the Refeed of that revision left it."""
    engine = sa.create_engine(empty.replace("postgresql:", "postgresql+psycopg:"))
    config = Config()
    config.set_main_option("script_location", str(ROOT / "jobs" / "migrations"))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    return engine


def test_histories_and_findings_of_an_earlier_refeed_are_read_as_typed_ones(empty: str) -> None:
    engine = migrate_to(empty, "0004")
    job = (
        "INSERT INTO jobs"
        " (id, kind, state, request, created_by, created_at, progress, epoch, version, verification)"
        " VALUES (:id, :kind, 'SUCCEEDED', '{}', 'ann', '2026-01-02T03:04:05+00:00', '{}', 1, 7, :found)"
    )
    line = (
        "INSERT INTO events (job_id, at, actor, what) VALUES ('bf_1', '2026-01-02T03:04:05+00:00', :actor, :what)"
    )
    with engine.begin() as connection:
        verdict = json.dumps({"state": "complete", "landed": 3})
        connection.execute(sa.text(job), {"id": "bf_1", "kind": "backfill", "found": verdict})
        connection.execute(sa.text(job), {"id": "mg_1", "kind": "merge", "found": json.dumps(FINDINGS)})
        connection.execute(sa.text(job), {"id": "mg_2", "kind": "merge", "found": None})
        for actor, what, _, _ in HISTORY:
            connection.execute(sa.text(line), {"actor": actor, "what": what})
    engine.dispose()

    store = open_store(empty)
    try:
        read = [(event.actor, event.what, event.type, event.fields) for event in store.list_events("bf_1")]
        assert read == list(HISTORY)
        assert store.get("bf_1").findings == {"state": "complete", "landed": 3}
        assert (store.get("mg_1").findings, store.get("mg_2").findings) == (FINDINGS, None)
        store.change("bf_1", actor="ann", what="changed description", options={"description": "why"})
        last = store.list_events("bf_1")[-1]
        assert (last.type, last.fields, last.number > 0) == ("changed", {"options": ["description"]}, True)
    finally:
        store.close()


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
            assert (found.id, found.state, found.step, found.generation) == (name, state, step, 2)
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
    ("restart", "VALIDATING", RolloutState.WATCHING),
    ("update", "VALIDATING", RolloutState.UPDATING),
    ("rolling", "ROLLING_BACK", RolloutState.FAILED),
    ("restart", "ROLLING_BACK", RolloutState.ROLLING_BACK),
    ("update", "STABLE", RolloutState.STABLE),
)


AT = "2026-01-02T03:04:05+00:00"


def insert(connection: sa.Connection, table: str, **values: Any) -> None:
    texts = {name: json.dumps(v) if isinstance(v, dict | list) else v for name, v in values.items()}
    query = f"INSERT INTO {table} ({', '.join(texts)}) VALUES ({', '.join(f':{name}' for name in texts)})"
    connection.execute(sa.text(query), texts)


def insert_stream(connection: sa.Connection, name: str) -> None:
    stream = {"kind": "backup", "generation": 2, "options": {}, "wanted": "RUNNING", "version": 3}
    times = {"drain_timeout_seconds": 60.0, "state": "RUNNING", "changed_at": AT}
    insert(connection, "managed_streams", name=name, **stream, **times, created_by="ann", created_at=AT)


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
            insert_stream(connection, name)
            error = {"code": "rollout_failed", "message": "1 row."} if state == "ROLLING_BACK" else None
            update = None if strategy == "restart" else "up_1"
            insert_rollout(connection, name, strategy, state, error=error, update_id=update)
    engine.dispose()

    with closing(open_store(empty)) as store:
        found = sorted(store.list_rollouts(), key=lambda each: each.id)
        assert [each.state for each in found] == [state for *_, state in ROLLOUTS]
        assert all(read_rollout(each.document).validate_.seconds == 60.0 for each in found)
        steps = [[step.state.value for step in each.steps] for each in found]
        ends = [["PENDING"], ["PENDING"], ["PENDING", "ROLLING_BACK", "FAILED"], ["PENDING", "ROLLING_BACK"]]
        assert steps == [*ends, ["PENDING", "STABLE"]]
        assert found[2].finished_at is not None
        assert found[2].error == FaultRecord("rollout_failed", "1 row. The update up_1 takes the stream back.")


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
        found = store.get_update("up_1")
        assert (found.state, found.error) == (UpdateState.WATCHING, None)
        assert found.request.when_inconclusive == means
        assert store.advance_update(found, UpdateState.STABLE).finished_at is not None


def test_the_newest_migration_is_the_one_that_the_store_asks_for() -> None:
    config = Config()
    config.set_main_option("script_location", str(ROOT / "jobs" / "migrations"))
    assert ScriptDirectory.from_config(config).get_heads() == [SCHEMA_REVISION]


def test_what_an_earlier_refeed_left_is_all_there(earlier: Path) -> None:
    store = JobStore(earlier)
    try:
        ended, waiting = store.get("bf_1"), store.get("bf_2")
        assert (ended.state, ended.error, ended.epoch, ended.version) == (
            JobState.FAILED,
            FaultRecord("driver_died", "Died."),
            2,
            7,
        )
        assert (ended.progress["selected"], ended.progress["published"], ended.labels) == (5, 3, {"env": "prod"})
        assert [(e.number, e.what) for e in store.list_events("bf_1")] == [
            (1, "created"),
            (2, "RUNNING -> FAILED"),
        ]
        assert [job.id for job in store.claim(KIND, "a", limit=5, lease_seconds=60)] == [waiting.id]
        assert store.move("bf_1", JobState.PENDING, actor="ann").version == 8
    finally:
        store.close()


def test_an_earlier_job_is_found_by_its_key_its_topic_and_its_labels(earlier: Path) -> None:
    store = JobStore(earlier)
    try:
        again = store.insert("bf_3", KIND, {}, actor="ann", idempotency=Idempotency("key", "digest"))
        assert again.id == "bf_1"
        for where in (JobFilter(topic="orders"), JobFilter(labels=(("env", "prod"),))):
            assert [job.id for job in store.list_jobs(KIND, limit=9, where=where)] == ["bf_1"]
        # Nobody wants to be told of ends before anybody could be told.
        assert store.list_unnotified(KIND, 9) == []
    finally:
        store.close()


def test_an_earlier_store_that_many_open_at_once_is_brought_up_to_date_once(earlier: Path) -> None:
    open_at_once(f"sqlite:///{earlier}")
    store = JobStore(earlier)
    assert store.get("bf_1").version == 7
    store.close()


def test_an_earlier_store_that_another_process_is_changing_is_waited_for(earlier: Path) -> None:
    # The change to a write-ahead log needs the file alone, and SQLite itself does not wait for that.
    with closing(sqlite3.connect(earlier, check_same_thread=False)) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        other.execute("BEGIN IMMEDIATE")
        leave = threading.Timer(0.3, other.rollback)
        leave.start()
        store = JobStore(earlier)
        leave.join()
    assert store.get("bf_1").version == 7
    store.close()


def test_many_that_open_an_empty_database_at_once_all_get_a_store(empty: str) -> None:
    open_at_once(empty)


def open_at_once(url: str) -> None:
    start = threading.Barrier(6)

    def open_and_look(_: int) -> None:
        start.wait(20)
        store = open_store(url)
        try:
            store.list_jobs(KIND, limit=1)
        finally:
            store.close()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(open_and_look, range(6)))


def test_a_store_of_a_newer_refeed_is_left_alone(empty: str) -> None:
    open_store(empty).close()
    engine = sa.create_engine(empty.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    engine.dispose()

    with pytest.raises(StoreUnavailableError, match="newer"):
        open_store(empty)


@pytest.mark.parametrize("url", ["sqlite://", "mysql://u:secret@h/d", "jobs.db", "postgresql+psycopg2://h/d"])
def test_a_url_of_something_else_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(SettingsError) as refused:
        open_store(url)
    assert "secret" not in refused.value.message


def test_a_server_that_does_not_answer_is_named_as_such() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        # Bound and not listening: nobody else can take the port, and nobody answers.
        url = f"postgresql://refeed:secret@127.0.0.1:{bound.getsockname()[1]}/refeed"
        with pytest.raises(StoreUnavailableError) as refused:
            open_store(url)
    assert "secret" not in refused.value.message


def test_a_file_that_is_no_database_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_text("no database at all, and long enough to be taken for one" * 20)

    with pytest.raises(StoreError):
        JobStore(tmp_path / "jobs.db")


def test_a_database_that_goes_away_is_an_error_of_ours_and_comes_back(make_postgresql_store, postgresql):
    url = make_postgresql_store()
    store = open_store(url)
    name = url.rpartition("/")[2]
    admin = psycopg.connect(postgresql.url("postgres"), autocommit=True)
    try:
        store.insert("bf_1", KIND, {}, actor="ann")
        admin.execute("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s", [name])
        admin.execute(f"ALTER DATABASE {name} RENAME TO {name}_away")
        with pytest.raises(StoreUnavailableError):
            store.get("bf_1")

        admin.execute(f"ALTER DATABASE {name}_away RENAME TO {name}")
        assert store.get("bf_1").id == "bf_1"
    finally:
        admin.close()
        store.close()


def test_no_look_of_a_supervisor_walks_through_all_jobs_that_ended(tmp_path: Path) -> None:
    """On SQLite, whose planner knows no figures; a store keeps every job for ever."""
    store = JobStore(tmp_path / "jobs.db")
    asked: list[tuple[str, Any]] = []
    engine = store._database._engine
    sa.event.listen(engine, "before_cursor_execute", lambda *given: asked.append((given[2], given[3])))
    store.insert("bf_1", KIND, {}, actor="ann")
    asked.clear()
    store.owners(KIND)
    store.take_over(KIND, "a", lease_seconds=60)
    store.claim(KIND, "a", limit=2, lease_seconds=60)
    store.held(KIND, "a")
    store.renew("a", 60)
    store.list_active(KIND)
    store.list_active()
    store.list_unverified(KIND, 1)
    store.list_unnotified(KIND, 1)
    store.close()

    with sqlite3.connect(tmp_path / "jobs.db") as connection:
        plans = [
            row[3]
            for statement, values in asked
            if statement.startswith(("SELECT", "UPDATE"))
            for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)
        ]
    connection.close()
    looks = [plan for plan in plans if " jobs" in plan]
    assert len(looks) >= 10
    assert [plan for plan in looks if "SEARCH" not in plan or plan.endswith("(kind=?)")] == []
