"""Fills a home's archive with messages, as the backup stream would."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from connectors.lake.archive import LakeArchive
from model.archive import Attempt

PUBLISHED = datetime(2024, 3, 1, tzinfo=UTC)


def fill_archive(home: Path, messages: Mapping[str, int]) -> None:
    """Archive, by topic, messages ``m0``, ``m1``, ... with their number as data and as the attribute ``n``."""
    archive = LakeArchive(str(home / "lake"), "backup.messages")
    archive.create()
    lease = archive.take_lease("lease")
    parts = [(topic, f"refeed-backup.{topic}", _rows(count)) for topic, count in messages.items()]
    archive.commit([archive.writer().write(parts)], Attempt("stream", 1, "lease", lease))


def _rows(count: int) -> pa.RecordBatch:
    entry = pa.struct([("key", pa.string()), ("value", pa.string())])
    return pa.record_batch(
        {
            "data": pa.array([f'{{"n": {n}}}'.encode() for n in range(count)], pa.binary()),
            "attributes": pa.array([[{"key": "n", "value": str(n)}] for n in range(count)], pa.list_(entry)),
            "message_id": [f"m{n}" for n in range(count)],
            "publish_time": pa.array(
                [PUBLISHED + timedelta(seconds=n) for n in range(count)], pa.timestamp("us", "UTC")
            ),
            "ordering_key": [""] * count,
        }
    )
