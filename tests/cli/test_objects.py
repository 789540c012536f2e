"""How a command names one object of any kind, and what guesses are answered with."""

import json
import re
import threading
import time
from typing import Any

import pytest
import typer
import yaml

from cli.guesses import GUESSES
from cli.kinds import KINDS
from cli.main import app
from cli.objects import ObjectKinds
from cli.schedule import SCHEDULE
from cli.terminal import COLUMNS
from client.api import RefeedApi
from client.jobs import JobCalls
from model.errors import InputError, RequestRefusedError

NEWEST_BACKFILL = "bf_01M7Z1H20HKNZ6PGKRYCX6J212"
FIRST, SECOND = "mg_01M7Z1H20HKNZ6PGKRYCX6J210", "mg_01M7Z1H20HKNZ6PGKRYCX6J211"
NIGHTLY = {"name": "nightly", "job": "merge", "cron": "15 0 * * *", "time_zone": "UTC", "paused": None}
NIGHTLY |= {"next_slots": ["2026-01-03T00:15:00Z"], "runs": []}
NOTHING_LEFT: dict[str, Any] = {"discard_staged": False, "discarded_rows": {}, "not_reverted": [], "error": None}


@pytest.fixture
def calls(monkeypatch):
    """What was asked of an API with two merges, the newer one of bob, the other and a backfill of ann."""
    asked = []
    jobs = [
        {"id": SECOND, "kind": "merge", "created_by": "bob", "created_at": "2026-01-02T00:00:00Z"},
        {"id": FIRST, "kind": "merge", "created_by": "ann", "created_at": "2026-01-01T18:00:00Z"},
        {"id": NEWEST_BACKFILL, "kind": "backfill", "created_by": "ann", "created_at": "2026-01-01T12:00:00Z"},
    ]

    def list_jobs(_, *, page_size, **wanted):
        asked.append(("list", wanted))
        found = [
            each
            for each in jobs
            if each["kind"] == wanted.get("kind", each["kind"])
            and each["created_by"] == wanted.get("created_by", each["created_by"])
            and each["id"].startswith(wanted.get("id_prefix", ""))
        ]
        return {"jobs": found[:page_size], "next_page_token": None}

    def act(_, job_id, verb, body=None):
        asked.append((verb, job_id))
        progress = {"merged": 0, "sources": 1}
        shown = {"dry_run": False, "sources": [], "error": None, "progress": progress}
        return {"id": job_id, "state": "CANCELLING", "topic": "orders", **shown}

    monkeypatch.setattr(JobCalls, "list", list_jobs)
    monkeypatch.setattr(JobCalls, "act", act)
    monkeypatch.setattr(RefeedApi, "read_session", lambda _: {"name": "ann"})
    return asked


@pytest.mark.parametrize(
    ("name", "job_id"),
    [
        (FIRST, FIRST),
        (FIRST[:-1] + "0", FIRST),
        (f"merge/{SECOND}", SECOND),
        (f"job/{SECOND}", SECOND),
        ("merge/latest", FIRST),
        ("backfill/bf_01M7", NEWEST_BACKFILL),
        ("latest", FIRST),
    ],
)
def test_a_job_is_named_by_its_id_or_as_the_newest(refeed, calls, name, job_id):
    assert refeed("cancel", name).code == 0
    assert calls[-1] == ("cancel", job_id)


@pytest.mark.parametrize("verb", ["pause", "revert", "approve"])
def test_latest_is_the_newest_job_also_if_it_does_not_have_the_verb(refeed, calls, verb):
    wrong = refeed(verb, "latest")
    assert (wrong.code, f"Your newest job {FIRST} is a merge." in wrong.err) == (2, True), wrong.err
    assert [what for what, _ in calls] == ["list"]


