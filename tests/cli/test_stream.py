"""``refeed stream check``: what it refuses before it asks; tests/api/test_routes_checks.py has the rest."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("backup", "--map", "orders"), "is not OLD=NEW"),
        (("backup", "--map", "=sales"), "is not OLD=NEW"),
        (("backup", "--map", "a=b", "--map", "a=c"), "is given twice"),
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
