"""Backfills over an archive in the stand-in: 300 messages of orders and ten of members."""

import uuid

import pytest

from backfill.job import select
from backfill.plan.options import RunOptions
from backfill.plan.request import BackfillRequest
from backfill.plan.settings import BackfillSettings
from backfill.run.folder import BackfillFolder
from backfill.run.selection import read_selection, read_slice
from jobs.folder import Control, Order
from model.principal import LOCAL
from tests.standin.archived import fill_archive, numbered_messages

ROWS = 300
QUERY = (
    "SELECT data, attributes, message_id, publish_time, topic, ordering_key FROM `{table}` "
    "WHERE _PARTITIONTIME >= @from AND topic = @topic"
)
PARAMETERS = {
    "from": {"type": "TIMESTAMP", "value": "2024-01-01T00:00:00Z"},
    "topic": {"type": "STRING", "value": "orders"},
}


@pytest.fixture(scope="module")
def table():
    return f"d{uuid.uuid4().hex[:12]}.messages"


@pytest.fixture(scope="module")
def messages():
    """Messages of seven ordering keys, newest first."""
    return numbered_messages([f"k{n % 7}" for n in range(ROWS)])


@pytest.fixture(scope="module")
def bigquery(session_standin, table, messages):
    """An archive in the stand-in that holds the messages as orders, and ten of members."""
    return fill_archive(session_standin, table, messages)


@pytest.fixture
def deployment(tmp_path, emulator_host, bigquery, pubsub):
    pubsub.create_topic("replay")
    return BackfillSettings(
        home=tmp_path,
        project="shop",
        emulator_host=emulator_host,
        replay_secret="secret",
        warehouse=bigquery,
        max_window_days=36_600,
        query_memory="500MB",
    )


@pytest.fixture
def ask(table):
    def make(query=QUERY, **changes):
        given = {"topic": "replay", "parameters": PARAMETERS, **changes}
        return BackfillRequest(query.format(table=table), **given)

    return make


@pytest.fixture
def make(service, ask, deployment):
    """Create a backfill, and return its folder with its first attempt under way."""

    def create(query=QUERY, **changes):
        backfill = service.create(ask(query, **changes), principal=LOCAL)
        folder = BackfillFolder(deployment.home / "backfills" / backfill.id)
        folder.write_control(Control(1, Order.RUN))
        return folder

    return create


def run(folder, epoch=1):
    specification = folder.read_specification()
    return select(folder, epoch, specification, RunOptions.from_specification(specification))


def rows_of(folder):
    selection = read_selection(folder.selection)
    return [row for part in selection.slices for row in read_slice(folder.selection, part).to_pylist()]


def queries(standin):
    """How many queries were started that are billed."""
    jobs = standin.client().list_jobs(all_users=True)
    return sum(job.job_id.startswith("refeed-selection-") for job in jobs)


def codes(plan):
    return {warning["code"] for warning in plan["warnings"]}