def test_the_beginning_of_an_id_is_enough_where_no_other_id_begins_so(refeed, calls):
    assert refeed("cancel", "bf_01M7").code == 0
    assert calls[-1] == ("cancel", "bf_01M7Z1H20HKNZ6PGKRYCX6J212")
    wrong = refeed("cancel", "mg_01M7")
    assert (wrong.code, f"Several ids begin with mg_01M7, such as {SECOND} and {FIRST}." in wrong.err) == (2, True)
    wrong = refeed("cancel", "mg_02")
    assert (wrong.code, "No merge has an id that begins with mg_02." in wrong.err) == (2, True)
    assert [what for what, _ in calls] == ["list", "cancel", "list", "list"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pause", FIRST), "'refeed pause' works on schedules and backfills."),
        (("watch", "topic/orders"), "topic/orders is a topic."),
        (("describe", "topic/orders"), "topic/orders is a topic. To see its messages: refeed histogram orders"),
        (("retry", "up_01M7Z1H20HKNZ6PGKRYCX6J212"), "make a new update with 'refeed update STREAM'."),
        (("pause", "stream/backup"), "stream/backup is a stream. Use: refeed drain backup"),
        (("cancel", "bf_"), "The id 'bf_' has only its prefix."),
        (("pause", "up_01M7Z1H20HKNZ6PGKRYCX6J212"), "is an update."),
        (
            ("cancel", "backup"),
            "'backup' is not the id of an object. To name an object by its kind, write stream/backup.",
        ),
        (
            ("describe", "strem/backup"),
            "write stream/backup, schedule/backup, source/backup, manifest/backup or template/backup.",
        ),
        (("retry", SECOND, "--only", "failed"), "work only with a backfill"),
        (("set", SECOND, "--rate-limit", "5"), "'refeed set' works on streams and backfills."),
        (("set", "stream/backup", "--rate-limit", "5"), "Of a stream you can change --batch-seconds"),
        (("get", "strems"), "There is no list of 'strems'. Did you mean streams"),
        (("get", "nothing"), "There is no list of 'nothing'. 'refeed get' lists streams,"),
        (("get", "jobs", "--state", "runing"), "'RUNING' is not a state of a job. Did you mean RUNNING"),
        (("get", "jobs", "--kind", "foo"), "'foo' is not a kind of job. Known are: backfill, merge, compaction,"),
        (("get", "topics", "--stream", "backup"), "--stream does not work with 'refeed get topics'."),
    ],
)
def test_what_can_not_be_meant_says_what_can(refeed, calls, monkeypatch, words, said):
    def refuse(_, method, path, **__):
        raise RequestRefusedError("There is none. (HTTP 404)", code="not_found", status=404)

    monkeypatch.setattr(RefeedApi, "call", refuse)
    wrong = refeed(*words)
    assert (wrong.code, said in " ".join(wrong.err.split())) == (2, True), wrong.err
    assert not any(what in {"cancel", "pause", "retry"} for what, _ in calls)


VERBS = sorted({"describe", "watch", *(verb for kind in KINDS.kinds for verb in (*kind.acts, *kind.verbs))})


@pytest.mark.parametrize("verb", VERBS)
def test_whatever_lacks_a_verb_is_answered_with_a_command_that_takes_it(calls, verb):
    commands = {command.name for command in typer.main.get_command(app).commands.values()}
    with RefeedApi("http://127.0.0.1:1") as api:
        for kind in KINDS.kinds:
            if kind.has(verb) or kind.name == "job":
                continue
            name = "orders" if kind.prefix is None else f"{kind.prefix}_01M7Z1H20HKNZ6PGKRYCX6J212"
            with pytest.raises(InputError) as refused:
                KINDS.find(api, f"{kind.name}/{name}", verb)
            answer = refused.value.message.partition(
                f" is a{'n' if kind.name[0] in 'aeiou' else ''} {kind.name}. "
            )[2]
            named = re.findall(r"refeed ([a-z-]+)", answer)
            assert named, (verb, kind.name)
            assert set(named) <= commands, answer


