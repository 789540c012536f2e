import base64
import io
import json
import uuid
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from google.cloud import bigquery

from model.table import ARCHIVE_COLUMNS
from tests.standin.fixture import standin
from tests.standin.writer import COMMITTED, Writer, request

__all__ = ["standin"]

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
PAIR = (bigquery.SchemaField("key", "STRING"), bigquery.SchemaField("value", "STRING"))
ARCHIVE = [
    bigquery.SchemaField(column.name, "RECORD", mode="REPEATED", fields=PAIR)
    if column.type == "ATTRIBUTES"
    else bigquery.SchemaField(column.name, column.type)
    for column in ARCHIVE_COLUMNS
]


def messages(first, count, topic="orders"):
    """Rows of the archive, numbered."""
    return pa.RecordBatch.from_pylist(
        [
            {
                "data": b"\x00\xff%d" % number,
                "attributes": [{"key": "number", "value": str(number)}, {"key": "type", "value": "order"}],
                "message_id": f"m{number}",
                "publish_time": MOMENT,
                "topic": topic,
                "subscription": "refeed",
                "ordering_key": "",
                "ingest_time": MOMENT,
            }
            for number in range(first, first + count)
        ]
    )


class Archive(Writer):
    """An archive table with Google's clients on it."""

    def add(self, first, count, topic="orders"):
        """Append messages to a COMMITTED stream: they are there at once."""
        [answer] = self.append(request(self.create(COMMITTED), messages(first, count, topic)))
        assert not answer.error.code, answer.error

    def load(self, first, count, partition, topic="orders"):
        """Load messages into a partition such as 20260102."""
        rows = messages(first, count, topic).to_pylist()
        times = {"publish_time": MOMENT.isoformat(), "ingest_time": MOMENT.isoformat()}
        given = [{**row, **times, "data": base64.b64encode(row["data"]).decode()} for row in rows]
        self.load_json(given, f"${partition}").result()

    def load_json(self, rows, partition="", **config):
        job_config = bigquery.LoadJobConfig(source_format="NEWLINE_DELIMITED_JSON", **config)
        lines = io.BytesIO("\n".join(map(json.dumps, rows)).encode())
        return self.rest.load_table_from_file(lines, f"{self.name}{partition}", job_config=job_config)

    def query(self, text, *parameters, **config):
        """Return the rows of a query over ``{t}``, the archive, as tuples."""
        job_config = bigquery.QueryJobConfig(query_parameters=list(parameters), **config)
        job = self.rest.query(text.replace("{t}", self.name), job_config=job_config, job_retry=None)
        return [tuple(row.values()) for row in job.result(job_retry=None)]

    def run(self, text, *parameters, **config):
        job_config = bigquery.QueryJobConfig(query_parameters=list(parameters), **config)
        job = self.rest.query(text.replace("{t}", self.name), job_config=job_config, job_retry=None)
        if not job.dry_run:
            job.result(job_retry=None)
        return job


def make_archive(server, dataset, **members):
    """Create an archive table, partitioned by the day of ingestion unless ``members`` say otherwise."""
    table = bigquery.Table(f"shop.{dataset}.messages", ARCHIVE)
    table.time_partitioning = bigquery.TimePartitioning(type_="DAY")
    for name, value in members.items():
        setattr(table, name, value)
    archive = Archive(server, f"{dataset}.messages")
    archive.rest.create_table(table)
    return archive


@pytest.fixture
def dataset(shared_standin):
    """A dataset of this test's own, by its name."""
    name = f"d{uuid.uuid4().hex[:12]}"
    shared_standin.client().create_dataset(name)
    return name


@pytest.fixture
def archive(shared_standin, dataset):
    return make_archive(shared_standin, dataset)
