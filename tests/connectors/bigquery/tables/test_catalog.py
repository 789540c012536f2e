"""What 'refeed init' makes of a dataset: created once, patched where that is possible, left alone where not."""

import socket
import time
from datetime import UTC, datetime, timedelta

import pytest
from google.cloud import bigquery

from connectors.bigquery.table_id import TableId
from connectors.bigquery.tables import catalog as tables
from connectors.bigquery.writes.archive import BigQueryArchive
from model.errors import (
    TableMismatchError,
    TableNotFoundError,
    WarehousePermissionError,
    WarehouseUnavailableError,
)
from model.settings import read_settings


def test_an_empty_project_gets_dataset_and_tables_as_they_should_be(shared_standin, settings):
    archive = BigQueryArchive(settings.project, settings.archive_table, settings.bigquery)
    assert {change.found for change in archive.differences()} == {"missing"}
    archive.create()
    assert archive.differences() == []
    table = shared_standin.client().get_table(settings.archive_table)
    assert (table.time_partitioning.type_, table.time_partitioning.field) == ("DAY", None)
    assert table.clustering_fields == ["topic", "message_id"]
    assert table.require_partition_filter
    assert table.labels == {"app": "refeed", "team": "data"}
    assert [field.name for field in table.schema][:3] == ["data", "attributes", "message_id"]
    assert (table.schema[1].field_type, table.schema[1].mode) == ("RECORD", "REPEATED")
    assert all(field.description for field in table.schema)
    names = {found.table_id for found in shared_standin.client().list_tables(table.dataset_id)}
    assert names == {"messages", "messages_dead_letters", "messages_attempts", "merge_audits"}


def test_creating_it_again_asks_and_changes_nothing(shared_standin, archive):
    shared_standin.clear_log()
    archive.create()
    assert set(shared_standin.counts()) <= {"datasets.get", "tables.get"}


def test_what_may_be_changed_is_changed_and_what_others_added_stays(shared_standin, archive, settings):
    client = shared_standin.client()
    table = client.get_table(settings.archive_table)
    kept = [field for field in table.schema if field.name != "ingest_time"]
    table.schema = [*kept, bigquery.SchemaField("theirs", "STRING")]
    client.delete_table(table)
    fresh = bigquery.Table(f"shop.{settings.archive_table}", schema=table.schema)
    fresh.time_partitioning = bigquery.TimePartitioning(type_="DAY")
    fresh.labels = {"owner": "ada"}
    client.create_table(fresh)
    found = {change.field: (change.found, change.wanted) for change in archive.differences()}
    assert found["column ingest_time"] == ("missing", "TIMESTAMP NULLABLE")
    assert found["clustering"] == ("none", "topic, message_id")
    assert found["require_partition_filter"] == ("False", "True")
    archive.create()
    assert archive.differences() == []
    patched = client.get_table(settings.archive_table)
    assert {f.name for f in patched.schema} >= {"theirs", "ingest_time"}
    assert patched.labels == {"owner": "ada", "app": "refeed", "team": "data"}


def test_expiration_and_key_of_a_table_follow_the_settings(shared_standin, archive, settings, tmp_path):
    key = "projects/p/locations/us/keyRings/r/cryptoKeys/k"
    changed = read_settings(
        {
            **shared_standin.environment,
            "REFEED_BIGQUERY_PARTITION_EXPIRATION_DAYS": "400",
            "REFEED_BIGQUERY_KMS_KEY": key,
        },
        home=tmp_path,
    ).bigquery
    other = BigQueryArchive(settings.project, settings.archive_table, changed)
    fields = {change.field for change in other.differences() if change.resource.endswith(".messages")}
    assert fields == {"partition_expiration_days", "kms_key"}
    other.create()
    table = shared_standin.client().get_table(settings.archive_table)
    assert table.time_partitioning.expiration_ms == 400 * 86_400_000
    assert table.encryption_configuration.kms_key_name == key


@pytest.fixture
def forgetful(shared_standin, settings):
    """The archive in a dataset whose defaults let its tables and partitions expire."""
    client = shared_standin.client()
    dataset = bigquery.Dataset(f"shop.{settings.archive_table.split('.')[0]}")
    dataset.location = settings.bigquery.location
    client.create_dataset(dataset)
    dataset.default_table_expiration_ms = 7 * 86_400_000
    client.update_dataset(dataset, ["default_table_expiration_ms"])
    found = BigQueryArchive(settings.project, settings.archive_table, settings.bigquery)
    yield found
    found.close()


def set_default(client, table, field, value):
    dataset = client.get_dataset(table.split(".")[0])
    setattr(dataset, field, value)
    client.update_dataset(dataset, [field])


