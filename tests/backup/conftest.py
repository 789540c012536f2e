from datetime import UTC, datetime

import pyarrow as pa
import pytest

from connectors.lake.archive import LakeArchive
from connectors.pubsub.pull import PULLED_SCHEMA, PulledBatch, PullTarget


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
        rows = pa.RecordBatch.from_pylist(
            [
                {
                    "data": payload,
                    "attributes": [{"key": k, "value": v} for k, v in (attributes or {}).items()],
                    "message_id": str(number),
                    "publish_time": datetime(2024, 3, 1, 12, tzinfo=UTC),
                    "ordering_key": "",
                    "ack_id": f"{topic}-{number}",
                }
                for number, payload in enumerate(payloads, first)
            ],
            schema=PULLED_SCHEMA,
        )
        return PulledBatch(PullTarget(f"projects/p/subscriptions/{subscription}", subscription, topic, 10), rows)

    return make
