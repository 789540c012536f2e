import base64
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import requests
from google.api_core import exceptions
from google.cloud import bigquery

from tests.standin.conftest import MOMENT, messages

JSON = bigquery.SourceFormat.NEWLINE_DELIMITED_JSON


def row(number, **more):
    return {
        "data": "AP8=",
        "attributes": [{"key": "k", "value": "v"}],
        "message_id": f"m{number}",
        "publish_time": MOMENT.isoformat(),
        **more,
    }


def test_json_is_loaded_whole_or_not_at_all(archive):
    config = bigquery.LoadJobConfig(source_format=JSON, schema=archive.rest.get_table(archive.name).schema)
    job = archive.rest.load_table_from_json([row(1), row(2)], archive.name, job_config=config)
    assert job.result().output_rows == 2
    assert archive.query("SELECT data, publish_time, topic FROM {t} WHERE message_id = 'm1'") == [
        (b"\x00\xff", MOMENT, None)
    ]
    for bad, why in ((row(4, data="?"), "base64|padding|Only"), (row(4, colour="red"), "no such field")):
        job = archive.rest.load_table_from_json([row(3), bad], archive.name, job_config=config)
        with pytest.raises(exceptions.BadRequest, match=why):
            job.result()
    assert archive.rows == 2


def test_a_message_of_any_size_can_be_loaded(archive):
    """ "Quotas and limits", load jobs: a JSON row may have 100 MB; an append request only 10."""
    data = base64.b64encode(bytes(11_000_000)).decode()
    config = bigquery.LoadJobConfig(source_format=JSON)
    archive.rest.load_table_from_json([row(1, data=data)], archive.name, job_config=config).result()
    assert archive.query("SELECT LENGTH(data) FROM {t}") == [(11_000_000,)]


def test_a_load_may_replace_a_partition_alone(archive):
    archive.load(0, 2, "20260101")
    archive.load(2, 2, "20260102")
    config = bigquery.LoadJobConfig(source_format=JSON, write_disposition="WRITE_TRUNCATE")
    target = f"{archive.name}$20260102"
    archive.rest.load_table_from_json([row(9)], target, job_config=config).result()
    rows = archive.query("SELECT CAST(_PARTITIONDATE AS STRING), message_id FROM {t} ORDER BY 2")
    assert rows == [("2026-01-01", "m0"), ("2026-01-01", "m1"), ("2026-01-02", "m9")]
    archive.rest.delete_table(f"shop.{archive.name}$20260101")
    assert archive.rows == 1


def test_an_upload_goes_on_in_pieces(shared_standin, archive):
    """ "Upload data", resumable uploads: 308 with the range that is there, until the last byte has come."""
    dataset, _, table = archive.name.partition(".")
    body = {
        "configuration": {
            "load": {
                "destinationTable": {"projectId": "shop", "datasetId": dataset, "tableId": table},
                "sourceFormat": JSON,
            }
        }
    }
    base = f"{shared_standin.rest_host}/upload/bigquery/v2/projects/shop/jobs"
    begun = requests.post(base, params={"uploadType": "resumable"}, json=body, timeout=30)
    place = begun.headers["Location"]
    data = json.dumps(row(1)).encode()
    first = requests.put(place, data[:10], headers={"Content-Range": "bytes 0-9/*"}, timeout=30)
    assert (first.status_code, first.headers["Range"]) == (308, "bytes=0-9")
    asked = requests.put(place, headers={"Content-Range": f"bytes */{len(data)}"}, timeout=30)
    assert (asked.status_code, asked.headers["Range"]) == (308, "bytes=0-9")
    last = requests.put(
        place, data[10:], headers={"Content-Range": f"bytes 10-{len(data) - 1}/{len(data)}"}, timeout=30
    )
    job = archive.rest.get_job(last.json()["jobReference"]["jobId"])
    assert job.result().output_rows == 1


def test_rows_of_insert_all_are_there_at_once_and_bad_ones_are_named(archive):
    """Reference of tabledata.insertAll: without skipInvalidRows one bad row stops the others."""
    good, bad = row(1), row(2, colour="red")
    errors = archive.rest.insert_rows_json(archive.name, [good, bad], row_ids=["a", "b"])
    assert {e["index"]: e["errors"][0]["reason"] for e in errors} == {0: "stopped", 1: "invalid"}
    assert archive.rows == 0
    errors = archive.rest.insert_rows_json(archive.name, [good, bad], row_ids=["a", "b"], skip_invalid_rows=True)
    assert [e["index"] for e in errors] == [1]
    assert archive.rest.insert_rows_json(archive.name, [good], row_ids=["a"]) == []
    assert archive.rows == 1


def test_a_list_in_parquet_is_an_array_only_on_request(archive):
    """ "Loading Parquet data from Cloud Storage": without inference a LIST is a record of ``list.element``."""
    file = io.BytesIO()
    pq.write_table(pa.Table.from_batches([messages(0, 2)]), file)
    file.seek(0)
    config = bigquery.LoadJobConfig(source_format="PARQUET")
    with pytest.raises(exceptions.BadRequest, match="does not match Table"):
        archive.rest.load_table_from_file(file, archive.name, job_config=config).result()
    archive.load(0, 2, "20260102")
    assert archive.rows == 2
