from datetime import UTC, date, datetime

import pytest
from google.api_core import exceptions
from google.cloud import bigquery

from tests.standin.conftest import messages
from tests.standin.writer import COMMITTED, request


def test_rows_go_to_a_destination_by_its_disposition(archive, dataset):
    archive.add(0, 3)
    target = f"shop.{dataset}.selection"

    def write(disposition, text="SELECT message_id, data FROM {t}"):
        return archive.run(text, destination=target, write_disposition=disposition)

    write("WRITE_EMPTY")
    assert archive.rest.get_table(target).num_rows == 3
    with pytest.raises(exceptions.Conflict):
        write("WRITE_EMPTY")
    write("WRITE_APPEND")
    assert archive.rest.get_table(target).num_rows == 6
    with pytest.raises(exceptions.BadRequest, match="does not match"):
        write("WRITE_APPEND", "SELECT 1 AS message_id")
    write("WRITE_TRUNCATE", "SELECT 1 AS one")
    table = archive.rest.get_table(target)
    assert (table.num_rows, [f.name for f in table.schema]) == (1, ["one"])
    with pytest.raises(exceptions.NotFound):
        archive.run("SELECT 1", destination=f"shop.{dataset}.no", create_disposition="CREATE_NEVER")
    archive.run(
        "SELECT message_id FROM {t}",
        destination=f"shop.{dataset}.parted",
        clustering_fields=["message_id"],
        time_partitioning=bigquery.TimePartitioning(type_="DAY"),
        destination_encryption_configuration=bigquery.EncryptionConfiguration("projects/p/keys/k"),
    )
    made = archive.rest.get_table(f"{dataset}.parted")
    assert made.clustering_fields == ["message_id"]
    assert made.encryption_configuration.kms_key_name == "projects/p/keys/k"


def test_results_come_in_pages(archive):
    archive.add(0, 250)
    job = archive.run(
        "SELECT message_id, publish_time, data FROM {t} ORDER BY CAST(SUBSTR(message_id, 2) AS INT64)"
    )
    pages = list(job.result(page_size=100).pages)
    assert [page.num_items for page in pages] == [100, 100, 50]
    rows = list(archive.rest.list_rows(archive.rest.get_table(archive.name), start_index=245, page_size=2))
    assert [row["message_id"] for row in rows] == [f"m{n}" for n in range(245, 250)]
    fields = archive.rest.get_table(archive.name).schema[2:3]
    assert [tuple(r.values()) for r in archive.rest.list_rows(archive.name, fields, max_results=1)] == [("m0",)]


def test_a_page_ends_before_it_is_too_large(archive):
    """ "Tabledata: list": a page is cut by its size as well; the token leads on."""
    stream = archive.create(COMMITTED)
    for number in range(4):
        rows = messages(number, 1)
        big = rows.set_column(0, "data", [bytes(6_000_000)])
        archive.append(request(stream, big))
    rows = archive.rest.list_rows(archive.rest.get_table(archive.name))
    assert [page.num_items for page in rows.pages] == [1, 1, 1, 1]


def test_every_type_survives_rest(archive):
    text = (
        "SELECT 1 AS i, 1.5 AS f, TRUE AS b, 'x' AS s, b'\\x00\\xff' AS y, DATE '2026-01-02' AS d, "
        "TIMESTAMP '2026-01-02 03:04:05.678901+00' AS t, [1, 2] AS a, STRUCT(1 AS k, 'v' AS v) AS r, "
        "CAST(NULL AS STRING) AS n, DATETIME '2026-01-02 03:04:05' AS dt"
    )
    [row] = archive.query(text)
    assert row == (
        1,
        1.5,
        True,
        "x",
        b"\x00\xff",
        date(2026, 1, 2),
        datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        [1, 2],
        {"k": 1, "v": "v"},
        None,
        datetime.fromisoformat("2026-01-02T03:04:05"),
    )


def test_a_job_runs_where_its_datasets_are_and_is_found_there_alone(shared_standin, archive):
    """ "Dataset locations": outside of US and EU a call names the location of the job that it means."""
    client = shared_standin.client()
    parent = bigquery.Dataset(f"shop.far_{archive.name.partition('.')[0]}")
    parent.location = "europe-west1"
    client.create_dataset(parent)
    job = client.query(f"CREATE TABLE {parent.dataset_id}.t AS SELECT 1 AS x")
    job.result()
    assert job.location == "europe-west1"
    with pytest.raises(exceptions.NotFound, match="Not found: Job"):
        client.get_job(job.job_id)
    assert client.get_job(job.job_id, location="europe-west1").state == "DONE"
    text = f"SELECT * FROM {parent.dataset_id}.t"
    with pytest.raises(exceptions.NotFound, match="was not found in location US"):
        client.query(text, location="US", job_retry=None).result(job_retry=None)
    near = shared_standin.client(location="europe-west1")
    assert near.get_job(near.query(text).job_id).result().total_rows == 1


def test_labels_are_held_to_their_requirements(archive):
    """ "Requirements for labels": lower case letters, digits, dashes and underscores, 63 characters at most."""
    for labels in ({"Key": "v"}, {"k": "bf_01ARZ3"}, {"k": "x" * 64}, {"1k": "v"}, {"k": "a.b"}):
        with pytest.raises(exceptions.BadRequest, match="Label"):
            archive.run("SELECT 1", labels=labels)
        table = archive.rest.get_table(archive.name)
        table.labels = labels
        with pytest.raises(exceptions.BadRequest, match="Label"):
            archive.rest.update_table(table, ["labels"])
    assert archive.run("SELECT 1", labels={"k": "bf_01arz3-é", "empty": ""}).state == "DONE"


def test_a_text_has_a_greatest_length(archive):
    """ "Quotas and limits", query jobs: an unresolved GoogleSQL query has 1 MB at most."""
    with pytest.raises(exceptions.BadRequest, match="too large"):
        archive.query(f"SELECT '{'x' * 1024 * 1024}'")
