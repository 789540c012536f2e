import base64
import json

import pytest
import requests
from google.api_core import exceptions

from tests.standin.conftest import MOMENT


def row(number, **more):
    return {
        "data": "AP8=",
        "attributes": [{"key": "k", "value": "v"}],
        "message_id": f"m{number}",
        "publish_time": MOMENT.isoformat(),
        **more,
    }


def test_json_is_loaded_whole_or_not_at_all(archive):
    schema = archive.rest.get_table(archive.name).schema
    assert archive.load_json([row(1), row(2)], schema=schema).result().output_rows == 2
    assert archive.query("SELECT data, publish_time, topic FROM {t} WHERE message_id = 'm1'") == [
        (b"\x00\xff", MOMENT, None)
    ]
    for bad, why in ((row(4, data="?"), "base64|padding|Only"), (row(4, colour="red"), "no such field")):
        with pytest.raises(exceptions.BadRequest, match=why):
            archive.load_json([row(3), bad], schema=schema).result()
    assert archive.rows == 2


def test_a_message_of_any_size_can_be_loaded(archive):
    """ "Quotas and limits", load jobs: a JSON row may have 100 MB; an append request only 10."""
    data = base64.b64encode(bytes(11_000_000)).decode()
    archive.load_json([row(1, data=data)]).result()
    assert archive.query("SELECT LENGTH(data) FROM {t}") == [(11_000_000,)]


def test_a_load_may_replace_a_partition_alone(archive):
    archive.load(0, 2, "20260101")
    archive.load(2, 2, "20260102")
    archive.load_json([row(9)], "$20260102", write_disposition="WRITE_TRUNCATE").result()
    rows = archive.query("SELECT CAST(_PARTITIONDATE AS STRING), message_id FROM {t} ORDER BY 2")
    assert rows == [("2026-01-01", "m0"), ("2026-01-01", "m1"), ("2026-01-02", "m9")]


def test_an_upload_goes_on_in_pieces(shared_standin, archive):
    """ "Upload data", resumable uploads: 308 with the range that is there, until the last byte has come."""
    dataset, _, table = archive.name.partition(".")
    body = {
        "configuration": {
            "load": {
                "destinationTable": {"projectId": "shop", "datasetId": dataset, "tableId": table},
                "sourceFormat": "NEWLINE_DELIMITED_JSON",
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
