from datetime import UTC, datetime

import pytest

from connectors.lake.archive import LakeArchive
from connectors.pubsub.pull import PulledBatch, PullTarget
from tests.archive import messages


@pytest.fixture
def archive(tmp_path):
    found = LakeArchive(str(tmp_path / "lake"), "backup.messages")
    found.create()
    return found


@pytest.fixture
def pulled():
    """Return a batch as a Pull brings it; ids count up from ``first``."""

    def make(topic, *payloads, first=1, attributes=None):
        subscription = f"refeed-backup.{topic}"
        count, pairs = len(payloads), [{"key": k, "value": v} for k, v in (attributes or {}).items()]
        ids = [str(number) for number in range(first, first + count)]
        acks, noon = [f"{topic}-{number}" for number in ids], datetime(2024, 3, 1, 12, tzinfo=UTC)
        columns = {"attributes": [pairs] * count, "message_id": ids, "publish_time": [noon] * count}
        rows = messages(count, data=payloads, ack_id=acks, **columns)
        return PulledBatch(PullTarget(f"projects/p/subscriptions/{subscription}", subscription, topic, 10), rows)

    return make
