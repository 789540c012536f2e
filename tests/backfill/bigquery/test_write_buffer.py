"""Rows in BigQuery's write buffer have no partition yet: plans and selections count them in, or wait."""

from datetime import UTC, datetime, timedelta

import pytest

from model.principal import LOCAL
from tests.backfill.bigquery.conftest import PARAMETERS, QUERY, ROWS, codes, run


@pytest.fixture
def held(shared_standin, table):
    """All messages are in the write buffer, where they have no _PARTITIONTIME."""
    shared_standin.hold_write_buffer(f"shop.{table}", everything=True)
    yield
    shared_standin.release_write_buffer(f"shop.{table}")


@pytest.mark.usefixtures("held")
def test_a_window_until_now_selects_what_is_in_the_write_buffer(service, ask, make):
    plan = service.plan(ask(), principal=LOCAL, exact=True)
    assert plan["rows"] == ROWS
    [said] = [warning for warning in plan["warnings"] if warning["code"] == "write_buffer_added"]
    assert f"about {ROWS + 10} rows" in said["message"]
    assert run(make(plan_id=plan["plan_id"])).rows == ROWS
    assert run(make(allow_overlap=True)).rows == ROWS


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize(("days", "rows"), [(0, ROWS), (1, 0)], ids=["the day of the messages", "the day before"])
def test_rows_in_the_write_buffer_belong_to_the_day_of_their_ingest_time(service, ask, days, rows):
    query = QUERY.replace("_PARTITIONTIME >= @from", "_PARTITIONDATE = @day")
    day = datetime.now(UTC).date() - timedelta(days=days)
    parameters = {"day": {"type": "DATE", "value": str(day)}, "topic": PARAMETERS["topic"]}
    plan = service.plan(ask(query, parameters=parameters), principal=LOCAL, exact=True)
    assert plan["rows"] == rows
    assert "write_buffer_added" in codes(plan)


@pytest.mark.usefixtures("held")
def test_a_query_that_adds_the_write_buffer_itself_runs_as_it_is_written(service, ask):
    query = QUERY.replace(
        "_PARTITIONTIME >= @from",
        "(_PARTITIONTIME >= @from OR _PARTITIONTIME IS NULL) "
        "AND (_PARTITIONTIME IS NOT NULL OR ingest_time >= @from)",
    )
    plan = service.plan(ask(query), principal=LOCAL, exact=True)
    assert plan["rows"] == ROWS
    assert codes(plan) & {"write_buffer_added", "write_buffer_left_out"} == set()


@pytest.mark.usefixtures("held")
def test_a_plan_says_how_many_rows_a_query_may_leave_in_the_write_buffer(service, ask):
    query = QUERY.replace("AND topic", "AND _PARTITIONTIME IS NOT NULL AND topic")
    plan = service.plan(ask(query), principal=LOCAL)
    [said] = [warning for warning in plan["warnings"] if warning["code"] == "write_buffer_left_out"]
    assert f"about {ROWS + 10} rows" in said["message"]


def test_a_window_that_ended_long_ago_is_read_without_the_write_buffer(service, ask):
    query = QUERY.replace(">= @from", "BETWEEN @from AND '2024-02-01'")
    plan = service.plan(ask(query), principal=LOCAL)
    assert codes(plan) & {"write_buffer_added", "write_buffer_left_out"} == set()
