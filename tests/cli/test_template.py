"""``refeed template``: what it sends and prints."""

import io
import json
import sys
from typing import Any

import pytest

from cli.objects import ObjectKind
from client.api import RefeedApi
from tests.cli.backfills import backfill
from tests.worlds.plans import PLAN

REPLAY: dict[str, Any] = {
    "name": "replay",
    "kind": "Template",
    "document": {
        "kind": "Template",
        "name": "replay",
        "description": "Replays a day.",
        "parameters": {
            "day": {"type": "DATE", "help": "The day", "default": "2026-01-01"},
            "rate": {"type": "INT64", "default": 500},
            "paused": {"type": "BOOL", "default": False},
            "note": {},
        },
        "launch": {"kind": "backfill", "request": {"topic": "orders", "start_paused": "${paused}"}},
    },
}
TIDY: dict[str, Any] = {**REPLAY, "document": {**REPLAY["document"], "launch": {"kind": "merge"}}}
NIGHTLY: dict[str, Any] = {"name": "nightly", "kind": "Schedule", "document": {"job": {"kind": "merge"}}}


@pytest.fixture
def calls(monkeypatch):
    """What the API was asked, of which it has a template and a schedule."""
    made = []

    def call(_api, method, path, **arguments):
        made.append((method, path, arguments.get("json")))
        if path == "/manifests":
            return {"manifests": [NIGHTLY, REPLAY]}
        if path == "/manifests/nightly":
            return NIGHTLY
        if path == "/backfills":
            return PLAN if arguments.get("params") else backfill("PENDING")
        if path.startswith(("/backfills", "/jobs")):
            return backfill("RUNNING", 1)
        found = TIDY if path.startswith("/manifests/tidy") else REPLAY
        kind = found["document"]["launch"]["kind"]
        return found if method == "GET" else {"template": found["name"], "kind": kind, "id": f"{kind[0]}_1"}

    monkeypatch.setattr(RefeedApi, "call", call)
    return made


def test_templates_are_listed_alone_of_all_manifests(refeed, calls):
    (_, line) = refeed("get", "templates").out.splitlines()
    assert line.split() == ["replay", "backfill", "Replays", "a", "day."]
    assert json.loads(refeed("get", "templates", "--json").out)["templates"] == [REPLAY]


def test_a_template_is_shown_with_its_parameters(refeed, calls):
    shown = refeed("describe", "template/replay").out
    assert "replay, a backfill: Replays a day." in shown
    assert [word in shown for word in ("2026-01-01", "500", "false", "The day", '"topic": "orders"')] == [True] * 5


def test_a_manifest_of_another_kind_is_no_template(refeed, calls):
    assert "nightly is a Schedule, not a template." in refeed("describe", "template/nightly").err


def test_parameters_are_sent_with_their_types(refeed, calls):
    given = ("day=2026-01-02", "rate=7", "paused=true", "nobody=a=b")
    launched = refeed("launch", "template/tidy", *(part for each in given for part in ("--param", each)))
    assert launched.out == "merge m_1; refeed watch m_1\n"
    values = {"day": "2026-01-02", "rate": 7, "paused": True, "nobody": "a=b"}
    assert calls[-1] == ("POST", "/manifests/tidy:launch", {"parameters": values})
    # The API names a value that is none of its type.
    refeed("launch", "template/tidy", "-p", "rate=fast")
    assert calls[-1][2] == {"parameters": {"rate": "fast"}}


@pytest.mark.parametrize("given", [("day",), ("=x",), ("day=1", "day=2")])
def test_a_parameter_that_is_none_is_refused_here(refeed, calls, given):
    refused = refeed("launch", "template/replay", *(part for each in given for part in ("--param", each)))
    assert refused.code == 2
    assert calls == []


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "[NaN]"])
def test_a_number_that_json_does_not_have_is_sent_as_a_text_which_the_api_names(refeed, calls, text):
    assert refeed("launch", "template/tidy", "--param", f"rate={text}").code == 0
    assert calls[-1][2] == {"parameters": {"rate": text}}


def test_a_backfill_of_a_template_shows_its_plan_and_asks_before_it_is_made(refeed, calls, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    asked = refeed("launch", "template/replay", "-p", "paused=true")
    assert asked.code == 1
    assert "Publish 12 messages to orders?" in asked.err
    request = {"topic": "orders", "start_paused": True, "labels": {"manifest": "replay"}}
    assert calls[-1] == ("POST", "/backfills", request)
    assert refeed("launch", "template/replay", "-p", "paused=true", "--yes").code == 0
    assert calls[-1] == ("POST", "/backfills", {**request, "plan_id": "pl_1"})


def test_a_repeated_launch_of_a_template_sends_the_same_request(refeed, calls):
    assert refeed("launch", "template/replay", "--yes", "--idempotency-key", "once").code == 0
    assert calls[-1] == ("POST", "/manifests/replay:launch", {"parameters": {}})


def test_a_dry_run_of_a_template_makes_nothing(refeed, calls):
    assert json.loads(refeed("launch", "template/replay", "--dry-run", "--json").out)["plan_id"] == "pl_1"
    assert calls[-1][1] == "/backfills"
    assert "plan_id" not in calls[-1][2]
    assert refeed("launch", "template/tidy", "--dry-run").out == "{}\n"
    assert calls[-1][0] == "GET"
    assert refeed("launch", "backup", "--dry-run").code == 2


def test_a_plan_of_a_template_that_selects_nothing_is_not_made(refeed, calls, monkeypatch):
    monkeypatch.setitem(PLAN, "rows", 0)
    result = refeed("launch", "template/replay", "--yes")
    assert (result.code, "selects nothing" in result.err) == (1, True)
    assert "plan_id" not in calls[-1][2]


def test_a_launched_template_is_watched(refeed, calls, monkeypatch):
    watched = []
    monkeypatch.setattr(
        ObjectKind, "finish", lambda kind, api, found, *, watch, as_json: watched.append((kind.name, watch))
    )
    refeed("launch", "template/replay", "--yes", "--watch")
    refeed("launch", "template/tidy", "-w")
    assert watched == [("backfill", True), ("merge", True)]
