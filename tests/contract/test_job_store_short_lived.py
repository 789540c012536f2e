"""Plans, sessions, reports and webhooks of an earlier Refeed go on in their tables of today."""

from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from jobs.store import Idempotency, KeySession, StoredPlan, UserSession, open_store
from model.errors import IdempotencyInProgressError
from model.stream import AgentReport, StreamReport
from tests.worlds.migrations import AT, insert, migrate_to

pytestmark = pytest.mark.usefixtures("migrations")

FIRST = datetime.fromisoformat(AT)
LIFE = {"created_at": AT, "expires_at": "2026-01-02T04:04:05+00:00"}
ENDS = FIRST + timedelta(hours=1)


def test_what_was_short_lived_goes_on(empty: str) -> None:
    engine = migrate_to(empty, "0033")
    now = datetime.now(UTC)
    soon = (now + timedelta(minutes=1)).isoformat()
    person = {"sealed": "a", "renew_at": AT, "token_expires_at": LIFE["expires_at"], "revision": 3}
    key = {"id": "k", "name": "ann", "digest": "d", "scopes": ["read"], "prefix": "p", "created_at": AT}
    stream = {"instance": "i", "host": "mars", "pid": 7, "state": "running", "status": {"totals": {"messages": 2}}}
    agent = {"host": "mars", "home": "/home", "version": "0.1.0", "releases": [{"name": "0.2.0"}]}
    with engine.begin() as connection:
        insert(connection, "plans", id="pl_1", fingerprint="f", document={"rows": 5}, **LIFE)
        insert(connection, "keys", **key)
        insert(connection, "sessions", digest="s", key_id="k", **LIFE)
        insert(connection, "user_sessions", digest="u", renewing_until=soon, **LIFE, **person)
        insert(connection, "used_sign_ins", digest="used", expires_at=LIFE["expires_at"])
        insert(connection, "creates", key="ann\nkey", fingerprint="f", attempt="first", held_until=soon)
        insert(connection, "streams", name="backup", reported_at=now.isoformat(), **stream)
        insert(connection, "webhooks", digest="hook", since=AT)
        insert(connection, "stream_agents", agent="a|1", reported_at=now.isoformat(), **agent)
    engine.dispose()
    with closing(open_store(empty)) as store:
        assert store.find_short_lived(StoredPlan, "pl_1") == StoredPlan("pl_1", "f", {"rows": 5}, ENDS)
        found = store.find_session("s")
        assert found[0] == KeySession("s", "k", ENDS)
        assert found[1].name == "ann"
        session = store.find_short_lived(UserSession, "u")
        assert session == UserSession("u", ENDS, "a", FIRST, ENDS, 3)
        assert not store.claim_renewal(session, now=now, until=ENDS), "another replica renews it"
        assert store.claim_renewal(session, now=now + timedelta(minutes=2), until=ENDS)
        assert not store.use_sign_in("used", expires_at=ENDS)
        with pytest.raises(IdempotencyInProgressError):
            store.begin_create("backfill", Idempotency("key", "f", "second"), actor="ann")
        [report] = store.list_stream_reports()
        assert report.report == StreamReport("backup", "i", "mars", 7, "running", stream["status"])
        assert store.open_webhook("hook") == FIRST, "what it was not told since then is still due"
        [told] = store.list_agent_reports()
        assert told.report == AgentReport("a|1", "mars", "/home", "0.1.0", [{"name": "0.2.0"}])


def test_what_nobody_read_of_a_plan_a_session_and_a_job_goes(empty: str) -> None:
    engine = migrate_to(empty, "0036")
    began = {"created_at": AT, "expires_at": LIFE["expires_at"]}
    documents = {
        "plan": {"id": "pl_1", "fingerprint": "f", "document": {"rows": 5, "created_at": AT}, **began},
        "session": {"digest": "s", "key_id": "k", **began},
        "create": {"fingerprint": "f", "attempt": "first"},
    }
    job = {"kind": "backfill", "request": {}, "progress": {}, "epoch": 1, "version": 7, "created_by": "ann"}
    news = {"plan_id": "pl_1", "news_at": datetime.now(UTC).isoformat(), "notify_error": "HTTP 500"}
    with engine.begin() as connection:
        insert(connection, "jobs", id="bf_1", state="FAILED", created_at=AT, **job, **news)
        for kind, document in documents.items():
            kept = {"document": document, "expires_at": LIFE["expires_at"], "revision": 0}
            insert(connection, "short_lived", kind=kind, key=kind, **kept)
    engine.dispose()
    with closing(open_store(empty)) as store:
        plan = StoredPlan("pl_1", "f", {"rows": 5, "created_at": AT}, ENDS)
        assert store.find_short_lived(StoredPlan, "plan") == plan, "its own document stays as it is"
        assert store.find_short_lived(KeySession, "session") == KeySession("s", "k", ENDS)
        assert [job.id for job in store.list_unnotified("backfill", 9)] == ["bf_1"], "its news is still to be told"
