import uuid
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from connectors.bigquery.writes.archive import BigQueryArchive
from connectors.pubsub.pull import PULLED_SCHEMA
from model.settings import read_settings
from tests.standin.fixture import standin

NOW = datetime(2024, 3, 1, 13, tzinfo=UTC)

__all__ = ["standin"]


@pytest.fixture
def settings(shared_standin, tmp_path):
    """The settings of a deployment whose BigQuery is the stand-in, with a dataset of this test's own."""
    return read_settings(
        {
            **shared_standin.environment,
            "REFEED_WAREHOUSE": "bigquery",
            "REFEED_PROJECT": "shop",
            "REFEED_ARCHIVE_TABLE": f"d{uuid.uuid4().hex[:12]}.messages",
            "REFEED_BIGQUERY_LABELS": "team=data",
        },
        home=tmp_path / "home",
    )


@pytest.fixture
def archive(settings):
    found = BigQueryArchive(settings.project, settings.archive_table, settings.bigquery)
    found.create()
    yield found
    found.close()


@pytest.fixture
def messages():
    """Return pulled rows with these payloads; ids count up from ``first``."""

    def make(*payloads: bytes, first: int = 1) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist(
            [
                {
                    "data": payload,
                    "attributes": [{"key": "n", "value": str(number)}],
                    "message_id": str(number),
                    "publish_time": datetime(2024, 3, 1, 12, 0, 0, 123456, tzinfo=UTC),
                    "ordering_key": "",
                    "ack_id": f"a-{number}",
                }
                for number, payload in enumerate(payloads, first)
            ],
            schema=PULLED_SCHEMA,
        )

    return make
