"""Promise 1 and 2: the archive holds every message once, bit for bit, whatever is killed and when."""

import json
import signal
from pathlib import Path

import pytest

from backup.status import StatusFile
from connectors.lake.archive import LakeArchive
from connectors.pubsub.publish import Publisher
from model.failpoint import FAILPOINTS
from model.message import REPLAY_ATTRIBUTE, Message, backup_subscription_id, replay_token
from tests.acceptance.conftest import wait_for

pytestmark = [pytest.mark.java, pytest.mark.acceptance, pytest.mark.timeout(600)]

STREAM_FAILPOINTS = [name for name in FAILPOINTS if not name.startswith("compact.")]


def test_a_kill_at_any_failpoint_loses_nothing_and_archives_nothing_twice(backyard, tmp_path):
    backyard.attach("orders", "members")
    for seed, failpoint in enumerate(STREAM_FAILPOINTS):
        backyard.publish("orders", 200, seed)
        backyard.publish("members", 100, seed)
        marker = tmp_path / failpoint
        backup = backyard.start_backup(REFEED_FAILPOINTS=f"{failpoint}=0:{marker}")

        def is_hit(backup=backup, marker=marker):
            # One more message: the failpoint's batch needs something to hold even when all else is archived.
            if backup.is_running and not marker.exists():
                backyard.publish("orders", 1)
            assert backup.is_running or marker.exists(), backup.ended_error().message
            return marker.exists()

        wait_for(is_hit, seconds=90, why=f"{failpoint} was passed; the stream's log: {backup.log_tail()}")
        backup.kill()
    backup = backyard.start_backup()
    backyard.wait_until_archived(backup)
    backyard.check_archive()
    assert backup.stop() == 0
