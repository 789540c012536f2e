"""The pipeline with its tables in BigQuery (the stand-in): a kill at a commit or a publish loses nothing."""

import json

import pytest

from rollout.child import Children
from tests.acceptance.test_pipeline import SOURCES, Plant, attach
from tests.standin.fixture import standin
from tests.waiting import wait_until

__all__ = ["standin"]

pytestmark = [pytest.mark.java, pytest.mark.cloud, pytest.mark.timeout(900)]

INFERRED = "  hooks: {topic: hooks, schema: inferred}\n"


class BigQueryPlant(Plant):
    """A plant whose tables are in the stand-in."""

    def __init__(self, *given, standin, folder):
        environment = {**standin.environment, "REFEED_WAREHOUSE": "bigquery"}
        super().__init__(*given, folder=folder, **environment)
        self.standin = standin

    def rows(self, table):
        sql = f"SELECT * FROM `{self.settings.project}.{table}` WHERE _PARTITIONTIME IS NOT NULL"
        return [dict(row.items()) for row in self.standin.client().query_and_wait(sql)]


@pytest.fixture
def plant(tmp_path, standin):
    with Children() as children:
        yield BigQueryPlant(tmp_path / "home", children, folder=tmp_path, standin=standin)


def test_every_message_is_in_its_table_once_whatever_is_killed_between_note_and_commit(plant, tmp_path):
    plant.publish_schema(sources=SOURCES + INFERRED)
    attach(plant, "orders", "members", "hooks")
    plant.ids["staging.hooks"] = set()
    plant.send_some(200, 0)
    plant.send("staging.hooks", *[json.dumps({"n": n, "who": {"name": "Ann"}}).encode() for n in range(50)])
    marker = tmp_path / "killed"
    pipeline = plant.start_pipeline(REFEED_FAILPOINTS=f"bigquery.noted=0:{marker}")
    wait_until(marker.exists, seconds=480, why=f"an attempt was noted; the stream's log: {pipeline.log_tail()}")
    pipeline.kill()

    pipeline = plant.start_pipeline()
    # A number, then a fraction: the column becomes wider.
    plant.send("staging.hooks", b'{"n": 0.5}', b'{"n": 1, "more": [1]}')
    plant.wait_until_archived(pipeline, seconds=480)
    plant.check()
    hooks = plant.standin.client().get_table(f"{plant.settings.project}.staging.hooks")
    schema = {field.name: field for field in hooks.schema}
    assert (schema["n"].field_type, schema["more"].mode) == ("FLOAT", "REPEATED")
    assert {row["_schema_version"] for row in plant.rows("staging.orders")} != {None}
    assert pipeline.stop() == 0
    status = plant.status()
    assert (status["state"], status["alerts"]) == ("stopped", [])
