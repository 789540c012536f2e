"""Backfills of a topic and a range in BigQuery: the edges, every text, and rows in the write buffer."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from backfill.plan.create import BackfillCreate
from backfill.run.folder import BackfillFolder
from connectors.bigquery.writes.archive import BigQueryArchive
from jobs.folder import Control, Order
from model.moment import render_moment
from model.principal import LOCAL
from model.settings import read_settings
from tests.archive import messages, write_commits
from tests.backfill.bigquery.conftest import codes, rows_of, run
from warehouse.bigquery.warehouse import BigQueryWarehouse

START = datetime.now(UTC) - timedelta(hours=3)
END = START + timedelta(hours=1)
TICK = timedelta(microseconds=1)
EVIL = "it's \"a\" \\ `b` \n\r\t -- # /* */ ; @x \x01 é 🦆 \\' ''' \\x27"


@pytest.mark.parametrize("is_held", [False, True], ids=["in partitions", "in the write buffer"])
def test_a_range_selects_its_messages_to_the_microsecond(shared_standin, open_service, deployment, is_held):
    table = f"d{uuid.uuid4().hex[:12]}.messages"
    environment = {**shared_standin.environment, "REFEED_PROJECT": "shop", "REFEED_ARCHIVE_TABLE": table}
    settings = read_settings(environment)
    times = [START - TICK, START, START, END - TICK, END]
    found = [[{"key": EVIL, "value": EVIL}] for _ in times]
    found[2] = [{"key": EVIL, "value": EVIL.replace("\\", "")}, {"key": "n", "value": "2"}]
    rows = messages(len(times), publish_time=times, attributes=found)
    archive = BigQueryArchive("shop", table, settings.bigquery)
    write_commits(archive, {EVIL: rows, "orders": rows}).close()
    if is_held:
        shared_standin.hold_write_buffer(f"shop.{table}", everything=True)
    service = open_service(warehouse=BigQueryWarehouse.of(settings))
    wanted = {"topic": "replay", "source_topic": EVIL, "from_": render_moment(START), "to": render_moment(END)}
    for narrowing, ids in (
        ({}, {"m1", "m2", "m3"}),
        ({"source_attributes": {EVIL: EVIL}}, {"m1", "m3"}),
        ({"where": "message_id = 'm4' OR message_id = 'm2'"}, {"m2"}),
    ):
        request = BackfillCreate(**wanted, **narrowing, allow_overlap=True)
        plan = service.plan(request, principal=LOCAL, exact=True)
        assert (plan["rows"], plan["query"].splitlines()[1]) == (len(ids), f"FROM {table}")
        assert codes(plan) & {"write_buffer_left_out", "write_buffer_added"} == {"write_buffer_added"}
        made = service.create(request, principal=LOCAL)
        folder = BackfillFolder(deployment.home / "backfills" / made.id)
        folder.write_control(Control(1, Order.RUN))
        assert run(folder).rows == len(ids)
        assert {(row["message_id"], row["topic"]) for row in rows_of(folder)} == {(each, EVIL) for each in ids}
