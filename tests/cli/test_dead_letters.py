import io
import json
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from cli.dead_letters import dead_letter_lines
from client.api import RefeedApi
from client.jobs import KindCalls
from tests.worlds.plans import PLAN


def reason(code: str, messages: int, repaired: int | None, source: str = "orders") -> dict[str, Any]:
    lists = {
        "codes": {"type": "ARRAY<STRING>", "value": [code]},
        "paths": {"type": "ARRAY<STRING>", "value": ["amount"]},
        "message_ids": {"type": "ARRAY<STRING>", "value": []},
    }
    return {
        "source": source,
        "topic": source,
        "code": code,
        "path": "amount" if code == "wrong_type" else None,
        "messages": messages,
        "repaired": repaired,
        "first_ingest_time": "2026-01-10T01:00:00.000000Z",
        "last_ingest_time": "2026-01-10T02:30:00.000000Z",
        "example_message_id": "81234",
        "example_message_ids": [str(81234 + each) for each in range(min(messages, 5))],
        "example_reason": f"amount: {code}",
        "request": {"topic": source, "query": "SELECT ...", "parameters": {"source": source, **lists}},
    }


@pytest.fixture
def asked(monkeypatch):
    """What was asked of an API that has dead letters of two codes."""
    calls = []

    def count(self, start=None):
        calls.append(start)
        return {"reasons": [reason("wrong_type", 12, 3), reason("not_json", 1, None)]}

    def plan(self, request, *, exact=False):
        calls.append(request)
        return PLAN

    def create(self, request, *, idempotency_key=None):
        assert idempotency_key
        calls.append(request)
        raise KeyboardInterrupt

    monkeypatch.setattr(RefeedApi, "count_dead_letters", count)
    monkeypatch.setattr(RefeedApi, "plan_backfill", plan)
    monkeypatch.setattr(KindCalls, "create", create)
    return calls


def lists_of(request: Mapping[str, Any]) -> dict[str, list[str]]:
    return {name: request["parameters"][name]["value"] for name in ("codes", "paths", "message_ids")}


def test_dead_letters_are_counted_by_reason_within_80_columns(refeed, asked):
    lines = refeed("dead-letters", "--from", "2026-01-10").out.splitlines()
    assert refeed("dead-letters", "--since", "2026-01-10").out.splitlines() == lines
    assert asked == ["2026-01-10T00:00:00Z"] * 2
    assert all(len(line) <= 80 for line in lines)
    words = [line.split() for line in lines]
    assert words[0] == ["SOURCE", "CODE", "PATH", "MESSAGES", "REPAIRED", "LAST", "EXAMPLE"]
    assert words[1] == ["orders", "wrong_type", "amount", "12", "3", "2026-01-10", "02:30", "81234"]
    assert words[2] == ["orders", "not_json", "1", "unknown", "2026-01-10", "02:30", "81234"]
    assert "orders wrong_type: amount: wrong_type" in lines
    assert any("REFEED_QUERY_TABLES" in line for line in lines)
    assert "refeed redrive --source orders, first with --dry-run" in lines[-1]
    assert len(json.loads(refeed("dead-letters", "--json").out)["reasons"]) == 2


def test_all_of_a_source_some_or_one_are_planned_and_sent_again(refeed, asked):
    assert refeed("redrive", "--dry-run", "--source", "orders").code == 0
    assert lists_of(asked[-1]) == {"codes": [], "paths": [], "message_ids": []}
    assert (asked[-1]["topic"], asked[-1]["query"]) == ("orders", "SELECT ...")
    refeed("redrive", "--dry-run", "--source", "orders", "--code", "wrong_type")
    assert lists_of(asked[-1]) == {"codes": ["wrong_type"], "paths": [], "message_ids": []}
    refeed("redrive", "--source", "orders", "--id", "8", "--id", "9", "--canary", "1", "--yes")
    assert asked[-1] == {**asked[-2], "plan_id": "pl_1"}
    assert lists_of(asked[-1]) == {"codes": [], "paths": [], "message_ids": ["8", "9"]}
    assert asked[-1]["canary_messages"] == 1


