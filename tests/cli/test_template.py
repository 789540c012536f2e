"""``refeed template``: what it sends and prints."""

import json

import pytest

from client.api import RefeedApi

REPLAY = {
    "name": "replay",
    "kind": "Template",
    "document": {
        "name": "replay",
        "description": "Replays a day.",
        "parameters": {
            "day": {"type": "DATE", "help": "The day", "required": True},
            "rate": {"type": "INT64", "default": 500},
            "paused": {"type": "BOOL", "default": False},
            "note": {},
        },
        "launch": {"kind": "backfill", "request": {"topic": "orders", "start_paused": "${paused}"}},
    },
}
NIGHTLY = {"name": "nightly", "kind": "Schedule", "document": {"job": {"kind": "merge"}}}


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
        return REPLAY if method == "GET" else {"template": "replay", "kind": "backfill", "id": "bf_1"}

    monkeypatch.setattr(RefeedApi, "call", call)
    return made


def test_templates_are_listed_alone_of_all_manifests(refeed, calls):
    (_, line) = refeed("get", "templates").out.splitlines()
    assert line.split() == ["replay", "backfill", "Replays", "a", "day."]
    assert json.loads(refeed("get", "templates", "--json").out)["templates"] == [REPLAY]


def test_a_template_is_shown_with_its_parameters(refeed, calls):
    shown = refeed("describe", "template/replay").out
    assert "replay, a backfill: Replays a day." in shown
    assert [word in shown for word in ("required", "500", "false", "The day", '"topic": "orders"')] == [True] * 5


def test_a_manifest_of_another_kind_is_no_template(refeed, calls):
    assert "nightly is a Schedule, not a template." in refeed("describe", "template/nightly").err


def test_parameters_are_sent_with_their_types(refeed, calls):
    given = ("day=2026-01-02", "rate=7", "paused=true", "nobody=a=b")
    launched = refeed("launch", "template/replay", *(part for each in given for part in ("--param", each)))
    assert launched.out == "backfill bf_1; refeed watch bf_1\n"
    values = {"day": "2026-01-02", "rate": 7, "paused": True, "nobody": "a=b"}
    assert calls[-1] == ("POST", "/manifests/replay:launch", {"parameters": values})
    # The API names a value that is none of its type.
    refeed("launch", "template/replay", "-p", "rate=fast")
    assert calls[-1][2] == {"parameters": {"rate": "fast"}}


@pytest.mark.parametrize("given", [("day",), ("=x",), ("day=1", "day=2")])
def test_a_parameter_that_is_none_is_refused_here(refeed, calls, given):
    refused = refeed("launch", "template/replay", *(part for each in given for part in ("--param", each)))
    assert refused.code == 2
    assert calls == []


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "[NaN]"])
def test_a_number_that_json_does_not_have_is_sent_as_a_text_which_the_api_names(refeed, calls, text):
    assert refeed("launch", "template/replay", "--param", f"rate={text}").code == 0
    assert calls[-1][2] == {"parameters": {"rate": text}}
