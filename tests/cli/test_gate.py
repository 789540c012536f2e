import json
from collections.abc import Callable
from typing import Any

REPLAY = (
    "SELECT data, attributes, message_id FROM backup.messages "
    "WHERE _PARTITIONTIME >= '2026-01-01T00:00:00Z' AND _PARTITIONTIME < '2026-01-02T00:00:00Z'"
)


def test_a_query_that_may_run_says_what_it_reads(refeed: Callable[..., Any]) -> None:
    result = refeed("sql", "check", REPLAY, "--json")
    assert result.code == 0
    answer = json.loads(result.out)
    assert answer["ok"] is True
    assert answer["window"]["from"].startswith("2026-01-01T00:00:00")
    assert answer["window"]["to"].startswith("2026-01-02T00:00:00")


def test_every_violation_is_told_at_once(refeed: Callable[..., Any]) -> None:
    result = refeed("sql", "check", "SELECT data FROM backup.messages", "--json")
    assert result.code == 4
    answer = json.loads(result.out)
    assert answer["ok"] is False
    assert len(answer["violations"]) >= 2
    assert refeed("sql", "check", "SELECT data FROM backup.messages").err.count("\n  - ") == len(
        answer["violations"]
    )


def test_free_asks_for_no_window_and_no_columns(refeed: Callable[..., Any]) -> None:
    sql = "SELECT COUNT(*) AS n FROM backup.messages"
    assert refeed("sql", "check", sql).code == 4
    assert refeed("sql", "check", sql, "--free").out == "ok\n"
