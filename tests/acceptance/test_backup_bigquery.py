"""Promise 1 and 2 in BigQuery (the stand-in): once, bit for bit, whatever is killed and when."""

import pytest

from connectors.pubsub.publish import Publisher
from model.failpoint import FAILPOINTS
from model.message import Message
from rollout.child import Children
from streams.status import StatusFile
from tests.acceptance.conftest import Backyard
from tests.standin.fixture import standin
from tests.waiting import wait_until
from warehouse.open import open_warehouse

__all__ = ["standin"]

pytestmark = [pytest.mark.java, pytest.mark.cloud, pytest.mark.timeout(1500)]

# Where a kill leaves something else behind than in the lake; the rest is the same code.
KILLS = ("bigquery.appended", "bigquery.staged", "bigquery.noted", "bigquery.committed", "commit.after")
# Whole processes start between kills; a machine that has other work to do takes its time.
_WAIT_SECONDS = 240


class BigQueryBackyard(Backyard):
    """A backyard whose archive is in the stand-in; a row over 100 KB is too large for an append request."""

    def __init__(self, home, children, standin) -> None:
        super().__init__(
            home,
            children,
            **standin.environment,
            REFEED_WAREHOUSE="bigquery",
            REFEED_BIGQUERY_APPEND_BYTES="100000",
        )
        self.standin = standin
        archive = open_warehouse(self.settings).open_archive()
        archive.create()
        archive.close()

    def publish_large(self, topic: str, seed: int) -> None:
        message = Message(data=bytes([seed]) * 150_000, attributes={"large": str(seed)})
        (message_id,) = Publisher(self.pubsub.channel, self.pubsub.topic_path(topic)).publish([message])
        self.published[topic, message_id] = message

    def archived(self) -> list[dict]:
        sql = f"SELECT * FROM `{self.settings.archive_table}` WHERE _PARTITIONTIME IS NOT NULL"
        return [dict(row.items()) for row in self.standin.client(self.settings.project).query_and_wait(sql)]


@pytest.fixture
def backyard(tmp_path, standin):
    with Children() as children:
        yield BigQueryBackyard(tmp_path / "home", children, standin)


def test_a_kill_of_stream_or_warehouse_loses_nothing_and_archives_nothing_twice(backyard, tmp_path):
    assert set(KILLS) < set(FAILPOINTS)
    backyard.attach("orders", "members")
    for seed, failpoint in enumerate(KILLS):
        backyard.publish("orders", 100, seed)
        backyard.publish("members", 50, seed)
        backyard.publish_large("orders", seed)
        marker = tmp_path / failpoint
        backup = backyard.start_backup(REFEED_FAILPOINTS=f"{failpoint}=0:{marker}")

        def is_hit(backup=backup, marker=marker):
            if backup.is_running and not marker.exists():
                backyard.publish("orders", 1)
                backyard.publish("members", 1)
            assert backup.is_running or marker.exists(), backup.ended_error().message
            return marker.exists()

        wait_until(
            is_hit,
            seconds=_WAIT_SECONDS,
            every_seconds=0.05,
            why=f"{failpoint} was passed; the stream's log: {backup.log_tail()}",
        )
        backup.kill()
    backup = backyard.start_backup()
    backyard.wait_until_archived(backup, seconds=_WAIT_SECONDS)

    backyard.publish("orders", 100, seed=90)
    backyard.standin.kill()
    backyard.publish("members", 100, seed=90)
    backyard.standin.start()
    backyard.wait_until_archived(backup, seconds=_WAIT_SECONDS)
    backyard.check_archive()
    assert backup.stop() == 0


def test_a_quota_that_is_used_up_is_waited_for_and_refused_rows_are_dead_letters(backyard):
    backyard.attach("orders")
    backup = backyard.start_backup()
    wait_until(
        lambda: "backup_started" in backup.log.read_text(),
        seconds=_WAIT_SECONDS,
        why=f"the stream started: {backup.log_tail()}",
    )
    backyard.standin.fault("CreateWriteStream", status="RESOURCE_EXHAUSTED", count=10_000)
    backyard.publish("orders", 20)
    status = backyard.home / "streams" / "backup" / "status.json"
    wait_until(
        lambda: ((StatusFile.read(status) or {}).get("error") or {}).get("code") == "quota_exceeded",
        seconds=_WAIT_SECONDS,
        why=f"the stream waits; its log: {backup.log_tail()}",
    )
    assert backyard.unacked() >= 20
    assert backyard.archived() == []
    assert backup.is_running
    backyard.standin.clear_faults()
    backyard.standin.fault("AppendRows", "row_errors", rows=[0], message="no good", resource="/messages/")
    backyard.wait_until_archived(backup, seconds=_WAIT_SECONDS)
    sql = f"SELECT message_id, reason FROM `{backyard.settings.archive_table}_dead_letters`"
    (dead,) = backyard.standin.client(backyard.settings.project).query_and_wait(sql)
    assert dead["reason"] == "no good"
    assert len(backyard.archived()) == 19
    assert ("orders", dead["message_id"]) not in backyard.archived_ids()
    assert backup.stop() == 0
    found = StatusFile.read(status)
    assert found["totals"]["dead_letters"] == 1
