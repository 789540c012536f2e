import pytest
from google.api_core import exceptions
from google.cloud import bigquery

ARCHIVE = [
    bigquery.SchemaField("data", "BYTES"),
    bigquery.SchemaField("message_id", "STRING", mode="REQUIRED"),
    bigquery.SchemaField("topic", "STRING"),
]


@pytest.fixture
def client(shared_standin):
    with shared_standin.client() as client:
        yield client


def archive(dataset):
    table = bigquery.Table(f"shop.{dataset}.messages", ARCHIVE)
    table.time_partitioning = bigquery.TimePartitioning(type_="DAY")
    table.clustering_fields = ["topic", "message_id"]
    return table


def test_a_patch_of_an_old_version_fails_its_precondition(client, dataset):
    """ "Datasets: patch", "Tables: patch": If-Match with an etag of the past is 412."""
    first = client.create_table(archive(dataset))
    again = client.get_table(first.reference)
    again.description = "newer"
    newer = client.update_table(again, ["description"])
    assert newer.etag != first.etag
    first.labels = {"team": "other"}
    with pytest.raises(exceptions.PreconditionFailed) as refused:
        client.update_table(first, ["labels"])
    assert refused.value.errors[0]["reason"] == "conditionNotMet"
    owner = client.get_dataset(dataset)
    stale = client.get_dataset(dataset)
    owner.labels = {"a": "b"}
    client.update_dataset(owner, ["labels"])
    stale.description = "late"
    with pytest.raises(exceptions.PreconditionFailed):
        client.update_dataset(stale, ["description"])


def test_columns_may_be_added_and_relaxed_but_never_taken_or_changed(client, dataset):
    """ "Modifying table schemas": add NULLABLE or REPEATED columns, relax REQUIRED; nothing else."""
    table = client.create_table(archive(dataset))
    relaxed = [
        bigquery.SchemaField(f.name, f.field_type, mode="NULLABLE") if f.mode == "REQUIRED" else f
        for f in table.schema
    ]
    table.schema = [*relaxed, bigquery.SchemaField("subscription", "STRING")]
    table = client.update_table(table, ["schema"])
    assert table.schema[-1].name == "subscription"
    assert {f.name: f.mode for f in table.schema}["message_id"] == "NULLABLE"
    for wrong in (
        table.schema[1:],
        [bigquery.SchemaField("data", "STRING"), *table.schema[1:]],
        [*table.schema, bigquery.SchemaField("must", "STRING", mode="REQUIRED")],
    ):
        table.schema = wrong
        with pytest.raises(exceptions.BadRequest, match="Provided Schema does not match Table"):
            client.update_table(client_table := table, ["schema"])
        table = client.get_table(client_table.reference)


def test_partitioning_can_t_be_changed(client, dataset):
    table = client.create_table(archive(dataset))
    table.time_partitioning = bigquery.TimePartitioning(type_="HOUR")
    with pytest.raises(exceptions.BadRequest, match="Cannot change partitioning"):
        client.update_table(table, ["time_partitioning"])


def test_bad_tables_are_refused(client, dataset):
    wrong = archive(dataset)
    wrong.clustering_fields = ["nothing"]
    with pytest.raises(exceptions.BadRequest, match="clustering"):
        client.create_table(wrong)
    with pytest.raises(exceptions.BadRequest, match="not a valid value"):
        client.create_table(bigquery.Table(f"shop.{dataset}.t", [bigquery.SchemaField("a", "PIGEON")]))
    with pytest.raises(exceptions.BadRequest, match="Duplicate field"):
        client.create_table(
            bigquery.Table(
                f"shop.{dataset}.t", [bigquery.SchemaField("a", "STRING"), bigquery.SchemaField("A", "STRING")]
            )
        )


def test_an_explicit_null_at_creation_does_not_keep_the_dataset_s_defaults_away(client, dataset):
    parent = client.get_dataset(dataset)
    parent.default_table_expiration_ms = 3_600_000
    parent.default_partition_expiration_ms = 86_400_000
    client.update_dataset(parent, ["default_table_expiration_ms", "default_partition_expiration_ms"])
    wanted = bigquery.Table(f"shop.{dataset}.t", ARCHIVE)
    wanted.expires = None
    wanted.time_partitioning = bigquery.TimePartitioning(type_="DAY")
    wanted.time_partitioning.expiration_ms = None
    table = client.create_table(wanted)
    assert (table.expires, table.time_partitioning.expiration_ms) == (None, 86_400_000)
    plain = bigquery.Table(f"shop.{dataset}.plain", ARCHIVE)
    plain.expires = None
    assert client.create_table(plain).expires is not None
