"""``refeed update --dry-run``: what it refuses before it asks; tests/api/test_routes_checks.py has the rest."""

import itertools
import time
from types import SimpleNamespace
from typing import Any

import pytest

from cli.remedies import command_of
from cli.stream import STREAM, describe_stream
from cli.update import UPDATE, describe_updates, figure_details
from client.api import RefeedApi
from client.jobs import JobCalls


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("backup", "--mapping", "orders"), "needs the form OLD=NEW"),
        (("backup", "--mapping", "=sales"), "needs the form OLD=NEW"),
        (("backup", "--mapping", "a=b", "--mapping", "a=c"), "is given twice"),
    ],
)
def test_a_mapping_that_is_none_is_wrong_usage(refeed, arguments, words):
    wrong = refeed("update", "--dry-run", *arguments)
    assert wrong.code == 2
    assert words in wrong.err


def test_without_an_api_a_check_says_how_to_start_one(refeed, monkeypatch):
    monkeypatch.setenv("REFEED_API_URL", "http://127.0.0.1:9")
    silent = refeed("update", "backup", "--dry-run")
    assert silent.code == 3
    assert "Start it with 'refeed up' or 'refeed api'" in silent.err


@pytest.mark.parametrize(
    ("words", "way"),
    [
        (("orders", "--message-bytes", "5"), "--set message_bytes=5"),
        (("orders", "--message_bytes=5"), "--set message_bytes=5"),
        (("orders", "--group"), "--set group=VALUE"),
    ],
)
def test_an_update_that_gets_an_option_of_the_stream_names_its_set(refeed, words, way):
    wrong = refeed("update", *words)
    assert (wrong.code, f"Use: {way}" in wrong.err) == (2, True), wrong.err


def test_a_watched_update_that_is_stable_ends_with_how_to_take_it_back(monkeypatch, capsys):
    stable = made_update("STABLE")
    stable |= dict.fromkeys(
        ("reason", "checked", "snapshot_id", "figures", "replay", "manifest", "reverses", "unwanted_by")
    )
    UPDATE.finish(SimpleNamespace(), stable, watch=True, as_json=False)
    last = capsys.readouterr().out.splitlines()[-1]
    assert " ".join(last.split()) == "next refeed revert up_1, if the new release is wrong"


@pytest.mark.parametrize("messages", [0.0, 5.0])
def test_a_stable_update_that_saw_no_message_says_so(capsys, messages):
    after = {"seconds": 30.0, "messages": messages, "dead_letters": 0.0, "faults": 0.0, "lag_seconds": None}
    stable = made_update("STABLE")
    stable |= dict.fromkeys(("checked", "snapshot_id", "replay", "manifest", "reverses", "unwanted_by"))
    UPDATE.finish(SimpleNamespace(), stable | {"figures": {"after": after}}, watch=True, as_json=False)
    assert ("no message arrived during the watch" in capsys.readouterr().out) == (messages == 0)


def test_columns_may_differ_in_a_shadow_alone(refeed):
    wrong = refeed("update", "orders", "--may-differ", "total")
    assert wrong.code == 2
    assert "--may-differ works only with --shadow" in wrong.err


def test_an_update_shows_what_its_shadow_has_compared():
    cell = {"table": "staging.orders", "column": "total", "topic": "orders", "message_id": "7"}
    row = {**cell, "column": None, "running": None}
    report = {
        "state": "CATCHING_UP",
        "messages_compared": 3,
        **{f"rows_{name}": number for number, name in enumerate(("waiting", "equal", "different", "missing"))},
        "examples": [
            {**cell, "running": "3.1", "new": "3.2"},
            *({**row, "message_id": str(number), "new": "{}"} for number in range(7, 12)),
        ],
    }
    assert list(figure_details({})) == []
    assert list(figure_details({"shadow": report})) == [
        ("shadow", "CATCHING_UP: 3 messages compared; rows: 1 equal, 2 different, 3 missing, 0 waiting"),
        ("missing", "rows of staging.orders from orders, such as those of the messages 7, 8, 9"),
        ("differs", "staging.orders.total of orders 7: 3.1 becomes 3.2"),
    ]


def test_the_figures_of_an_update_have_their_unit():
    before = {"seconds": 60.0, "messages": 6.0, "dead_letters": 0.0, "faults": None, "lag_seconds": 0.84}
    after = {**before, "seconds": 30.0, "messages": 0.0, "lag_seconds": None}
    assert list(figure_details({"before": before, "after": after})) == [
        ("figure", "messages: 6 in 60 s before, 0 in 30 s after"),
        ("figure", "dead letters: 0 in 60 s before, 0 in 30 s after"),
        ("figure", "faults: unknown before, unknown after"),
        ("figure", "lag: 0.8 s before, unknown after"),
    ]


def made_update(state: str, **changed: Any) -> dict[str, Any]:
    return {
        "id": "up_1",
        "stream": "backup",
        "state": state,
        "from_release": None,
        "release": None,
        "options": {},
        "mapping": {},
        "created_at": "2026-01-02T03:04:05Z",
        "created_by": "ann",
        "paused_seconds": 3.5,
        "error": None,
        "reason": None,
        **changed,
    }