@pytest.mark.parametrize("what", ["jobs", "snapshots", "updates"])
def test_a_list_of_an_unknown_stream_is_refused_and_not_empty(refeed, calls, monkeypatch, what):
    def call(_, method, path, **__):
        if path == "/streams/bakcup":
            raise RequestRefusedError("There is no stream bakcup. (HTTP 404)", code="stream_not_found", status=404)
        return {"snapshots": [], "name": "backup", "next_page_token": None}

    monkeypatch.setattr(RefeedApi, "call", call)
    monkeypatch.setattr(JobCalls, "list", lambda *_, **__: {"jobs": [], "next_page_token": None})
    wrong = refeed("get", what, "--stream", "bakcup")
    assert "There is no stream bakcup." in wrong.err
    assert refeed("get", what, "--stream", "stream/backup").code == 0


def test_a_restore_takes_the_newest_completed_snapshot_as_latest(refeed, monkeypatch):
    states = {"sn_3": "FAILED", "sn_2": "COMPLETED", "sn_1": "COMPLETED"}
    made = [{"id": each, "state": state} for each, state in states.items()]
    asked = []

    def roll_back(_, name, snapshot, **__):
        asked.append(snapshot)
        return {"id": "rs_1", "stream": name, "snapshot": snapshot, "state": "PENDING", **NOTHING_LEFT}

    monkeypatch.setattr(RefeedApi, "list_snapshots", lambda _, *, stream: made if stream == "backup" else [])
    monkeypatch.setattr(RefeedApi, "read_stream", lambda _, name: {"name": name})
    monkeypatch.setattr(RefeedApi, "read_snapshot", lambda _, snapshot: {"id": snapshot, "stream": "backup"})
    monkeypatch.setattr(RefeedApi, "roll_back_stream", roll_back)
    found = refeed("restore", "stream/backup", "latest", "--yes")
    assert (found.code, asked) == (0, ["sn_2"]), found.err
    none = refeed("restore", "pipeline-default", "latest", "--yes")
    assert (none.code, "To make one: refeed snapshot pipeline-default" in none.err) == (2, True), none.err


@pytest.mark.parametrize("state", ["STARTING", "RUNNING"])
def test_a_watched_restore_says_that_its_stream_does_not_run_yet(refeed, monkeypatch, state):
    ended = {"id": "rs_1", "kind": "restore", "stream": "backup", "snapshot": "sn_1", "state": "SUCCEEDED"}
    monkeypatch.setattr(JobCalls, "read", lambda *_: {**ended, **NOTHING_LEFT})
    monkeypatch.setattr(RefeedApi, "read_stream", lambda _, name: {"name": name, "state": state})
    watched = refeed("watch", "rs_1")
    assert watched.code == 0
    assert ("does not run yet: it is STARTING." in watched.err) == (state == "STARTING"), watched.err


def test_sources_are_listed_and_shown_with_their_unknown_fields_and_enum_values(refeed, monkeypatch):
    none = {"total": 0, "largest": []}
    unknown = {"total": 1207, "largest": [{"what": "status", "count": 1200}, {"what": "colour", "count": 7}]}
    staged = {
        "since": "2026-01-02T10:00:00Z",
        "at": "2026-01-02T11:00:00Z",
        "rows": 3000,
        "unknown_fields": unknown,
    }
    staged |= {"missing_fields": none, "refused": none}
    names = ("topic", "group", "subscription", "message", "reporting", "publish", "archived", "merged", "fault")
    source = {**dict.fromkeys(names), "name": "orders", "is_inferred": False, "key": [], "tables": []}
    source |= {"last_type_change": None, "staged": staged}
    monkeypatch.setattr(RefeedApi, "list_sources", lambda _: {"sources": [source]})
    monkeypatch.setattr(RefeedApi, "read_source", lambda *_: source)
    monkeypatch.setattr(RefeedApi, "list_streams", lambda _: {"streams": []})
    listed = refeed("get", "sources", "-o", "wide").out.splitlines()
    assert "STAGED  UNKNOWN  DEAD LETTERS" in listed[0]
    assert "3,000    1,207             0" in listed[1]
    source["merged"] = {"state": "merged", "finished_at": "2026-01-02T03:15:00Z"}
    narrow = refeed("get", "sources").out.splitlines()
    assert [line.split()[0] for line in narrow[:2]] == ["SOURCE", "orders"]
    assert (narrow[1].endswith("  2026-01-02 03:15"), max(map(len, narrow[:2])) <= COLUMNS) == (True, True)
    assert "UNKNOWN counts fields and enum values that the schema does not have" in " ".join(listed)
    assert "refeed describe source/orders" in " ".join(listed)
    shown = refeed("describe", "source/orders").out
    assert "unknown fields and enum values: status, 1,200 times since then" in shown


