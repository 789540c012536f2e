import io
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from cli.client import RefeedApi


def backfill(state: str, published: int | None = 0, **fields: Any) -> dict[str, Any]:
    return {
        "id": "bf_1",
        "state": state,
        "topic": "orders",
        "created_at": "2026-01-01T00:00:00Z",
        "progress": {"selected": 2, "published": published, "failed": 0},
        "error": None,
        **fields,
    }


@pytest.fixture
def created(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """What was sent to the API, which says RUNNING once and SUCCEEDED then."""
    requests: list[Mapping[str, Any]] = []
    states = iter([backfill("RUNNING", None), backfill("SUCCEEDED", 2)])

    def create(
        self: RefeedApi, request: Mapping[str, Any], *, idempotency_key: str | None = None
    ) -> dict[str, Any]:
        assert idempotency_key
        requests.append(request)
        return backfill("PENDING")

    monkeypatch.setattr(RefeedApi, "create_backfill", create)
    monkeypatch.setattr(RefeedApi, "read_backfill", lambda self, id_: next(states))
    return requests


def test_create_sends_the_query_with_typed_parameters(
    refeed: Callable[..., Any], created: list[Mapping[str, Any]]
) -> None:
    arguments = ("SELECT 1", "--topic", "orders", "-p", "day:DATE:2026-01-31", "--description", "why", "--json")
    result = refeed("backfill", "create", *arguments)
    assert result.code == 0
    assert json.loads(result.out)["state"] == "PENDING"
    assert created == [
        {
            "query": "SELECT 1",
            "topic": "orders",
            "parameters": {"day": {"type": "DATE", "value": "2026-01-31"}},
            "description": "why",
        }
    ]


def test_create_with_watch_stays_until_the_end(
    refeed: Callable[..., Any], created: list[Mapping[str, Any]]
) -> None:
    result = refeed("backfill", "create", "SELECT 1", "--topic", "orders", "--watch")
    assert result.code == 0
    assert result.out == "bf_1  SUCCEEDED  -> orders\n  2 selected, 2 published, 0 failed\n"


def test_the_query_may_come_from_a_file_or_stdin(
    refeed: Callable[..., Any], created: list[Mapping[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "q.sql").write_text("SELECT 2")
    monkeypatch.setattr(sys, "stdin", io.StringIO("SELECT 3"))
    assert refeed("backfill", "create", f"@{tmp_path / 'q.sql'}", "--topic", "orders").code == 0
    assert refeed("backfill", "create", "-", "--topic", "orders").code == 0
    assert [request["query"] for request in created] == ["SELECT 2", "SELECT 3"]
    missing = refeed("backfill", "create", "@/no/such", "--topic", "orders")
    assert missing.code == 1
    assert "input_invalid" in missing.err


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED"])
def test_watching_a_backfill_that_did_not_succeed_ends_with_1(
    refeed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    error = {"code": "driver_failed", "message": "The driver is gone."}
    monkeypatch.setattr(RefeedApi, "read_backfill", lambda self, id_: backfill(state, 1, error=error))
    result = refeed("backfill", "watch", "bf_1")
    assert result.code == 1
    assert result.out.endswith("  driver_failed: The driver is gone.\n")


def test_list_shows_the_page_and_how_to_get_the_next(
    refeed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def list_backfills(self: RefeedApi, **arguments: Any) -> dict[str, Any]:
        asked.append(arguments)
        return {"backfills": [backfill("SUCCEEDED", 2)], "next_page_token": "abc"}

    monkeypatch.setattr(RefeedApi, "list_backfills", list_backfills)
    result = refeed("backfill", "list", "--page-size", "1", "--page-token", "t")
    assert asked == [{"page_size": 1, "page_token": "t"}]
    assert result.out.splitlines()[1].split() == [
        "bf_1",
        "SUCCEEDED",
        "orders",
        "2",
        "/",
        "2",
        "2026-01-01T00:00:00Z",
    ]
    assert result.err == "more: --page-token abc\n"


def test_show_and_cancel_print_the_backfill(refeed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RefeedApi, "read_backfill", lambda self, id_: backfill("RUNNING"))
    monkeypatch.setattr(RefeedApi, "cancel_backfill", lambda self, id_: backfill("CANCELLING"))
    assert refeed("backfill", "show", "bf_1").out.startswith("bf_1  RUNNING")
    assert json.loads(refeed("backfill", "cancel", "bf_1", "--json").out)["state"] == "CANCELLING"


def test_without_an_api_it_is_unavailable(refeed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFEED_API_URL", "http://127.0.0.1:1")
    result = refeed("backfill", "list")
    assert result.code == 3
    assert "api_unavailable" in result.err
