"""A backfill's query in BigQuery: once, capped, in a table that expires, with errors that say what to do."""

import uuid
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from connectors.bigquery.client import Clients, Connection
from connectors.bigquery.queries.job import NamedParameter
from connectors.bigquery.queries.selections import SelectionJobs, job_id
from connectors.bigquery.table_id import TableId
from model.archive import Attempt
from model.errors import (
    IdempotencyKeyReusedError,
    JobNotFoundError,
    QueryError,
    QueryStoppedError,
    WarehousePermissionError,
)

DAY = timedelta(days=1)
CAP = 10**9


@pytest.fixture
def jobs(archive, settings, messages, shared_standin):
    epoch = archive.take_lease("l")
    part = archive.writer().write([("orders", "s", messages(b"a", b"b", b"c"))])
    archive.commit([part], Attempt("s", 1, "l", epoch))
    clients = Clients(Connection.of("shop", settings.bigquery))
    shared_standin.clear_log()
    yield SelectionJobs(clients, TableId("shop", archive.table.dataset, ""))
    shared_standin.clear_faults()
    clients.close()


@pytest.fixture
def backfill():
    """An id of this test's own: job ids are a project's, and tests share it."""
    return f"bf_{uuid.uuid4().hex.upper()}"


@pytest.fixture
def sql(settings):
    return (
        f"SELECT data, attributes, message_id FROM `{settings.archive_table}` "
        "WHERE _PARTITIONTIME >= @from AND topic = @topic AND message_id IN UNNEST(@ids)"
    )


def parameters(*ids: str) -> dict[str, NamedParameter]:
    return {
        "from": NamedParameter("TIMESTAMP", datetime(2024, 1, 1, tzinfo=UTC)),
        "topic": NamedParameter("STRING", "orders"),
        "ids": NamedParameter("ARRAY<STRING>", ids or ("1", "3")),
    }


def test_a_selection_is_a_table_of_the_backfills_own_that_expires_with_its_labels(
    jobs, sql, shared_standin, backfill
):
    assert jobs.start(backfill, sql, parameters(), maximum_bytes_billed=CAP, keep=DAY) == job_id(backfill)
    found = jobs.wait(backfill)
    assert found.rows == 2
    assert timedelta(hours=23) < found.expires_at - datetime.now(UTC) <= DAY
    client = shared_standin.client()
    rows = sorted(row["message_id"] for row in client.list_rows(found.table))
    assert rows == ["1", "3"]
    job = client.get_job(job_id(backfill))
    assert job.labels["refeed_backfill"] == backfill.lower()
    assert (job.labels["app"], job.labels["refeed_use"], job.labels["team"]) == ("refeed", "backfill", "data")
    assert job.maximum_bytes_billed == CAP
    jobs.drop(backfill)
    jobs.drop(backfill)


def test_a_selection_is_kept_with_the_key_that_the_archive_is_kept_with(
    archive, settings, sql, shared_standin, backfill
):
    key = "projects/p/locations/eu/keyRings/r/cryptoKeys/k"
    clients = Clients(replace(Connection.of("shop", settings.bigquery), kms_key=key))
    try:
        jobs = SelectionJobs(clients, TableId("shop", archive.table.dataset, ""))
        jobs.start(backfill, sql, parameters(), maximum_bytes_billed=CAP, keep=DAY)
        jobs.wait(backfill)
        job = clients.rest().get_job(job_id(backfill))
        table = clients.rest().get_table(str(jobs.table_of(backfill)))
    finally:
        clients.close()
    assert job.destination_encryption_configuration.kms_key_name == key
    assert table.encryption_configuration.kms_key_name == key


def test_starting_it_again_is_the_same_job_and_another_query_is_refused(jobs, sql, shared_standin, backfill):
    for _ in range(2):
        jobs.start(backfill, sql, parameters(), maximum_bytes_billed=CAP, keep=DAY)
        assert jobs.wait(backfill).rows == 2
    with pytest.raises(IdempotencyKeyReusedError):
        jobs.start(backfill, sql, parameters("1"), maximum_bytes_billed=CAP, keep=DAY)
    inserted = [call for call in shared_standin.calls("jobs.insert") if call["outcome"] == "ok"]
    assert len(inserted) == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lost_answer_to_the_start_runs_the_query_once(jobs, sql, shared_standin, when, backfill):
    shared_standin.fault("jobs.insert", "drop", when=when)
    jobs.start(backfill, sql, parameters(), maximum_bytes_billed=CAP, keep=DAY)
    assert jobs.wait(backfill).rows == 2


def test_a_query_that_is_none_is_refused_with_bigquerys_own_words(jobs):
    with pytest.raises(QueryError, match=r"Syntax error|invalid"):
        jobs.dry_run("SELEC 1", {})


def test_a_stopped_query_says_so(jobs, sql, shared_standin, backfill):
    shared_standin.fault("jobs.run", "delay", seconds=3.0)
    jobs.start(backfill, sql, parameters(), maximum_bytes_billed=CAP, keep=DAY)
    with pytest.raises(QueryStoppedError):
        jobs.wait(backfill, is_stopping=lambda: True)
    jobs.cancel("bf_never_started")


def test_a_query_that_nobody_started_is_not_found(jobs):
    with pytest.raises(JobNotFoundError, match="bf_none"):
        jobs.wait("bf_none")


def test_a_quota_is_waited_for_and_a_missing_role_is_named(jobs, sql, shared_standin):
    shared_standin.fault("jobs.insert", reason="quotaExceeded")
    jobs.dry_run(sql, parameters())
    shared_standin.fault("jobs.insert", reason="accessDenied")
    with pytest.raises(WarehousePermissionError, match=r"roles/bigquery\.jobUser"):
        jobs.dry_run(sql, parameters())


def test_parameters_of_every_type_reach_the_query(jobs, backfill):
    given = {
        "b": NamedParameter("BYTES", b"\x00\xff"),
        "d": NamedParameter("DATE", date(2024, 3, 1)),
        "f": NamedParameter("FLOAT64", 1.5),
        "n": NamedParameter("INT64", None),
        "t": NamedParameter("BOOL", value=True),
    }
    jobs.start(
        backfill, "SELECT @b AS b, @d AS d, @f AS f, @n AS n, @t AS t", given, maximum_bytes_billed=CAP, keep=DAY
    )
    assert jobs.wait(backfill).rows == 1