def test_get_alone_lists_the_kinds(refeed):
    found = refeed("get")
    assert found.code == 0
    for plural in ("streams", "jobs", "sources", "topics", "schedules"):
        assert f"refeed get {plural}\n" in found.out


def test_a_list_without_pages_has_a_limit_too(refeed, monkeypatch):
    monkeypatch.setattr(RefeedApi, "list_sources", lambda _: {"sources": [{"name": "a"}, {"name": "b"}]})
    assert refeed("get", "sources", "--limit", "1", "-o", "name").out == "source/a\n"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["events"], "key/ann"),
        (["dead-letters"], "orders"),
        (["dead-letters", "bf_1"], "7"),
        (["missing", "bf_1"], "7"),
        (["messages", "orders"], "7"),
    ],
)
def test_every_list_has_a_limit_and_forms_for_programs(refeed, monkeypatch, words, name):
    one = {"message_id": "7", "source": "orders", "code": "not_json", "resource": "key", "id": "ann"}
    lists = ("events", "reasons", "dead_letters", "messages")
    page = {**{each: [one] for each in lists}, "next_page_token": None}
    for name_of_call in ("list_events", "count_dead_letters", "list_dead_letters", "list_messages"):
        monkeypatch.setattr(RefeedApi, name_of_call, lambda *_, **__: page)
    monkeypatch.setattr(JobCalls, "read_part", lambda *_, **__: page)
    monkeypatch.setattr(ObjectKinds, "find", lambda *_: (None, "bf_1"))
    assert refeed(*words, "--limit", "5", "-o", "name").out.splitlines() == [name]
    assert json.loads(refeed(*words, "-o", "json").out) == json.loads(refeed(*words, "--json").out) == page
    assert yaml.safe_load(refeed(*words, "-o", "yaml").out) == page


@pytest.mark.parametrize(
    ("discarded", "line"),
    [
        ({"staging.orders": 1200, "staging.members": 1}, "discarded: 1,200 rows of staging.orders"),
        ({}, "discarded: no rows"),
    ],
)
def test_a_restore_says_how_many_staged_rows_it_discarded(refeed, monkeypatch, discarded, line):
    ended = {"id": "rs_1", "kind": "restore", "stream": "shop", "snapshot": "sn_1", "state": "SUCCEEDED"}
    ended |= {**NOTHING_LEFT, "discard_staged": True, "discarded_rows": discarded}
    monkeypatch.setattr(JobCalls, "read", lambda *_: ended)
    monkeypatch.setattr(RefeedApi, "read_stream", lambda _, name: {"name": name, "state": "RUNNING"})
    assert line in refeed("watch", "rs_1").out


