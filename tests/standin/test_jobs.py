import urllib.error

import pytest
from google.api_core import exceptions
from google.cloud import bigquery


def test_a_destination_is_there_empty_or_of_the_same_columns_as_its_dispositions_say(archive, dataset):
    target = f"shop.{dataset}.selection"
    with pytest.raises(exceptions.NotFound):
        archive.run("SELECT 1 AS id", destination=target, create_disposition="CREATE_NEVER")
    archive.run("SELECT 1 AS id", destination=target)
    with pytest.raises(exceptions.Conflict):
        archive.run("SELECT 1 AS id", destination=target, write_disposition="WRITE_EMPTY")
    with pytest.raises(exceptions.BadRequest, match="does not match"):
        archive.run("SELECT 'a' AS id", destination=target, write_disposition="WRITE_APPEND")


def test_a_load_with_a_bad_row_loads_nothing(archive):
    good, schema = {"message_id": "m1", "data": "AP8="}, archive.rest.get_table(archive.name).schema
    for bad, why in (({"data": "?"}, "base64|padding|Only"), ({"colour": "red"}, "no such field")):
        with pytest.raises(exceptions.BadRequest, match=why):
            archive.load_json([good, bad], schema=schema).result()
    assert archive.rows == 0


def test_a_fault_with_an_unknown_member_is_refused(shared_standin):
    for order in ({"colour": "red"}, {"kind": "explode"}):
        with pytest.raises(urllib.error.HTTPError, match="400"):
            shared_standin.fault("AppendRows", **order)


def test_a_job_runs_where_its_datasets_are_and_is_found_there_alone(shared_standin, archive):
    """ "Dataset locations": outside of US and EU a call names the location of the job that it means."""
    client = shared_standin.client()
    parent = bigquery.Dataset(f"shop.far_{archive.name.partition('.')[0]}")
    parent.location = "europe-west1"
    client.create_dataset(parent)
    client.create_table(bigquery.Table(f"shop.{parent.dataset_id}.t", [bigquery.SchemaField("x", "INT64")]))
    text = f"SELECT * FROM {parent.dataset_id}.t"
    job = client.query(text)
    job.result()
    assert job.location == "europe-west1"
    with pytest.raises(exceptions.NotFound, match="Not found: Job"):
        client.get_job(job.job_id)
    assert client.get_job(job.job_id, location="europe-west1").state == "DONE"
    with pytest.raises(exceptions.NotFound, match="was not found in location US"):
        client.query(text, location="US", job_retry=None).result(job_retry=None)
    near = shared_standin.client(location="europe-west1")
    assert near.get_job(near.query(text).job_id).result().total_rows == 0


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
