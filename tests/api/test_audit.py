import time

import pytest

from api.audit import AuditLine, AuditTrail
from jobs.store import JobStore
from model.errors import StoreUnavailableError
from model.principal import ADMIN, READ, RUN
from tests.waiting import wait_until

JOB = "/jobs/bf_00000000000000000000000000"


@pytest.fixture(scope="module")
def closed(start_api):
    api = start_api(REFEED_RATE_LIMIT_PER_MINUTE="20")
    api.make_key(ADMIN, name="first")
    return api


def lines_of(api, call):
    before = len(api.audit())
    call()
    return [(e.actor, e.action, e.target, e.outcome, e.why) for e in api.audit()[before:]]


def test_a_refused_call_is_kept_whatever_its_path_has(start_api, make_postgresql_store):
    """PostgreSQL keeps no NUL in a text."""
    api = start_api(REFEED_JOB_STORE=make_postgresql_store())
    api.make_key(ADMIN, name="first")
    with api.client() as nobody:
        found = lines_of(api, lambda: nobody.get("/messages/m%00\u2028/data?topic=orders"))
    assert [(target, outcome) for _, _, target, outcome, _ in found] == [
        (r"/messages/m\x00\u2028/data", "refused")
    ]


def test_refused_calls_are_kept_with_who_and_why(closed):
    with closed.client() as nobody:
        assert lines_of(closed, lambda: nobody.get("/backfills")) == [
            (
                "unknown at 127.0.0.1",
                "GET",
                "/backfills",
                "refused",
                "401 unauthenticated: no Authorization header",
            )
        ]
    token = closed.make_key(READ, name="reader")
    with closed.client(token) as reader:
        assert lines_of(closed, lambda: reader.post(f"{JOB}:cancel")) == [
            (
                "key:reader",
                "cancelJob",
                f"{JOB}:cancel",
                "refused",
                "403 forbidden: This call needs the scope backfills.run. key:reader does not have this scope.",
            )
        ]
    prefix, secret = token.rsplit("_", 1)
    with closed.client(f"{prefix}_{'a' * len(secret)}") as guesser:
        (line,) = lines_of(closed, lambda: guesser.get("/backfills"))
    assert line[4] == f"401 unauthenticated: {prefix} came with a wrong secret"


def test_changes_are_kept_and_reads_are_not(closed):
    day = {"type": "DATE", "value": time.strftime("%Y-%m-%d", time.gmtime(time.time() - 86_400))}
    body = {
        "query": "SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = @day",
        "topic": "replay",
        "parameters": {"day": day},
    }
    with closed.client(closed.make_key(RUN, READ, name="runner")) as client:
        made = lines_of(closed, lambda: client.post("/backfills", json=body))
        assert [line[:4] for line in made] == [("key:runner", "createBackfill", made[0][2], "done")]
        assert lines_of(closed, lambda: client.get(made[0][2])) == []
        change = {"description": "why"}
        assert [line[1:4] for line in lines_of(closed, lambda: client.patch(made[0][2], json=change))] == [
            ("changeJob", made[0][2], "done")
        ]
        # Nothing was changed by what was not understood.
        assert lines_of(closed, lambda: client.post("/backfills", json={})) == []


def test_no_secret_query_or_body_is_ever_kept(closed):
    secrets = ["s3cr3t-token", "s3cr3t-query", "s3cr3t-body"]
    with closed.client(secrets[0]) as client:
        client.post(f"/backfills?key={secrets[1]}", json={"query": secrets[2]})
        client.get("/backfills", params={"access_token": secrets[1]})
    kept = repr(closed.audit())
    assert "unauthenticated" in kept
    assert not [secret for secret in secrets if secret in kept]


def test_calls_that_came_too_often_are_summed_up(closed):
    with closed.client(closed.make_key(READ, name="hasty")) as client:
        statuses = [client.get("/backfills").status_code for _ in range(40)]
    refused = statuses.count(429)
    assert refused >= 10
    deadline = time.monotonic() + 20
    while True:
        lines = [entry for entry in closed.audit() if entry.actor == "key:hasty"]
        if sum(int((entry.why or "0").split()[0]) for entry in lines) >= refused:
            break
        assert time.monotonic() < deadline, lines
        time.sleep(0.05)
    assert sum(int((entry.why or "0").split()[0]) for entry in lines) == refused
    assert len(lines) < refused
    assert all("429 rate_limited" in (entry.why or "") for entry in lines)


def test_the_log_is_read_in_pages_by_admins(closed):
    with closed.client() as nobody:
        for _ in range(3):
            nobody.get("/backfills")
    with closed.client(closed.make_key(ADMIN, name="ann")) as client:
        first = client.get("/audit", params={"page_size": 2}).json()
        second = client.get("/audit", params={"page_size": 2, "page_token": first["next_page_token"]}).json()
        wrong = client.get("/audit", params={"page_token": "nonsense"})
    numbers = [entry["number"] for page in (first, second) for entry in page["entries"]]
    assert len(numbers) == 4
    assert numbers == sorted(numbers, reverse=True)
    assert set(first["entries"][0]) == {"number", "at", "actor", "action", "target", "outcome", "why"}
    assert (wrong.status_code, wrong.json()["errors"][0]["code"]) == (422, "page_token_invalid")


def test_what_was_counted_is_written_at_the_end(store):
    trail = AuditTrail(store)
    line = AuditLine("key:ci", "listBackfills", "", "refused", "429 rate_limited")
    for _ in range(7):
        trail.count(line)
    trail.close()
    assert sum(int((entry.why or "").split()[0]) for entry in store.list_audit(10)) == 7


def test_a_store_that_is_away_for_a_while_ends_no_counting(store, monkeypatch):
    monkeypatch.setattr("api.audit._COUNT_SECONDS", 0.01)
    append, failed = store.append_audit, []

    def fail_once(*fields):
        if not failed:
            failed.append(fields)
            raise StoreUnavailableError
        append(*fields)

    monkeypatch.setattr(store, "append_audit", fail_once)
    trail = AuditTrail(store)
    line = AuditLine("key:ci", "listBackfills", "", "refused", "429 rate_limited")
    trail.count(line)
    wait_until(lambda: failed, "it is tried")
    trail.count(line)
    trail.close()
    assert [entry.why for entry in store.list_audit(10)] == ["1 times: 429 rate_limited"]


def test_a_fault_in_the_middle_of_a_change_is_kept(closed, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("backfill.steer.service.BackfillService.cancel", fail)
    with closed.client(closed.make_key(RUN, name="unlucky")) as client:
        response = []
        lines = lines_of(closed, lambda: response.append(client.post(f"{JOB}:cancel")))
    assert response[0].status_code == 500
    assert [line[:4] for line in lines] == [("key:unlucky", "cancelJob", f"{JOB}:cancel", "failed")]
    assert "secret" not in (lines[0][4] or "")


def test_a_log_that_can_t_be_written_changes_no_answer(closed, monkeypatch):
    def fail(*_):
        raise StoreUnavailableError

    monkeypatch.setattr(JobStore, "append_audit", fail)
    with closed.client() as nobody:
        assert nobody.get("/backfills").status_code == 401