@pytest.mark.parametrize("words", [["missing"], ["dead-letters"], ["dead-letters", "--by", "reason"]])
@pytest.mark.parametrize("name", ["latest", f"backfill/{NEWEST_BACKFILL}", NEWEST_BACKFILL[:-1], NEWEST_BACKFILL])
def test_parts_of_a_backfill_are_asked_for_by_every_name_of_it(refeed, calls, monkeypatch, words, name):
    def read(_, job, *__, **___):
        calls.append(job)
        return {"messages": [], "dead_letters": [], "reasons": [], "next_page_token": None}

    for name_of_call in ("read", "read_part"):
        monkeypatch.setattr(JobCalls, name_of_call, read)
    for name_of_call in ("count_dead_letters", "list_dead_letters"):
        monkeypatch.setattr(RefeedApi, name_of_call, lambda api, job, **params: read(api, job))
    assert refeed(*words, name).code == 0
    assert calls[-1] == NEWEST_BACKFILL
    wrong = refeed(*words, FIRST)
    assert (wrong.code, f"'refeed {words[0]}' works on backfills." in wrong.err) == (2, True), wrong.err


def test_a_bare_name_is_enough_for_the_only_object_of_that_name(refeed, monkeypatch):
    there = {"/streams/pipeline-default", "/sources/orders", "/schedules/orders", "/manifests/orders"}

    def call(_, method, path, **__):
        if path not in there and path != "/jobs":
            raise RequestRefusedError("There is none. (HTTP 404)", code="not_found", status=404)
        return {"name": path.rpartition("/")[2], "kind": "Schedule", "jobs": [], "release": "1"}

    monkeypatch.setattr(RefeedApi, "call", call)
    shown = refeed("describe", "pipeline-default", "--json")
    assert (shown.code, json.loads(shown.out)["name"]) == (0, "pipeline-default")
    several = refeed("describe", "orders")
    assert (several.code, "write schedule/orders or source/orders." in several.err) == (2, True), several.err
    done = []
    monkeypatch.setattr(RefeedApi, "act_on_schedule", lambda _, *words: done.append(words) or NIGHTLY)
    assert (refeed("pause", "orders").code, done) == (0, [("orders", "pause")])
    assert "write schedule/nowhere." in " ".join(refeed("pause", "nowhere").err.split())


def test_a_merge_that_is_run_now_is_not_said_to_be_of_a_time():
    moments = dict.fromkeys(("slot", "slot_start", "slot_end"), "2026-01-02T00:15:00Z")
    run = {**moments, "state": "RUNNING", "job_kind": "merge", "job_id": "mg_1", "why": None, "asked_by": "ann"}
    schedule = {"name": "nightly", "job": "merge", "cron": "15 0 * * *", "time_zone": "UTC", "paused": None}
    said = list(SCHEDULE.lines({**schedule, "next_slots": [], "runs": [run]}))[-1]
    assert said.endswith("requested by ann at 2026-01-02 00:15, of all rows that are not merged yet")


def made_run(day, state, why=None):
    moments = dict.fromkeys(("slot", "slot_start", "slot_end"), f"2026-01-0{day}T00:15:00Z")
    return {**moments, "state": state, "job_kind": "merge", "job_id": None, "why": why, "asked_by": None}


@pytest.mark.parametrize(
    ("runs", "last", "below"),
    [
        ([], "no run yet", []),
        ([made_run(2, "SUCCEEDED"), made_run(1, "FAILED", "It died.")], "SUCCEEDED 2026-01-02 00:15", []),
        (
            [made_run(3, "SKIPPED", "It has not ended."), made_run(2, "SKIPPED", "So."), made_run(1, "RUNNING")],
            "RUNNING 2026-01-01 00:15, then 2 slots skipped",
            ["nightly: SKIPPED 2026-01-03 00:15: It has not ended."],
        ),
        (
            [made_run(2, "SKIPPED", "Nothing.")],
            "no run yet, then 1 slot skipped",
            ["nightly: SKIPPED 2026-01-02 00:15: Nothing."],
        ),
    ],
)
def test_a_schedule_says_how_its_last_run_went_and_what_was_skipped_since_and_why(runs, last, below):
    lines = list(SCHEDULE.table({"schedules": [{**NIGHTLY, "runs": runs}]}))
    assert lines[0].endswith("  LAST SLOT (UTC)")
    assert (lines[1].endswith(f"  {last}"), lines[2:]) == (True, below)
    assert f"  last: {last}" in list(SCHEDULE.lines({**NIGHTLY, "runs": runs}))


