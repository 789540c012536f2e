from datetime import UTC, datetime

import pytest

from connectors.bigquery.writes.archive import BigQueryArchive
from model.settings import read_settings
from tests.standin.fixture import standin
from tests.worlds.tables import dataset_name, pulled

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
            "REFEED_ARCHIVE_TABLE": f"{dataset_name()}.messages",
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
    return pulled