def test_a_plan_names_no_option_that_redrive_has_not(refeed, asked):
    found = refeed("redrive", "--dry-run", "--source", "orders")
    assert (found.code, "12 messages -> orders" in found.out, "--plan" in found.out) == (0, True, False)


def test_a_redrive_shows_its_plan_and_asks_before_it_publishes(refeed, asked, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    unanswered = refeed("redrive", "--source", "orders")
    assert (unanswered.code, "--yes" in unanswered.err) == (1, True)
    assert ("12 messages -> orders" in unanswered.out, "Publish 12 messages to orders?" in unanswered.err) == (
        True,
        True,
    )
    assert "plan_id" not in asked[-1], "it is only planned"
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert refeed("redrive", "--source", "orders").code == 130
    assert asked[-1]["plan_id"] == "pl_1"


def test_a_redrive_says_beforehand_that_it_does_not_know_what_is_repaired(refeed, asked):
    unknown = refeed("redrive", "--dry-run", "--source", "orders", "--code", "not_json")
    assert (unknown.code, "also sends messages that are rows by now" in unknown.err) == (0, True)
    known = refeed("redrive", "--dry-run", "--source", "orders", "--code", "wrong_type")
    assert (known.code, known.err) == (0, "")


def test_a_redrive_of_what_nobody_has_repaired_is_warned_of(refeed, asked, monkeypatch):
    advice = "Neither the registry nor the pipeline has changed. Publish a schema: refeed source diff FILES"
    reasons = [{**reason("wrong_type", 12, 3), "is_unchanged": True, "advice": advice}]
    reasons.append({**reason("not_json", 1, 0), "is_unchanged": False, "advice": "Correct data in a query."})
    monkeypatch.setattr(RefeedApi, "count_dead_letters", lambda *_: {"reasons": reasons})
    for words in (["--dry-run"], ["--yes"]):
        found = refeed("redrive", "--source", "orders", *words)
        assert [line for line in found.err.splitlines() if "warning" in line] == [f"warning: wrong_type: {advice}"]
    assert "warning" not in refeed("redrive", "--dry-run", "--source", "orders", "--code", "not_json").err
    lines = refeed("dead-letters").out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    said = " ".join(" ".join(lines).split())
    assert (advice in said, "Correct data in a query." in said) == (True, True)


def test_a_redrive_of_what_has_become_rows_ends_without_a_question(refeed, asked, monkeypatch):
    monkeypatch.setitem(PLAN, "rows", 0)
    nothing = refeed("redrive", "--source", "orders", "--yes")
    assert (nothing.code, "no dead letters to send" in nothing.err) == (1, True)
    assert "plan_id" not in asked[-1]


def test_reasons_are_read_to_their_end_and_name_several_messages():
    long = reason("wrong_type", 12, 3) | {"example_reason": f"amount: {'a word ' * 20}(character 17)"}
    lines = list(dead_letter_lines([long]))
    assert all(len(line) <= 80 for line in lines)
    assert "(character 17)" in " ".join(lines)
    assert "  messages 81234, 81235, 81236, 81237, 81238" in lines


def test_what_is_not_there_is_not_sent(refeed, asked):
    for close, *arguments in (
        ("", "--source", "billing"),
        ("", "--source", "orders", "--code", "too_large"),
        (" Did you mean orders?", "--source", "order"),
        (" Did you mean wrong_type?", "--source", "orders", "--code", "wrong_typ"),
    ):
        result = refeed("redrive", *arguments)
        assert result.code == 2
        assert f"that match.{close} 'refeed dead-letters'" in " ".join(result.err.split())
    assert asked == [None] * 4


def test_options_of_the_other_dead_letters_are_refused(refeed, asked):
    for arguments in (("bf_1", "--from", "1d"), ("--by", "reason"), ("--page-token", "x")):
        assert refeed("dead-letters", *arguments).code == 2
    assert asked == []


def test_those_at_one_place_of_the_message_are_chosen_by_its_path(refeed, asked):
    refeed("redrive", "--source", "orders", "--path", "amount", "--path", "lines[].count", "--yes")
    assert lists_of(asked[-1]) == {"codes": [], "paths": ["amount", "lines[].count"], "message_ids": []}
