"""A backfill whose archive is in BigQuery (the stand-in): planned exactly, published whole, paid once."""

from contextlib import closing

import pytest

from model.message import replay_token
from rollout.child import Children
from tests.archive import write_commits
from tests.standin.fixture import standin
from tests.worlds.backfills import House, check_tagged, numbered, request
from warehouse.open import open_warehouse

__all__ = ["standin"]

pytestmark = [pytest.mark.java, pytest.mark.cloud, pytest.mark.timeout(600)]

ROWS = 3_000
OTHERS = 200
QUERY = (
    "SELECT data, attributes, message_id, publish_time, topic, ordering_key FROM backup.messages "
    "WHERE _PARTITIONTIME >= @from AND _PARTITIONTIME < @to AND topic = 'orders'"
)


class BigQueryHouse(House):
    """A house whose archive is in the stand-in."""

    def write_archive(self):
        archive = open_warehouse(self.settings).open_archive()
        write_commits(archive, {"orders": numbered(ROWS), "members": numbered(OTHERS)}).close()


@pytest.fixture
def house(tmp_path, standin):
    environment = {**standin.environment, "REFEED_WAREHOUSE": "bigquery", "REFEED_PRICE_USD_PER_TIB": "6.25"}
    with Children() as children, closing(BigQueryHouse(tmp_path / "home", children, **environment)) as house:
        yield house


def _post(house, path, **body):
    answer = house.client.post(path, json=body, timeout=70)
    assert answer.is_success, answer.text
    return answer.json()


def test_every_message_of_a_plan_arrives_tagged_and_its_query_runs_once(house, standin):
    wanted = request("replay", query=QUERY)
    listener = house.listen("replay")

    tried = _post(house, "/backfills?validate_only=true", **wanted)
    assert tried["rows"] is None
    assert tried["price_usd"] > 0
    plan = _post(house, "/backfills?validate_only=true&exact=true", **wanted)
    assert plan["rows_by_topic"] == {"orders": ROWS}
    backfill_id = _post(house, "/backfills", **wanted, plan_id=plan["plan_id"])["id"]

    ended = house.wait_for_state(backfill_id, "SUCCEEDED")
    assert ended["progress"]["selected"] == ended["progress"]["published"] == plan["rows"] == ROWS
    received = house.receive(listener)
    assert len(received) == ROWS
    token = replay_token(house.settings.replay_secret(), "replay")
    for message in received:
        check_tagged(message, token, backfill_id)
    assert {int(message.attributes["refeed_row"]) for message in received} == set(range(ROWS))
    jobs = standin.client(house.settings.project).list_jobs(all_users=True)
    assert sum(job.job_id.startswith("refeed-selection-") for job in jobs) == 1
