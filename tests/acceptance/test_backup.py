"""Promise 1 and 2: the archive holds every message once, bit for bit, whatever is killed and when."""

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pyarrow.parquet as pq
import pytest

from connectors.lake.archive import LakeArchive
from connectors.pubsub.publish import Publisher
from inventory.streams import read_streams
from jobs.store import open_store
from model.message import REPLAY_ATTRIBUTE, Message, backup_subscription_id, replay_token
from model.settings import read_settings
from streams.control import StreamControl
from streams.folder import StreamFolder
from streams.status import StatusFile
from tests.acceptance.conftest import kill_at
from tests.archive import messages, write_commits
from tests.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.kills, pytest.mark.timeout(1200)]

# Boundaries that only real processes have: a worker's pull, and the disk. test_moves.py has the table. The
# simulation kills the engine at each of the others too.
STREAM_FAILPOINTS = ("pull.received", "journal.written")


def test_a_kill_at_any_failpoint_loses_nothing_and_archives_nothing_twice(backyard, tmp_path):
    backyard.attach("orders", "members")
    for seed, failpoint in enumerate(STREAM_FAILPOINTS):
        backyard.publish("orders", 200, seed)
        backyard.publish("members", 100, seed)
        marker = tmp_path / failpoint
        backup = backyard.start_backup(REFEED_FAILPOINTS=f"{failpoint}=0:{marker}")
        kill_at(backup, marker, lambda: backyard.publish("orders", 1))
    backup = backyard.start_backup()
    backyard.wait_until_archived(backup)
    backyard.check_archive()
    assert backup.stop() == 0


