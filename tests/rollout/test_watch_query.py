"""The query of a rollout's validation, over archives in the lake and in BigQuery (the stand-in)."""

from datetime import UTC, datetime, timedelta

import pytest

from app.deployment import Deployment
from model.errors import QueryTooLargeError
from rollout import watch_query
from rollout.watch_query import WatchQueries, WatchRows
from sql.validate import QueryRefusedError
from tests.contract.test_queries import ROWS, TODAY, World, world

__all__ = ["world"]
WINDOW = "_PARTITIONTIME >= TIMESTAMP_TRUNC(TIMESTAMP_SUB(@since, INTERVAL 1 DAY), DAY)"
LARGE = 10**9


@pytest.fixture
def asked(world: World) -> WatchQueries:
    return WatchQueries(Deployment(world.settings).backfill_settings, world.queries)


def select(world: World, condition: str) -> str:
    return f"SELECT message_id FROM {world.settings.archive_table} WHERE {WINDOW} {condition}"


def test_rows_are_counted_from_when_the_new_release_began(world: World, asked: WatchQueries) -> None:
    text = select(world, "AND publish_time >= @since AND topic = 'orders'")
    for seconds, count in ((0, ROWS), (ROWS - 1, 1), (ROWS, 0)):
        found = asked.count_rows(text, TODAY + timedelta(seconds=seconds), LARGE)
        assert found == WatchRows(count, is_cut=False)


def test_rows_are_counted_up_to_a_bound(world, asked, monkeypatch):
    monkeypatch.setattr(watch_query, "MAX_ROWS", 10)
    found = asked.count_rows(select(world, ""), TODAY, LARGE)
    assert (found, str(found)) == (WatchRows(10, is_cut=True), "more than 10 rows")


def test_a_query_that_may_not_run_is_refused(world: World, asked: WatchQueries) -> None:
    now = datetime.now(UTC)
    for text, code in (
        (f"SELECT 1 FROM other.messages WHERE {WINDOW}", "table_not_allowed"),
        ("DELETE FROM backup.messages WHERE TRUE", "statement_not_allowed"),
        (select(world, "AND publish_time >= @other"), "parameter_missing"),
        (select(world, "").replace(WINDOW, "publish_time >= @since"), "window_missing"),
    ):
        with pytest.raises(QueryRefusedError) as refused:
            asked.check(text, now)
        assert [each.code for each in refused.value.violations] == [code], text
    asked.check(select(world, "AND publish_time >= @since"), now)
    with pytest.raises(QueryTooLargeError):
        asked.count_rows(select(world, ""), now, 1)
