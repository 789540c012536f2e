"""Dataproc Serverless runtime 2.3 LTS brings Spark 3.5: what a batch imports and runs has to run there."""

import os
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rollout.child import Children
from tests.acceptance.test_backfill_bigquery import QUERY, ROWS, BigQueryHouse
from tests.standin.fixture import standin
from tests.worlds.pypi import install

__all__ = ["standin"]

pytestmark = [pytest.mark.java, pytest.mark.cloud, pytest.mark.timeout(900)]

# "Dataproc Serverless for Spark runtime releases": 2.3 LTS has Spark 3.5, 3.0 has Spark 4.0.
_SPARK = "pyspark==3.5.*"
_PY4J = "py4j==0.10.9.7"  # the version that PySpark 3.5 asks for
_ROOT = Path(__file__).parents[2]
# A batch's main module is one of the first two; the rest is imported on the way, some of it inside functions.
_IMPORT_ALL = """
import importlib, pkgutil, pyspark
assert pyspark.__version__.startswith("3.5."), pyspark.__version__
names = ["backfill.job", "backfill.run.publish"]
names += ["reporting.job"]
packages = ["connectors.bigquery", "connectors.bigquery.queries", "connectors.bigquery.tables"]
packages += ["connectors.bigquery.writes", "connectors.lake", "connectors.object_store"]
packages += ["jobs", "model", "sql"]
packages += ["warehouse", "warehouse.bigquery", "warehouse.lake"]
for package in packages:
    found = pkgutil.iter_modules(importlib.import_module(package).__path__, package + ".")
    names += [module.name for module in found]
for name in names:
    importlib.import_module(name)
print(len(names))
"""


@pytest.fixture(scope="module")
def spark35():
    return install(_SPARK, _PY4J, options=("--no-deps",))


@pytest.fixture
def environment(spark35):
    # It comes before the environment's own packages, so that PySpark and py4j are the older ones everywhere.
    return {"PYTHONPATH": os.pathsep.join([str(spark35), str(_ROOT)])}


@pytest.fixture
def house(tmp_path, standin, environment):
    given = {
        **standin.environment,
        **environment,
        "REFEED_WAREHOUSE": "bigquery",
        "REFEED_LAUNCHER": "spark-submit",
    }
    with Children() as children, closing(BigQueryHouse(tmp_path / "home", children, **given)) as house:
        yield house


def test_every_module_of_a_batch_imports_under_spark_3_5(environment):
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT_ALL],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 50


def test_a_backfill_of_bigquery_runs_with_the_spark_submit_of_spark_3_5(house, spark35):
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    bounds = {"from": today - timedelta(days=1), "to": today + timedelta(days=2)}
    parameters = {name: {"type": "TIMESTAMP", "value": at.isoformat()} for name, at in bounds.items()}
    listener = house.listen("replay")
    answer = house.client.post("/backfills", json={"query": QUERY, "topic": "replay", "parameters": parameters})
    assert answer.status_code == 202, answer.text
    backfill_id = answer.json()["id"]

    ended = house.wait_for_state(backfill_id, "SUCCEEDED")

    assert ended["progress"]["published"] == ROWS
    received = house.receive(listener)
    assert {int(message.attributes["n"]) for message in received} == set(range(ROWS))
    assert {message.attributes["refeed_backfill_id"] for message in received} == {backfill_id}
    log = (house.home / "backfills" / backfill_id / "driver.log").read_text()
    assert "version 3.5." in log, log[:2000]
    assert str(spark35) in house.environment["PYTHONPATH"]
