import io
import json
import sys

import pytest

import cli.backfill_watch
from client.api import RefeedApi
from client.jobs import JobCalls, KindCalls
from model.errors import RequestRefusedError
from tests.cli.backfills import backfill


@pytest.fixture
def created(monkeypatch):
    """What was sent to the API, which says RUNNING once and SUCCEEDED then."""
    requests = []

    def create(self, request, *, idempotency_key=None):
        assert idempotency_key
        requests.append(request)
        return backfill("PENDING")

    monkeypatch.setattr(KindCalls, "create", create)
    answer_watch(monkeypatch, backfill("RUNNING", None), backfill("SUCCEEDED", 2))
    return requests


def answer_watch(monkeypatch, *shown):
    def watch(self, backfill_id):
        assert backfill_id == "bf_1"
        yield from shown

    monkeypatch.setattr(JobCalls, "read", lambda self, backfill_id: shown[0])
    monkeypatch.setattr(JobCalls, "watch", watch)


@pytest.fixture
def acted(monkeypatch):
    """What was done to backfills, which are paused by it."""
    verbs = []

    def act(self, backfill_id, verb, body=None):
        assert backfill_id == "bf_1"
        verbs.append((verb, body))
        return backfill("PAUSED", 1, in_flight_at_most=4000)

    monkeypatch.setattr(JobCalls, "act", act)
    return verbs


def test_create_sends_every_option_by_the_api_s_name(refeed, created):
    options = (
        "--label team=shop --label why= --plan pl_1 --rate-limit 100 --max-rows 5 --max-bytes-billed 6 --canary 7 "
        "--start-paused --ordering by_key --add-attribute a=b=c --yield-to live:2.5 --max-failed 8 "
        "--allow-overlap --target-subscription billing --create-topic --fail-if-empty --allow-empty"
    )
    assert refeed("backfill", "orders", "--query", "SELECT 1", *options.split()).code == 0
    assert created == [
        {
            "query": "SELECT 1",
            "topic": "orders",
            "labels": {"team": "shop", "why": ""},
            "plan_id": "pl_1",
            "rate_limit_messages_per_second": 100.0,
            "max_rows": 5,
            "max_bytes_billed": 6,
            "canary_messages": 7,
            "start_paused": True,
            "ordering": "by_key",
            "attributes": {"a": "b=c"},
            "yield_to": {"subscription": "live", "max_oldest_unacked_seconds": 2.5},
            "max_failed": 8,
            "allow_overlap": True,
            "target_subscription": "billing",
            "create_topic": True,
            "fail_if_empty": True,
            "allow_empty": True,
        }
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        ("orders", "members", "--query", "SELECT 1"),
        ("orders", "members", "--from", "1h", "--idempotency-key", "k"),
        ("orders", "members", "--from", "1h", "--plan", "pl_1"),
        ("orders", "--from", "1h", "--plan", "pl_1", "--dry-run"),
        ("orders",),
    ],
)
def test_words_that_name_no_backfill_or_several_are_said_before_anything_is_sent(refeed, created, wrong):
    result = refeed("backfill", *wrong, "--yes")
    assert (result.code, "input_invalid" in result.err, created) == (2, True, [])


def test_a_repeated_call_with_a_key_sends_the_same_request(refeed, created, monkeypatch):
    plans = iter(({"plan_id": "pl_1", "rows": 1}, {"plan_id": "pl_2", "rows": 1}))
    monkeypatch.setattr(RefeedApi, "plan_backfill", lambda *_, **__: next(plans))
    for _ in range(2):
        words = ("orders", "--query", "SELECT 1", "--idempotency-key", "k", "--yes", "--json")
        assert refeed("backfill", *words).code == 0
    assert created == [{"query": "SELECT 1", "topic": "orders"}] * 2


@pytest.mark.parametrize(
    "wrong",
    [("--label", "team"), ("--add-attribute", "a"), ("--yield-to", "live"), ("--label", "a=1", "--label", "a=2")],
)
def test_an_option_that_is_none_is_said_before_anything_is_sent(refeed, created, wrong):
    result = refeed("backfill", "orders", "--query", "SELECT 1", "--plan", "pl_1", *wrong)
    assert result.code == 2
    assert "input_invalid" in result.err
    assert created == []