def test_the_next_slot_is_said_in_utc_and_in_the_schedule_s_zone():
    berlin = {**NIGHTLY, "time_zone": "Europe/Berlin", "next_slots": ["2026-12-01T23:15:00Z"], "runs": []}
    assert "  next: 2026-12-01 23:15 UTC (12-02 00:15 in Europe/Berlin)" in list(SCHEDULE.lines(berlin))
    assert "  next: 2026-12-01 23:15 UTC" in list(SCHEDULE.lines({**berlin, "time_zone": "UTC"}))


@pytest.mark.parametrize("guess", GUESSES)
def test_a_guess_is_answered_with_a_command_that_there_is(refeed, guess):
    wrong = refeed(*guess.split(), "--json")
    assert wrong.code == 2
    assert GUESSES[guess] in json.loads(wrong.err)["detail"]
    root = typer.main.get_command(app)
    for command in re.findall(r"refeed ([a-z-]+)(?: ([a-z-]+))?", GUESSES[guess]):
        found = root.commands[command[0]]
        assert not command[1] or command[1] in getattr(found, "commands", {command[1]: None})


@pytest.mark.parametrize(
    ("line", "right"),
    [
        ("topic create orders", "refeed attach TOPIC"),
        ("topics create orders", "refeed attach TOPIC"),
        ("lag", "refeed status"),
        ("dlq", "Use: refeed dead-letters"),
        ("get dead-letters", "Use: refeed dead-letters"),
        ("backlog", "Use: refeed status"),
        ("audit", "Use: refeed events"),
        ("start orders", "refeed launch STREAM, or refeed resume OBJECT"),
        ("rerun schedule/nightly", "Use: refeed run-now NAME"),
        ("failed", "refeed get jobs --state FAILED"),
        ("merge rerun mg_1", "refeed rerun ID"),
        ("status orders", "refeed describe OBJECT"),
        ("backfill orders --last 10m", "refeed backfill TOPIC --from 10m"),
        ("backfill orders --last=10m", "refeed backfill TOPIC --from 10m"),
        ("get pipelines", "refeed get streams"),
        ("get webhooks", "REFEED_NOTIFY_URL"),
        ("webhook create", "REFEED_NOTIFY_URL"),
        ("get keys", "Use: refeed key list"),
        ("get audit", "GET /audit"),
        ("get releases", "Use: refeed release list"),
        ("settings", "docs/reference/settings.md"),
        ("get events", "Use: refeed events"),
    ],
)
def test_a_newcomers_guess_is_answered_with_what_does_it(refeed, line, right):
    wrong = refeed(*line.split())
    assert (wrong.code, right in " ".join(wrong.err.split())) == (2, True), wrong.err


def test_a_topic_may_be_called_as_a_guess_is(refeed, monkeypatch):
    monkeypatch.setenv("REFEED_API_URL", "http://127.0.0.1:1")
    assert refeed("backfill", "list").code == 2
    assert refeed("backfill", "list", "--from", "1h").code == 3, "the API does not answer"


def test_every_kind_has_a_list_and_a_name_of_its_own():
    names = [name for kind in KINDS.kinds for name in (kind.name, kind.plural)]
    assert len(names) == len(set(names))
    assert all(kind.lines for kind in KINDS.kinds if kind.read)


def test_every_kind_that_is_described_says_what_to_run_next():
    # Those of the others stand among their own lines.
    own = {"stream", "backfill", "manifest"}
    assert {kind.name for kind in KINDS.kinds if kind.read and not kind.next} == own