def test_topics_attached_meanwhile_rivals_a_broker_killed_and_a_drain_change_nothing(backyard, tmp_path):
    backyard.attach("orders")
    backyard.publish("orders", 300)
    publish_extremes(backyard)
    shared = f"sqlite:///{tmp_path / 'shared' / 'jobs.db'}"
    backup = backyard.start_backup(REFEED_JOB_STORE=shared)
    backyard.wait_until_archived(backup)

    same_home = backyard.start_backup()
    other_home = backyard.start_backup(REFEED_HOME=str(tmp_path / "other"), REFEED_LAKE=backyard.settings.lake)
    for rival, why in ((same_home, f"process {backup.pid}"), (other_home, "holds the lease backup-refeed-local")):
        wait_until(lambda: not rival.is_running, seconds=180, why="a second stream ended")  # noqa: B023
        assert rival.exit_code not in (0, None)
        assert why in rival.log_tail()
    assert backup.is_running

    # A subscription that somebody made by hand has no filter: the stream itself leaves replays out, and counts.
    backyard.pubsub.create_topic("members")
    backyard.pubsub.create_subscription(backup_subscription_id("members"), "members", ack_deadline_seconds=10)
    token = replay_token(backyard.settings.replay_secret(), "members")
    replayed = Message(data=b"again", attributes={REPLAY_ATTRIBUTE: token})
    Publisher(backyard.pubsub.channel, backyard.pubsub.topic_path("members")).publish([replayed])
    backyard.publish("members", 300)
    backyard.wait_until_archived(backup)

    backyard.publish("orders", 300, seed=1)
    backyard.server.kill()
    backyard.server.start()
    backyard.wait_for_server()
    backyard.publish("members", 300, seed=1)
    backyard.wait_until_archived(backup)

    backyard.publish("orders", 300, seed=2)
    assert backup.stop() == 0
    status = StatusFile.read(backyard.home / "streams" / "backup" / "status.json")
    assert (status["state"], status["totals"]["replays"]) == ("stopped", 1)
    # An API with another home finds the same in the store.
    with closing(open_store(shared)) as store:
        (stored,) = store.list_stream_reports()
    assert (stored.report.name, stored.report.pid, stored.report.state) == ("backup", backup.pid, "stopped")
    assert stored.report.instance == status["instance"]
    assert stored.report.status["totals"] == status["totals"]
    # What the drained stream did not take is still there for the next one, which a newer store does not trouble.
    with closing(sqlite3.connect(tmp_path / "shared" / "jobs.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = 'newer'")
    backup = backyard.start_backup(REFEED_JOB_STORE=shared)
    backyard.wait_until_archived(backup)
    (shown,) = read_streams(backyard.home, None)
    assert (shown.state, shown.owner and shown.owner.pid) == ("RUNNING", backup.pid)
    assert backup.stop() == 0
    backyard.check_archive()

    journal = backyard.home / "streams" / "backup" / "journal"
    damaged = journal / "000000000999999.done.arrow"
    damaged.write_bytes(b"\x00" * 100)
    backup = backyard.start_backup()
    wait_until(lambda: not backup.is_running, seconds=180, why="the stream refused to start")
    assert str(damaged) in backup.log_tail()
    assert f"Move the folder {journal} away" in backup.log_tail()


def publish_extremes(backyard) -> None:
    """Publish the largest messages, a producer's own tags, and a replay, which is not archived again."""
    secret = backyard.settings.replay_secret()
    extremes = [
        Message(data=b"", attributes={"empty": ""}),
        Message(data=bytes(range(256)) * 39_000, attributes={"big": "1"}),
        Message(data=b"\x00\xff", attributes={f"k{n}": "v" * 1024 for n in range(100)}),
        Message(data=b"x", attributes={"k" * 256: "ключ🙂"}),
        # A producer's tag, another topic's token: neither says that this message was archived before.
        Message(data=b"x", attributes={REPLAY_ATTRIBUTE: "my own"}),
        Message(data=b"x", attributes={REPLAY_ATTRIBUTE: replay_token(secret, "members")}),
    ]
    publisher = Publisher(backyard.pubsub.channel, backyard.pubsub.topic_path("orders"))
    ids = publisher.publish(extremes)
    backyard.published |= {("orders", i): m for i, m in zip(ids, extremes, strict=True)}
    publisher.publish([Message(data=b"a replay", attributes={REPLAY_ATTRIBUTE: replay_token(secret, "orders")})])


def test_a_drain_with_a_bound_another_pace_a_pause_and_a_cancel_lose_and_repeat_nothing(backyard):
    backyard.attach("orders")
    folder = StreamFolder.of(backyard.home, "backup", "in_1")
    # A batch so long that its tasks hold the messages when the drain comes.
    backup = backyard.start_backup("--instance", "in_1", REFEED_BACKUP_BATCH_SECONDS="60")
    backyard.publish("orders", 300)
    leased = lambda: sum(s["leased_messages"] for s in backyard.stats().values())  # noqa: E731
    wait_until(
        lambda: leased() == 300, seconds=180, every_seconds=0.05, why=f"its tasks hold all: {backup.log_tail()}"
    )
    StreamControl(1, "drain", timeout_seconds=0).write(folder.control)
    wait_until(lambda: not backup.is_running, seconds=30, why="it ends")
    assert backup.exit_code == 0, backup.log_tail()
    status = StatusFile.read(folder.status)
    assert (status["state"], status["control_number"], status["not_committed"]) == ("stopped", 1, 300)
    assert status["error"]["code"] == "drain_timed_out"
    assert (backyard.unacked(), backyard.archived()) == (300, [])

    # Another start of the same stream, on the same state, which is steered under load.
    folder = StreamFolder.of(backyard.home, "backup", "in_2")
    backup = backyard.start_backup("--instance", "in_2")

    def wait_while_publishing(state: str, number: int) -> None:
        def is_there() -> bool:
            backyard.publish("orders", 50, seed=len(backyard.published))
            assert backup.is_running, backup.ended_error().message
            found = StatusFile.read(folder.status) or {}
            return (found.get("state"), found.get("control_number")) == (state, number)

        wait_until(
            is_there, seconds=180, every_seconds=0.05, why=f"{state} by order {number}: {backup.log_tail()}"
        )

    wait_while_publishing("running", 0)
    pid = StatusFile.read(folder.status)["pid"]
    StreamControl(1, "run", batch_seconds=0.1, batch_bytes=1_000_000).write(folder.control)
    wait_while_publishing("running", 1)
    assert (pid, backup.log.read_text().count("backup_started")) == (backup.pid, 2), "one process, two queries"
    StreamControl(2, "pause", timeout_seconds=60).write(folder.control)
    wait_while_publishing("paused", 2)
    journal, rows = sorted((folder.state / "journal").iterdir()), len(backyard.archived())
    until = time.monotonic() + 1
    wait_until(lambda: time.monotonic() > until, seconds=5, why="batches that are commits away came meanwhile")
    assert (sorted((folder.state / "journal").iterdir()), len(backyard.archived())) == (journal, rows)
    StreamControl(3, "run", batch_seconds=0.1, batch_bytes=1_000_000).write(folder.control)
    wait_while_publishing("running", 3)
    assert backup.log.read_text().count("backup_started") == 2, "a pause begins no query"
    backyard.publish("orders", 500, seed=1)
    StreamControl(4, "cancel").write(folder.control)
    wait_until(lambda: not backup.is_running, seconds=30, why="it ends")
    assert backup.exit_code == 0, backup.log_tail()
    status = StatusFile.read(folder.status)
    assert (status["state"], status["control_number"]) == ("cancelled", 4)
    backyard.wait_until_archived(backyard.start_backup())
    backyard.check_archive()


def test_a_full_disk_stops_the_stream_unacked_and_room_lets_it_go_on(backyard, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small disk can't be mounted here: {mounted.stderr.strip()}")
    try:
        backyard.attach("orders")
        backup = backyard.start_backup(REFEED_LAKE=str(disk / "lake"))
        log = backup.log
        wait_until(
            lambda: "backup_started" in log.read_text(), seconds=180, why=f"it started: {backup.log_tail()}"
        )
        filler = disk / "filler"
        left_bytes = shutil.disk_usage(disk).free - 200_000
        filler.write_bytes(b"\x00" * left_bytes)
        dice = random.Random(7)
        messages = [Message(data=dice.randbytes(2_000), attributes={"n": str(n)}) for n in range(3_000)]
        ids = Publisher(backyard.pubsub.channel, backyard.pubsub.topic_path("orders")).publish(messages)
        backyard.published = {("orders", i): m for i, m in zip(ids, messages, strict=True)}
        wait_until(lambda: "storage_full" in log.read_text(), seconds=180, why=f"it noticed: {backup.log_tail()}")
        assert backyard.unacked() > 0
        filler.unlink()
        backyard.wait_until_archived(backup)
        backyard.settings = read_settings({**backyard.environment, "REFEED_LAKE": str(disk / "lake")})
        backyard.check_archive()
        assert backup.stop() == 0
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize("failpoint", ["compact.before", "compact.after"])
def test_a_kill_during_compaction_loses_no_row_and_leaves_no_row_twice(tmp_path, failpoint):
    archive = LakeArchive(str(tmp_path / "lake"), "backup.messages")
    write_commits(archive, *[{"orders": messages(1)}] * 5)
    script = (
        "import sys; from connectors.lake.archive import LakeArchive\n"
        "LakeArchive(sys.argv[1], 'backup.messages').compact()"
    )
    killed = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "lake")],
        env={**os.environ, "REFEED_FAILPOINTS": f"{failpoint}=0:{tmp_path / 'hit'}"},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert sum(file.rows for file in archive.data_files()) == 5
    archive.compact()
    assert sum(pq.ParquetFile(file.path).metadata.num_rows for file in archive.data_files()) == 5