def test_the_query_may_come_from_a_file_or_stdin(refeed, created, tmp_path, monkeypatch):
    (tmp_path / "q.sql").write_text("SELECT 2")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"SELECT 3")))
    for query in (f"@{tmp_path / 'q.sql'}", "-"):
        assert refeed("backfill", "orders", "--query", query, "--plan", "pl_1").code == 0
    assert [request["query"] for request in created] == ["SELECT 2", "SELECT 3"]
    missing = refeed("backfill", "orders", "--query", "@/no/such")
    assert missing.code == 2
    assert "input_invalid" in missing.err


def test_a_plan_is_shown_with_what_to_do_next(refeed, monkeypatch):
    asked = []
    plan = {
        "plan_id": "pl_1",
        "expires_at": "2026-01-01T00:15:00Z",
        "topic": "replay",
        "window": {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"},
        "rows": 1200,
        "bytes_scanned": 5000,
        "price_usd": None,
        "replay_price": {
            "usd": None,
            "at_least_usd": 3.5,
            "parts": [{"what": "publish", "bytes": 9, "usd": 3.5}, {"what": "query", "bytes": 5, "usd": None}],
        },
        "rows_by_topic": {f"t{n}": 100 for n in range(12)},
        "first_publish_time": "2026-01-01T01:00:00Z",
        "last_publish_time": "2026-01-01T02:00:00Z",
        "samples": [
            {"message_id": "7", "data": {"a": [1, None]}, "encoding": "json"},
            {"message_id": "8", "data": "plain", "encoding": "text"},
            {"message_id": "9", "data": None, "encoding": None},
        ],
        "subscriptions": [{"name": "s", "filter": "", "receives_replay": True}],
        "warnings": [{"code": "data_rewritten", "message": "Data is computed."}],
    }
    monkeypatch.setattr(RefeedApi, "plan_backfill", lambda self, request, exact: asked.append(request) or plan)
    words = ("backfill", "replay", "--query", "SELECT 1", "--dry-run")
    text = refeed(*words, "--add-attribute", "a=b").out
    assert asked == [{"query": "SELECT 1", "topic": "replay", "attributes": {"a": "b"}}]
    for part in (
        "pl_1  1,200 messages -> replay",
        "5,000 bytes, price unknown",
        "at least 3.50 USD in all (publish 3.50; unknown: query)",
        "2 more topics",
        "s: receives it",
        'sample     7: {"a": [1, null]}',
        "sample     8: plain",
        "sample     9: hidden, because you need the scope messages.read",
        "Data is computed. (data_rewritten)",
        "--plan pl_1",
    ):
        assert part in text
    assert json.loads(refeed(*words, "--json").out) == plan
    assert refeed(*words, "--fail-if-empty").code == 0
    plan["rows"] = 0
    assert refeed(*words).code == 0
    empty = refeed(*words, "--fail-if-empty", "--create-topic")
    assert (empty.code, "0 messages" in empty.out) == (1, True)
    assert asked[-1] | {"query": None} == {
        "query": None,
        "topic": "replay",
        "create_topic": True,
        "fail_if_empty": True,
    }


@pytest.mark.parametrize(
    ("excluded_by", "reason"),
    [
        ("backup", ": it is a backup subscription, and its filter drops replays"),
        ("filter", ": no replayed message passes its filter"),
        ("detached", ": it is detached"),
        # An API of an earlier release gives no reason.
        (None, ""),
    ],
)
def test_a_plan_says_why_a_subscription_does_not_receive_it(refeed, monkeypatch, excluded_by, reason):
    unreached = {"name": "s", "filter": "", "receives_replay": False, "excluded_by": excluded_by}
    plan = {
        "plan_id": "pl_1",
        "expires_at": "2026-01-01T00:15:00Z",
        "topic": "replay",
        "rows": 1,
        "rows_by_topic": {},
        "samples": [],
        "subscriptions": [unreached],
        "warnings": [],
    }
    monkeypatch.setattr(RefeedApi, "plan_backfill", lambda self, request, exact: plan)
    lines = refeed("backfill", "replay", "--query", "SELECT 1", "--dry-run").out.splitlines()
    assert f"  reaches    s: does not receive it{reason}" in lines


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED"])
def test_watching_a_backfill_that_did_not_succeed_ends_with_1(refeed, monkeypatch, state):
    error = {"code": "driver_failed", "message": "The driver is gone."}
    answer_watch(monkeypatch, backfill(state, 1, error=error))
    result = refeed("watch", "bf_1")
    assert result.code == 1
    assert result.out.endswith("  driver_failed: The driver is gone.\n  next       refeed retry bf_1\n")


APPROVAL = {"required": True, "above_rows": 1, "rows": 2, "by": None, "at": None}
CANARY = {"canary": {"messages": 1, "state": "reached"}}


@pytest.mark.parametrize(
    ("state", "fields", "command"),
    [
        ("PAUSED", {}, "refeed resume bf_1"),
        ("PAUSED", CANARY, "refeed resume bf_1"),
        ("PAUSED", {"approval": APPROVAL}, "refeed approve bf_1"),
        ("PENDING", {"approval": APPROVAL}, "refeed approve bf_1"),
    ],
)
def test_a_watch_ends_with_1_at_what_waits_for_a_person(refeed, monkeypatch, state, fields, command):
    monkeypatch.setattr(JobCalls, "read_part", lambda *_, **__: {"messages": [], "next_page_token": None})
    # What comes later is not waited for.
    answer_watch(monkeypatch, backfill("RUNNING", 1), backfill(state, 1, **fields), backfill("SUCCEEDED", 2))
    result = refeed("watch", "bf_1")
    assert result.code == 1
    assert f"'{command}'\n" in result.err
    who = ", by a person other than its requester" if "approval" in fields else ""
    assert result.out.endswith(f"  next       {command}{who}\n")


def test_a_backfill_that_was_approved_is_watched_to_its_end(refeed, monkeypatch):
    approved = {"approval": {**APPROVAL, "by": "bob"}}
    answer_watch(monkeypatch, backfill("PENDING", 0, **approved), backfill("SUCCEEDED", 2, **approved))
    assert refeed("watch", "bf_1").code == 0


def test_a_watch_says_whether_the_canary_failed_again_in_the_pipeline(refeed, monkeypatch):
    monkeypatch.setattr(cli.backfill_watch, "POLL_SECONDS", 0.001)
    on_way = {"row": 0, "code": None}
    pages = iter([[on_way, on_way], [{**on_way, "code": "wrong_type"}, on_way], []])
    latest = [{**on_way, "code": "wrong_type"}, {**on_way, "code": "not_json"}]
    asked = []

    def read_part(self, job_id, part, **_):
        asked.append((job_id, part))
        return {"messages": next(pages) or latest, "next_page_token": None, "advice": None}

    monkeypatch.setattr(JobCalls, "read_part", read_part)
    answer_watch(monkeypatch, backfill("PAUSED", 2, **CANARY))
    result = refeed("watch", "bf_1")
    assert asked == [("bf_1", "missing")] * 3
    assert (
        "2 messages of the canary failed again: the pipeline made dead letters of them (not_json, wrong_type).\n"
        "Before you resume: refeed missing bf_1\n" in result.err
    )


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_a_watch_says_which_messages_of_the_canary_have_not_arrived(refeed, monkeypatch, seconds):
    monkeypatch.setattr(cli.backfill_watch, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(cli.backfill_watch, "_SETTLE_SECONDS", seconds)
    page = {"messages": [{"row": 0, "code": None}], "next_page_token": None, "advice": "The stream is DRAINED."}
    monkeypatch.setattr(JobCalls, "read_part", lambda *_, **__: page)
    answer_watch(monkeypatch, backfill("PAUSED", 2, **CANARY))
    said = refeed("watch", "bf_1").err
    assert "1 message of the canary is not in the staging table. The stream is DRAINED.\n" in said
    assert "Before you resume: refeed missing bf_1\n" in said


def test_a_watch_says_nothing_of_a_canary_whose_target_nobody_verifies(refeed, monkeypatch):
    def refuse(*_, **__):
        raise RequestRefusedError("No source reads it.", code="staging_unknown")

    monkeypatch.setattr(JobCalls, "read_part", refuse)
    answer_watch(monkeypatch, backfill("PAUSED", 2, **CANARY))
    result = refeed("watch", "bf_1")
    assert (result.code, "of the canary" in result.err) == (1, False)


def test_create_and_watch_warn_that_nothing_arrives(refeed, created, monkeypatch):
    nobody = {"code": "nobody_receives", "message": "No subscription takes it."}
    nothing = {"code": "nothing_selected", "message": "The query selects nothing."}
    answer_watch(
        monkeypatch,
        backfill("PENDING", warnings=[nobody]),
        backfill("RUNNING", warnings=[nobody]),
        backfill("SUCCEEDED", warnings=[nobody, nothing]),
    )
    words = ("backfill", "orders", "--query", "SELECT 1", "--plan", "pl_1")
    result = refeed(*words, "--watch")
    for text in (result.err, result.out):
        assert text.count("warning: No subscription takes it. (nobody_receives)\n") == 1
        assert text.count("warning: The query selects nothing. (nothing_selected)\n") == 1
    monkeypatch.setattr(KindCalls, "create", lambda self, request, **_: backfill("PENDING", warnings=[nobody]))
    made = refeed(*words)
    assert "warning: No subscription takes it. (nobody_receives)" in made.out


@pytest.mark.parametrize("words", [["pause"], ["resume"], ["cancel"], ["approve"], ["revert", "--yes"]])
def test_every_verb_is_done_and_says_what_may_still_go_out(refeed, acted, words):
    result = refeed(*words, "bf_1")
    assert acted == [(words[0], None)]
    assert "at most 4,000 more may be published" in result.out
    assert json.loads(refeed(*words, "bf_1", "--json").out)["state"] == "PAUSED"


def test_a_revert_asks_before_it_deletes_rows_and_says_how_many_it_deleted(refeed, acted, monkeypatch):
    landed = {"state": "complete", "published": 7, "landed": 7, "merged": 0}
    monkeypatch.setattr(JobCalls, "read", lambda *_: backfill("SUCCEEDED", 7, verification=landed))
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    unanswered = refeed("revert", "bf_1")
    assert (unanswered.code, acted) == (1, [])
    assert "Delete the 7 rows of bf_1 from the staging table of orders?" in unanswered.err
    assert "use --yes" in unanswered.err
    reverted = {"by": "ann", "at": "2026-01-01T00:00:00Z", "rows": 7}
    gone = {**landed, "state": "incomplete", "landed": 0, "missing": 7}
    answer = backfill("SUCCEEDED", 7, verification=gone, revert=reverted)
    monkeypatch.setattr(JobCalls, "act", lambda *_: answer)
    done = refeed("revert", "bf_1", "--yes", "--watch")
    assert done.code == 0, done.err
    assert "reverted   by ann at 2026-01-01T00:00:00Z, 7 rows deleted from staging" in done.out
    # One that has not ended is refused by the API, without a question.
    monkeypatch.setattr(JobCalls, "read", lambda *_: backfill("RUNNING"))
    assert "Delete" not in refeed("revert", "bf_1").err


@pytest.mark.parametrize(("verb", "state"), [("pause", "PAUSED"), ("resume", "RUNNING"), ("cancel", "CANCELLING")])
def test_an_action_that_was_done_already_says_that_nothing_changed(refeed, monkeypatch, verb, state):
    answers = []
    monkeypatch.setattr(JobCalls, "read", lambda *_: backfill("RUNNING", etag='"1"'))
    monkeypatch.setattr(JobCalls, "act", lambda *_: answers.pop())
    for etag, is_said in (('"1"', True), ('"2"', False), (None, False)):
        answers.append(backfill(state, 1, etag=etag))
        said = refeed(verb, "bf_1")
        assert (said.code, f"Nothing changed: bf_1 is {state} already." in said.err) == (0, is_said), said.err


@pytest.mark.parametrize(("state", "code"), [("CANCELLED", 0), ("SUCCEEDED", 1)])
def test_a_watched_cancel_ends_well_once_the_job_is_cancelled(refeed, acted, monkeypatch, state, code):
    answer_watch(monkeypatch, backfill(state, 2))
    assert refeed("cancel", "bf_1", "--watch").code == code
    assert acted == [("cancel", None)]


@pytest.mark.parametrize(
    ("verification", "reverted", "code"),
    [
        *(("complete", None, 0), ("unknown", None, 0), ("incomplete", None, 1), ("incomplete", {"by": "ann"}, 0)),
        ("pending", None, 1),
    ],
)
def test_a_watch_does_not_end_well_if_messages_are_missing(refeed, monkeypatch, verification, reverted, code):
    found = {"state": verification, "landed": 0, "missing": 7}
    if reverted is not None:
        reverted = {**reverted, "at": "2026-01-01T00:00:00Z", "rows": 7}
    ended = backfill("SUCCEEDED", 7, verification=found, revert=reverted, finished_at="2026-01-01T00:00:00Z")
    monkeypatch.setattr(JobCalls, "read", lambda *_: ended)
    answer_watch(monkeypatch, ended)
    assert refeed("watch", "bf_1").code == code


@pytest.mark.parametrize("state", ["unknown", "complete"])
def test_a_watch_does_not_let_what_nobody_can_verify_look_verified(refeed, monkeypatch, state):
    answer_watch(monkeypatch, backfill("SUCCEEDED", 7, verification={"state": state, "advice": None}))
    result = refeed("watch", "bf_1")
    is_said = "Not verified: exit code 0 means only that all messages were published." in result.err
    assert (result.code, is_said) == (0, state == "unknown")


def test_a_watch_that_ends_at_a_pause_names_the_topics_that_have_no_backfill_yet(refeed, created, monkeypatch):
    plan = {"plan_id": "pl_1", "rows": 2, "topic": "orders"}
    monkeypatch.setattr(RefeedApi, "plan_backfill", lambda *_, **__: plan)
    monkeypatch.setattr(RefeedApi, "list_topics", lambda _: {"topics": []})
    answer_watch(monkeypatch, backfill("PAUSED", 1))
    words = (
        "backfill",
        "orders",
        "members",
        "hooks",
        "--from",
        "2h",
        "--start-paused",
        "--yes",
        "--watch",
        "--json",
    )
    result = refeed(*words)
    assert (result.code, len(created)) == (1, 1)
    assert "the backfill of members, hooks." in result.err


def test_a_retry_says_what_it_sends_and_may_be_watched(refeed, acted, monkeypatch):
    answer_watch(monkeypatch, backfill("SUCCEEDED", 2))
    assert refeed("retry", "bf_1", "--only", "failed", "--watch").code == 0
    assert refeed("retry", "bf_1").code == 0
    assert acted == [("retry", {"only": "failed"}), ("retry", None)]


def test_a_list_of_backfills_has_separated_thousands_and_times_in_minutes(refeed, monkeypatch):
    found = backfill("RUNNING", 1500, kind="backfill", created_by="ann") | {"created_at": "2026-01-01T00:00:00.5Z"}
    found["progress"]["selected"] = 12000
    monkeypatch.setattr(JobCalls, "list", lambda *_, **__: {"jobs": [found], "next_page_token": None})
    shown = refeed("get", "backfills").out.splitlines()[1]
    assert " ".join(shown.split()) == "bf_1 RUNNING orders 1,500 / 12,000 ann 2026-01-01 00:00"
    found |= {"finished_at": "2026-01-01T02:00:00Z", "error": {"code": "driver_died"}, "description": "Hole"}
    wide = refeed("get", "backfills", "-o", "wide").out.splitlines()
    assert wide[0].split()[-3:] == ["ENDED", "ERROR", "DESCRIPTION"]
    assert wide[1].endswith("2026-01-01 00:00  2026-01-01 02:00  driver_died  Hole")
    # Before its query has run, a plan may have counted the rows.
    for approval, rows in (({"rows": 800}, "800"), (None, "unknown")):
        found |= {"progress": {"selected": None, "published": None}, "approval": approval}
        assert f"orders  0 / {rows} " in refeed("get", "backfills").out


def test_a_change_sends_what_is_to_change_and_nothing_else(refeed, monkeypatch):
    sent = []

    def change(self, backfill_id, changes):
        sent.append(changes)
        return backfill("RUNNING")

    monkeypatch.setattr(JobCalls, "change", change)
    assert refeed("set", "bf_1", "--rate-limit", "5", "--description", "").code == 0
    assert refeed("set", "bf_1", "--rate-limit", "0", "--label", "a=b").code == 0
    assert sent == [
        {"rate_limit_messages_per_second": 5.0, "description": ""},
        {"rate_limit_messages_per_second": None, "labels": {"a": "b"}},
    ]
    assert refeed("set", "bf_1").code == 2


@pytest.mark.parametrize(
    ("command", "page", "shown"),
    [
        (
            "dead-letters",
            {
                "dead_letters": [{"row": 5, "message_id": "m5", "code": "gave_up", "reason": "no answer"}],
                "next_page_token": "5",
            },
            "5    m5          gave_up  no answer",
        ),
        (
            "missing",
            {
                "messages": [{"row": 6, "message_id": None, "topic": "orders", "publish_time": "x"}],
                "next_page_token": None,
                "advice": "The stream is DRAINED.",
            },
            "6                orders  x",
        ),
        (
            "missing",
            {
                "messages": [
                    {
                        "row": 6,
                        "message_id": "m6",
                        "topic": "orders",
                        "publish_time": "x",
                        "code": "not_json",
                        "reason": "It is no JSON.",
                    }
                ],
                "next_page_token": None,
            },
            "6    m6          orders  x          not_json     It is no JSON.",
        ),
    ],
)
def test_what_became_of_it_is_listed(refeed, monkeypatch, command, page, shown):
    monkeypatch.setattr(JobCalls, "read_part", lambda self, id_, what, **params: page)
    monkeypatch.setattr(RefeedApi, "list_dead_letters", lambda self, **params: page)
    result = refeed(command, "bf_1")
    assert result.out.splitlines()[1] == shown
    assert ("--page-token 5" in result.err) == (page.get("next_page_token") == "5")
    assert ("The stream is DRAINED." in result.err.splitlines()) == ("advice" in page)
    assert json.loads(refeed(command, "bf_1", "--json").out) == page


@pytest.mark.parametrize("by", [[], ["--by", "reason"]])
@pytest.mark.parametrize(("letters", "named"), [(2, True), (0, False), (None, False)])
def test_messages_that_became_dead_letters_of_the_pipeline_are_found_with_missing(
    refeed, monkeypatch, by, letters, named
):
    page = {"dead_letters": [], "reasons": [], "next_page_token": None}
    verification = {"state": "incomplete", "landed": 5, "missing": 2, "dead_letters": letters}
    found = backfill("SUCCEEDED", 7, verification=None if letters is None else verification)
    monkeypatch.setattr(RefeedApi, "list_dead_letters", lambda self, **params: page)
    monkeypatch.setattr(RefeedApi, "count_dead_letters", lambda self, *, job: page)
    monkeypatch.setattr(JobCalls, "read", lambda self, id_: found)
    result = refeed("dead-letters", "bf_1", *by)
    assert (result.code, "refeed missing bf_1" in result.err) == (0, named)
    assert json.loads(refeed("dead-letters", "bf_1", *by, "--json").out) == page


def test_dead_letters_are_counted_by_reason(refeed, monkeypatch):
    example = {"example_row": 5, "example_message_id": "m5", "example_reason": "no answer"}
    found = {"reasons": [{"code": "gave_up", "messages": 12, **example}]}
    asked = []

    def count(self, start=None, *, job=None):
        asked.append((start, job))
        return found

    monkeypatch.setattr(RefeedApi, "count_dead_letters", count)
    result = refeed("dead-letters", "bf_1", "--by", "reason")
    assert result.out.splitlines()[1] == "gave_up  12        5          no answer"
    assert json.loads(refeed("dead-letters", "bf_1", "--by", "reason", "--json").out) == found
    assert asked == [(None, "bf_1")] * 2
    assert refeed("dead-letters", "bf_1", "--by", "topic").code == 2


def test_some_dead_letters_are_retried_by_code_or_by_row(refeed, acted):
    assert refeed("retry", "bf_1", "--only", "failed", "--code", "gave_up").code == 0
    assert refeed("retry", "bf_1", "--only", "failed", "--row", "4", "--row", "9").code == 0
    assert acted == [
        ("retry", {"only": "failed", "code": "gave_up"}),
        ("retry", {"only": "failed", "rows": [4, 9]}),
    ]
