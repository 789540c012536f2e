"""How a job store is opened: its schema, what an earlier Refeed left, and what can't be opened."""

import json
import socket
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from jobs.store import Idempotency, JobFilter, JobStore, SortOrder, open_store
from jobs.store.tables import METADATA, SCHEMA_REVISION
from model.errors import SettingsError, StoreError, StoreUnavailableError
from model.fault import FaultRecord
from model.job import JobState
from model.stream_snapshot import SnapshotReason, SnapshotState
from tests.worlds.migrations import ROOT, migrate_to

pytestmark = pytest.mark.usefixtures("migrations")

KIND = "backfill"
EARLIER = Path(__file__).with_name("before_migrations.sql")


@pytest.fixture
def earlier(tmp_path):
    path = tmp_path / "jobs.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(EARLIER.read_text())
    connection.close()
    return path


def test_the_migrations_make_the_tables_that_the_store_uses(empty):
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


def test_histories_and_findings_of_an_earlier_refeed_are_read_as_typed_ones(empty):
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


def test_the_newest_migration_is_the_one_that_the_store_asks_for():
    config = Config()
    config.set_main_option("script_location", str(ROOT / "jobs" / "migrations"))
    assert ScriptDirectory.from_config(config).get_heads() == [SCHEMA_REVISION]


def test_what_an_earlier_refeed_left_is_all_there(earlier):
    store = JobStore(earlier)
    try:
        ended, waiting = store.get("bf_1"), store.get("bf_2")
        assert (ended.state, ended.error, ended.epoch) == (JobState.FAILED, FaultRecord("driver_died", "Died."), 2)
        assert ended.version == 7
        assert (ended.progress["selected"], ended.progress["published"], ended.labels) == (5, 3, {"env": "prod"})
        assert [(e.number, e.what) for e in store.list_events("bf_1")] == [
            (1, "created"),
            (2, "RUNNING -> FAILED"),
        ]
        assert [job.id for job in store.claim(KIND, "a", limit=5, lease_seconds=60)] == [waiting.id]
        assert store.move("bf_1", JobState.PENDING, actor="ann").version == 8
    finally:
        store.close()


def test_an_earlier_job_is_found_by_its_key_its_topic_and_its_labels(earlier):
    store = JobStore(earlier)
    try:
        again = store.insert("bf_3", KIND, {}, actor="ann", idempotency=Idempotency("key", "digest"))
        assert again.id == "bf_1"
        for where in (JobFilter(topic="orders"), JobFilter(labels=(("env", "prod"),))):
            assert [job.id for job in store.list_jobs(where, limit=9)] == ["bf_1"]
        # Nobody wants to be told of ends before anybody could be told.
        assert store.list_unnotified(KIND, 9) == []
    finally:
        store.close()


def test_an_earlier_store_that_many_open_at_once_is_brought_up_to_date_once(earlier):
    open_at_once(f"sqlite:///{earlier}")
    store = JobStore(earlier)
    assert store.get("bf_1").version == 7
    store.close()


def test_an_earlier_store_that_another_process_is_changing_is_waited_for(earlier):
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


def test_many_that_open_an_empty_database_at_once_all_get_a_store(empty):
    open_at_once(empty)


def open_at_once(url: str) -> None:
    start = threading.Barrier(6)

    def open_and_look(_: int) -> None:
        start.wait(20)
        store = open_store(url)
        try:
            store.list_jobs(limit=1)
        finally:
            store.close()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(open_and_look, range(6)))


def test_a_store_of_a_newer_refeed_is_left_alone(empty):
    open_store(empty).close()
    engine = sa.create_engine(empty.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    engine.dispose()
    with pytest.raises(StoreUnavailableError, match="newer"):
        open_store(empty)


@pytest.mark.parametrize("url", ["sqlite://", "mysql://u:secret@h/d", "jobs.db", "postgresql+psycopg2://h/d"])
def test_a_url_of_something_else_is_refused_without_its_password(url):
    with pytest.raises(SettingsError) as refused:
        open_store(url)
    assert "secret" not in refused.value.message


def test_a_server_that_does_not_answer_is_named_as_such():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        # Bound and not listening: nobody else can take the port, and nobody answers.
        url = f"postgresql://refeed:secret@127.0.0.1:{bound.getsockname()[1]}/refeed"
        with pytest.raises(StoreUnavailableError) as refused:
            open_store(url)
    assert "secret" not in refused.value.message


def test_a_file_that_is_no_database_is_named_as_such(tmp_path):
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


def plan_of(tmp_path, ask):
    """Return how SQLite, whose planner knows no figures, finds what a new store is asked."""
    store, asked = JobStore(tmp_path / "jobs.db"), []
    sa.event.listen(store._database._engine, "before_cursor_execute", lambda *given: asked.append(given[2:4]))
    ask(store)
    store.close()
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        return [
            row[3]
            for statement, values in asked
            if statement.startswith(("SELECT", "UPDATE"))
            for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)
        ]


def test_no_look_of_a_supervisor_walks_through_all_jobs_that_ended(tmp_path):
    """A store keeps every job for ever."""

    def look(store):
        store.insert("bf_1", KIND, {}, actor="ann")
        store.owners(KIND)
        store.take_over(KIND, "a", lease_seconds=60)
        store.claim(KIND, "a", limit=2, lease_seconds=60)
        store.held(KIND, "a")
        store.renew("a", 60)
        store.list_active(KIND)
        store.list_active()
        store.find_last_failures()
        store.list_unverified(KIND, 1)
        store.list_unnotified(KIND, 1)
        store.find_overdue_streams(**dict.fromkeys(("after", "failed_after", "until"), datetime.now(UTC)))
        store.find_surplus_streams(keep=7)
        store.list_snapshots(stream="s", states=[SnapshotState.COMPLETED], reason=SnapshotReason.SCHEDULED)

    looks = [plan for plan in plan_of(tmp_path, look) if " jobs" in plan or " stream_snapshots" in plan]
    assert len(looks) >= 10
    assert [
        plan for plan in looks if "SEARCH" not in plan or plan.endswith(("(kind=?)", "(subject=?)", "(stream=?)"))
    ] == []


def test_the_newest_jobs_of_several_kinds_are_found_without_a_sort_of_all(tmp_path):
    """The page of jobs is looked at every few seconds, and schedules make jobs for years."""
    newest = (SortOrder("created_at", descending=True),)
    where = JobFilter(kinds=("backfill", "merge", "update"))
    plan = plan_of(tmp_path, lambda store: store.list_jobs(where, limit=50, order=newest))
    assert plan == ["SCAN jobs USING INDEX jobs_by_creation"]


def test_jobs_that_have_no_figures_are_counted_by_an_index_alone(tmp_path):
    """Whoever scrapes /metrics has them counted, and schedules make jobs for years."""
    plan = plan_of(tmp_path, lambda store: store.count_jobs(("published",), of_kind=KIND))
    assert plan[0] == "SCAN jobs USING COVERING INDEX jobs_by_state"
    assert [step for step in plan[1:] if "SCAN jobs" in step] == []
