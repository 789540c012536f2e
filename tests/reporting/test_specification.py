"""What a merge's driver reads, on a machine with an environment of its own."""

import json
from typing import Any

import pytest

from model.entity import EntityRules
from model.settings import Settings, read_settings
from reporting.request import MergeRequest
from reporting.specification import read_sources, read_warehouse, render_specification
from warehouse.merges import MergeSource
from warehouse.open import open_warehouse

SOURCES = [
    MergeSource(
        "orders", "staging.orders", "reporting.orders", EntityRules(("id",), ("at", "ingest_time"), "day")
    ),
    MergeSource("returns", "staging.returns", "reporting.returns", EntityRules(("id", "shop"), ())),
]
GIVEN = {
    "REFEED_HOME": "/service",
    "REFEED_LAKE": "s3://bucket/lake",
    "REFEED_PROJECT": "shop",
    "REFEED_ARCHIVE_TABLE": "raw.messages",
    "REFEED_BIGQUERY_LABELS": "team=shop",
    "REFEED_BIGQUERY_APPEND_BYTES": "9500000",
    "REFEED_QUERY_MEMORY": "3GB",
}
# As Refeed wrote it before warehouses described themselves.
OLDER = """
{
  "id": "mg_1", "source": null, "since": null, "dry_run": false,
  "sources": [
    {"name": "orders", "staging": "staging.orders", "reporting": "reporting.orders",
     "rules": {"key": ["id"], "order": ["at", "ingest_time"], "partition_field": "day", "has_operation": false,
               "is_soft_delete": false}},
    {"name": "returns", "staging": "staging.returns", "reporting": "reporting.returns",
     "rules": {"key": ["id", "shop"], "order": [], "partition_field": null, "has_operation": false,
               "is_soft_delete": false}}
  ],
  "place": {"warehouse": "%s", "lake": "s3://bucket/lake", "project": "shop", "archive_table": "raw.messages",
            "query_memory": "3GB"},
  "bigquery": {"location": "US", "host": null, "storage_host": null, "is_regional": false,
               "partition_expiration_days": 0, "require_partition_filter": true, "kms_key": null,
               "labels": [["team", "shop"]], "append_bytes": 9500000, "streams_per_hour": 8000,
               "merge_max_bytes_billed": 1000000000000, "streams_per_task": 1}
}
"""


@pytest.fixture(params=["lake", "bigquery"])
def settings(request: pytest.FixtureRequest) -> Settings:
    return read_settings({**GIVEN, "REFEED_WAREHOUSE": request.param})


@pytest.fixture
def elsewhere() -> Settings:
    """The driver's own settings."""
    return read_settings({"REFEED_HOME": "/elsewhere"})


def reread(specification: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(specification)))


def test_a_driver_finds_sources_and_warehouse_as_the_service_had_them(settings, elsewhere):
    warehouse = open_warehouse(settings)
    written = reread(render_specification("mg_1", MergeRequest(), SOURCES, warehouse))
    assert read_sources(written) == SOURCES
    found = read_warehouse(written, elsewhere)
    assert found == warehouse
    assert found.name == settings.warehouse
    assert "/service" not in json.dumps(written)


def test_a_merge_that_an_older_refeed_began_goes_on_where_its_tables_are(settings, elsewhere):
    written = json.loads(OLDER % settings.warehouse)
    assert read_sources(written) == SOURCES
    found, warehouse = read_warehouse(written, elsewhere), open_warehouse(settings)
    assert found.name == settings.warehouse
    # All that a merge asks of either warehouse.
    names = {"lake": ("lake", "query_memory"), "bigquery": ("project", "settings")}[settings.warehouse]
    for name in ("archive_table", *names):
        assert getattr(found, name) == getattr(warehouse, name)