@pytest.mark.parametrize("field", ["default_table_expiration_ms", "default_partition_expiration_ms"])
def test_no_default_of_the_dataset_lets_the_archive_expire(shared_standin, forgetful, settings, field):
    client = shared_standin.client()
    set_default(client, settings.archive_table, field, 7 * 86_400_000)
    forgetful.create()
    assert forgetful.differences() == []
    forgetful.check()
    forgetful.take_lease("backup")
    for item in client.list_tables(settings.archive_table.split(".")[0]):
        table = client.get_table(item)
        kept_days = 30 if table.table_id == "messages_attempts" else None
        assert table.expires is None, table.table_id
        partitioning = table.time_partitioning
        assert partitioning is None or partitioning.expiration_ms == (kept_days and kept_days * 86_400_000)


@pytest.mark.parametrize("what", ["partition_expiration_days", "table_expiration"])
def test_a_backup_does_not_begin_while_its_archive_would_expire(shared_standin, archive, settings, what):
    client = shared_standin.client()
    table = client.get_table(settings.archive_table)
    if what == "table_expiration":
        table.expires = datetime.now(UTC) + timedelta(days=7)
        client.update_table(table, ["expires"])
    else:
        table.time_partitioning = bigquery.TimePartitioning(type_="DAY", expiration_ms=7 * 86_400_000)
        client.update_table(table, ["time_partitioning"])
    assert [change.field for change in archive.differences()] == [what]
    with pytest.raises(TableMismatchError, match=f"{what} is .* Run 'refeed init'"):
        archive.check()
    archive.create()
    assert archive.differences() == []
    archive.check()


def test_a_difference_that_cannot_be_mended_is_named_and_nothing_is_touched(shared_standin, archive, settings):
    client = shared_standin.client()
    client.delete_table(f"{settings.archive_table}_attempts")
    hourly = BigQueryArchive(settings.project, settings.archive_table, settings.bigquery, "hour")
    assert [c.field for c in hourly.differences() if not c.is_compatible] == ["partitioning"]
    with pytest.raises(TableMismatchError, match="is DAY, but must be HOUR"):
        hourly.create()
    assert len(list(client.list_tables(settings.archive_table.split(".")[0]))) == 3


def test_a_column_of_another_type_cannot_be_mended(shared_standin, archive, settings):
    client = shared_standin.client()
    table = client.get_table(settings.archive_table)
    client.delete_table(table)
    fresh = bigquery.Table(
        f"shop.{settings.archive_table}",
        schema=[bigquery.SchemaField("data", "STRING"), *[f for f in table.schema if f.name != "data"]],
    )
    fresh.time_partitioning = bigquery.TimePartitioning(type_="DAY")
    client.create_table(fresh)
    with pytest.raises(TableMismatchError, match="column data: is STRING NULLABLE, but must be BYTES"):
        archive.create()
    with pytest.raises(TableMismatchError, match="refeed init"):
        archive.check()


def test_a_dataset_in_another_location_cannot_be_mended(shared_standin, settings):
    dataset = bigquery.Dataset(f"shop.{settings.archive_table.split('.')[0]}")
    dataset.location = "EU"
    shared_standin.client().create_dataset(dataset)
    archive = BigQueryArchive(settings.project, settings.archive_table, settings.bigquery)
    with pytest.raises(TableMismatchError, match="location: is EU"):
        archive.create()


def test_a_stream_is_told_to_run_init_when_a_table_is_missing(shared_standin, archive, settings):
    archive.check()
    shared_standin.client().delete_table(f"{settings.archive_table}_dead_letters")
    with pytest.raises(TableNotFoundError, match=r"_dead_letters\. Run 'refeed init'"):
        archive.check()


def test_a_refused_caller_is_told_which_role_is_missing(shared_standin, settings):
    archive = BigQueryArchive(settings.project, settings.archive_table, settings.bigquery)
    shared_standin.fault("datasets.insert", reason="accessDenied")
    # "BigQuery IAM roles and permissions": bigquery.user holds bigquery.datasets.create.
    with pytest.raises(WarehousePermissionError, match=r"needs roles/bigquery.user; docs/iam.md"):
        archive.create()


def test_a_tables_companions_lie_beside_it():
    table = TableId.parse("other.backup.messages", "shop")
    assert table.companion("attempts").path == "projects/other/datasets/backup/tables/messages_attempts"
    assert str(TableId.parse("backup.messages", "shop")) == "shop.backup.messages"


def test_a_host_where_nobody_answers_is_told_within_the_callers_own_time(tmp_path, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{unused.getsockname()[1]}"
        wrong = read_settings(
            {"BIGQUERY_EMULATOR_HOST": host, "REFEED_BIGQUERY_STORAGE_HOST": host}, home=tmp_path
        )
        monkeypatch.setattr(tables, "_TRY_SECONDS", 0.2)
        archive = BigQueryArchive("shop", "backup.messages", wrong.bigquery)
        began = time.monotonic()
        with pytest.raises(WarehouseUnavailableError, match="reading dataset backup"):
            archive.differences()
        # Google's client alone would try for ten minutes.
        assert time.monotonic() - began < 60
