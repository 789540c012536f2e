"""What says where tables live, on its way to another process and from an earlier Refeed."""

import json

import pytest

from connectors.bigquery.client import Connection
from model.settings import read_settings
from warehouse.bigquery.warehouse import BigQueryWarehouse
from warehouse.lake.warehouse import LakeWarehouse
from warehouse.open import open_warehouse, warehouse_of_specification

KEY = "projects/shop/locations/europe/keyRings/r/cryptoKeys/k"
BIGQUERY = {
    "REFEED_WAREHOUSE": "bigquery",
    "REFEED_PROJECT": "shop",
    "REFEED_BIGQUERY_LOCATION": "EU",
    "REFEED_BIGQUERY_LABELS": "team=orders",
}


@pytest.mark.parametrize("environment", [{}, BIGQUERY], ids=["lake", "bigquery"])
def test_a_warehouse_is_the_same_in_a_driver_that_reads_its_specification(tmp_path, environment):
    warehouse = open_warehouse(read_settings(environment, home=tmp_path))
    written = json.dumps({"warehouse": warehouse.to_json()})
    assert warehouse_of_specification(json.loads(written)) == warehouse


def test_a_lake_in_the_specification_of_an_earlier_refeed_is_still_found():
    place = {"lake": "/home/ada/.refeed/lake", "table": "ops.raw", "partitioning": "hour"}
    found = warehouse_of_specification({"query": {}, "archive": place})
    assert found == LakeWarehouse("/home/ada/.refeed/lake", "ops.raw", "backup.dead_letters", "hour", "2GB")


def test_a_bigquery_in_the_specification_of_an_earlier_refeed_is_still_found(tmp_path):
    settings = read_settings({**BIGQUERY, "REFEED_BIGQUERY_KMS_KEY": KEY}, home=tmp_path)
    connection = Connection.of("shop", settings.bigquery)
    place = {"warehouse": "bigquery", "connection": connection.as_json(), "table": "ops.raw"}
    found = warehouse_of_specification(json.loads(json.dumps({"query": {}, "archive": place})))
    assert isinstance(found, BigQueryWarehouse)
    assert found.connection == connection
    assert str(found.archive) == "shop.ops.raw"