def test_the_list_of_updates_has_what_each_one_changes():
    changed = made_update("STABLE", options={"slots": 2, "batch_seconds": None}, mapping={"orders": "sales"})
    fault = {"code": "update_inconclusive", "message": "3 messages came.", "logs": {}}
    lines = describe_updates(
        [changed, made_update("STABLE", release="next", error=fault, reason="night test"), made_update("STABLE")]
    )
    assert " ".join(lines[0].split()) == "ID STREAM STATE OUTCOME FROM TO CHANGES ASKED FOR BY PAUSED WHY"
    assert lines[2].split()[3] == "update_inconclusive"
    assert lines[2].endswith("  night test")
    # A restart with the registry as it is, and no other release.
    assert lines[3].split()[3:6] == ["installed", "same", "-"]
    assert "  installed  same  slots=2 batch_seconds= orders=sales  2026-01-02 03:04  " in lines[1]
    assert "  installed  next  " in lines[2]


def test_a_stream_names_its_generation_and_its_pending_messages():
    stream = {
        "name": "backup",
        "state": "DRAINED",
        "wanted": "DRAINED",
        "drain_timeout_seconds": 120.0,
        "kind": "backup",
        "options": {"group": "shop", "mapping": {"orders": "sales"}},
        "release": None,
        "launched_at": "2026-01-02T03:04:05Z",
        "launched_by": "ann",
        "generation": 2,
        "agent": {"pid": 6, "host": "vm"},
        "instance_id": "a" * 32,
        "owner": {"pid": 7, "host": "vm"},
        "seconds_since_report": None,
        "not_committed": 0,
        "retained_until": "2026-01-09T03:04:05Z",
        "error": None,
        "lag_seconds": 12.3,
        "backlog_messages": 1234,
        "rates": {"messages": 5.25},
        "over_seconds": 60.0,
    }
    lines = [" ".join(line.split()) for line in describe_stream(stream)]
    assert "options group shop, mapping orders=sales" in lines
    assert "next refeed launch backup" in lines
    item = {"resource": "stream", "id": "backup"}
    for kind, command in (("ended", "refeed launch backup"), ("dead_letters", "refeed dead-letters")):
        waiting = {**stream, "inbox": [{**item, "kind": kind}]}
        assert command_of(waiting["inbox"][0]) == command
        assert " ".join(list(describe_stream(waiting))[-1].split()) == f"next {command}"
    assert "launched 2026-01-02 03:04 UTC by ann, generation 2" in lines
    assert "wanted DRAINED" in lines
    assert not any("process" in line for line in lines), "the processes are gone, or look after others"
    assert "release the installed version" in lines
    stream |= {"state": "DRAINING", "installed_version": "0.2.0"}
    lines = [" ".join(line.split()) for line in describe_stream(stream)]
    assert "release 0.2.0, the installed version" in lines
    assert "wanted DRAINED, within 2 min 0 s" in lines
    assert "stream process 7 on vm" in lines
    assert "pending messages are kept until 2026-01-09 03:04 UTC" in lines
    assert "lag 12 s, backlog 1,234" in lines
    assert "rate 5.2 messages/s over the last 1 min 0 s" in lines


def test_a_stream_of_no_release_names_the_version_that_its_agent_has():
    stream = {"release": None, "agent": {"pid": 6, "host": "vm"}}
    agents = [{"host": "other", "installed_version": "0.1.0"}, {"host": "vm", "installed_version": "0.2.0"}]
    api = SimpleNamespace(
        jobs=SimpleNamespace(list=lambda **_: {"jobs": []}),
        read_stream=lambda _: stream,
        read_inbox=lambda: {"items": []},
        list_releases=lambda: {"agents": agents},
    )
    assert STREAM.read(api, "backup")["installed_version"] == "0.2.0"
    stream["agent"] = None
    assert "installed_version" not in STREAM.read(api, "backup")


def test_a_stream_is_watched_until_it_has_ended(monkeypatch):
    seconds = itertools.count(step=100)
    monkeypatch.setattr(time, "monotonic", lambda: next(seconds))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    states = iter(["RUNNING"] * 5 + ["DRAINING", "DRAINED"])
    api = SimpleNamespace(read_stream=lambda name: {"name": name, "state": next(states)})
    assert STREAM.follow(api, {"name": "backup", "state": "RUNNING"})["state"] == "DRAINED"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("WATCHING", ["drain", "backup"]),
        ("WATCHING", ["cancel", "stream/backup"]),
        ("STABLE", ["drain", "backup"]),
    ],
)
def test_who_ends_a_stream_is_told_of_the_update_that_fails_by_it(refeed, monkeypatch, state, words):
    update = {"id": "up_1", "kind": "update", "state": state}
    asked = []

    def act(self, name, verb, body=None, *, etag=None):
        asked.append(verb)
        return {"name": name, "state": "DRAINING", "kind": "backup"}

    monkeypatch.setattr(
        JobCalls, "list", lambda *_, **wanted: {"jobs": [update] if wanted["stream"] == "backup" else []}
    )
    monkeypatch.setattr(RefeedApi, "act_on_stream", act)
    said = refeed(*words, "--json").err
    assert asked == words[:1]
    assert ("The update up_1 is WATCHING. It fails (update_abandoned) when the stream ends" in said) == (
        state == "WATCHING"
    )