def test_a_job_is_watched_until_it_has_ended_and_tried_again_where_it_failed():
    merge = next(kind for kind in KINDS.kinds if kind.name == "merge")
    said = [merge.next({"id": "mg_1", "state": state}) for state in ("RUNNING", "FAILED", "SUCCEEDED")]
    assert said == ["refeed watch mg_1", "refeed retry mg_1", "refeed logs mg_1"]
    sources = [{"source": "a", "error": None}, {"source": "b", "error": {"code": "rules_unfit"}}]
    unfit = {"id": "mg_1", "state": "FAILED", "sources": sources}
    assert merge.next(unfit) == "refeed describe source/b", "a retry has the rules that do not fit"
    assert merge.next({**unfit, "state": "RUNNING"}) == "refeed watch mg_1"


def test_names_that_are_listed_are_names_that_commands_take(refeed, calls):
    names = refeed("get", "jobs", "-o", "name").out.splitlines()
    assert names == [f"merge/{SECOND}", f"merge/{FIRST}", "backfill/bf_01M7Z1H20HKNZ6PGKRYCX6J212"]
    for name in names:
        assert refeed("cancel", name).code == 0
    assert [job_id for what, job_id in calls if what == "cancel"] == [each.split("/")[1] for each in names]
    assert refeed("get", "merges", "-oname").out.splitlines() == names[:2]


@pytest.mark.parametrize("words", [("--json",), ("-o", "json"), ("-ojson",), ("--output=json",)])
def test_json_is_the_same_however_it_is_asked_for_and_so_are_errors(refeed, calls, words):
    assert [each["id"] for each in json.loads(refeed("get", "merges", *words).out)["merges"]] == [SECOND, FIRST]
    assert json.loads(refeed("get", "strems", *words).err)["code"] == "input_invalid"
    assert calls == [("list", {"kind": "merge"})]


def test_yaml_is_the_same_values(refeed, calls):
    found = refeed("get", "jobs", "--output", "yaml").out
    assert yaml.safe_load(found) == json.loads(refeed("get", "jobs", "--json").out)
    assert calls


@pytest.fixture
def complete(refeed, monkeypatch):
    """Returns the words that bash offers for the last word of a line, which may be empty."""

    def run(line):
        monkeypatch.setenv("_REFEED_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", f"refeed {line}")
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" "))))
        done = refeed()
        assert done.err == ""
        return list(done.out.split())

    return run


def test_a_shell_completes_objects_that_have_the_verb(complete, calls, monkeypatch):
    assert complete("cancel mg_") == complete("cancel mg") == [SECOND, FIRST]
    assert complete("cancel mg_01M7Z1H20HKNZ6PGKRYCX6J210") == [FIRST]
    assert complete("pause mg_") == [], "a merge can't be paused"
    assert complete("cancel merge/") == [f"merge/{SECOND}", f"merge/{FIRST}"]
    assert ("list", {"kind": "merge", "id_prefix": "mg_"}) in calls
    streams = {"streams": [{"name": name} for name in ("backup", "pipeline-a")]}
    monkeypatch.setattr(RefeedApi, "list_streams", lambda _: streams)
    assert complete("describe str") == ["stream/backup", "stream/pipeline-a"]
    assert complete("describe stream/pip") == ["stream/pipeline-a"]
    assert complete("drain b") == ["backup"]
    assert {"stream/", "schedule/", "source/"} <= set(complete("describe s"))
    assert complete("get stre") == ["streams"]


def test_a_shell_that_completes_waits_a_second_and_shows_no_error(complete, monkeypatch):
    def hang(_):
        gate.wait(30)

    gate = threading.Event()
    monkeypatch.setattr(RefeedApi, "list_streams", hang)
    begun = time.monotonic()
    try:
        assert complete("drain b") == []
    finally:
        gate.set()
    assert time.monotonic() - begun < 20
    monkeypatch.setattr(RefeedApi, "list_streams", lambda _: {})
    assert complete("drain b") == []
    many = {"streams": [{"name": f"backup-{number}"} for number in range(200)]}
    monkeypatch.setattr(RefeedApi, "list_streams", lambda _: many)
    assert len(complete("drain b")) == 50
