"""``refeed stream check``: what it refuses before it asks; tests/api/test_routes_checks.py has the rest."""

from collections.abc import Callable
from typing import Any

import pytest

from cli.update import shadow_details


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("backup", "--mapping", "orders"), "is not OLD=NEW"),
        (("backup", "--mapping", "=sales"), "is not OLD=NEW"),
        (("backup", "--mapping", "a=b", "--mapping", "a=c"), "is given twice"),
    ],
)
def test_a_mapping_that_is_none_is_wrong_usage(
    refeed: Callable[..., Any], arguments: tuple[str, ...], words: str
) -> None:
    wrong = refeed("stream", "check", *arguments)
    assert wrong.code == 2
    assert words in wrong.err


def test_without_an_api_a_check_says_how_to_start_one(
    refeed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFEED_API_URL", "http://127.0.0.1:9")
    silent = refeed("stream", "check", "backup")
    assert silent.code == 3
    assert "start it with 'refeed up' or 'refeed api'" in silent.err


def test_columns_may_differ_in_a_shadow_alone(refeed: Callable[..., Any]) -> None:
    wrong = refeed("stream", "update", "orders", "--may-differ", "total")
    assert wrong.code == 2
    assert "--may-differ is for --shadow" in wrong.err


def test_an_update_shows_what_its_shadow_has_compared() -> None:
    cell = {"table": "staging.orders", "column": "total", "topic": "orders", "message_id": "7"}
    row = {**cell, "column": None, "running": None}
    report = {
        "state": "CATCHING_UP",
        "messages_compared": 3,
        **{f"rows_{name}": number for number, name in enumerate(("waiting", "equal", "different", "missing"))},
        "examples": [{**cell, "running": "3.1", "new": "3.2"}, {**row, "new": "{}"}],
    }
    assert list(shadow_details(None)) == []
    assert list(shadow_details(report)) == [
        ("shadow", "CATCHING_UP: 3 messages compared; rows: 1 equal, 2 different, 3 missing, 0 waiting"),
        ("differs", "staging.orders.total of orders 7: 3.1 becomes 3.2"),
        ("differs", "staging.orders of orders 7: None becomes {}"),
    ]
