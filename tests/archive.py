"""Messages, and archives that hold them as the backup stream would have written them."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from connectors.lake.archive import LakeArchive
from connectors.pubsub.pull import PULLED_SCHEMA
from model.archive import Attempt

PUBLISHED = datetime(2024, 3, 1, tzinfo=UTC)


def messages(count: int, **columns: Sequence[Any]) -> pa.RecordBatch:
    """Return ``m0``, ``m1``, ... with their number as data and as attribute ``n``; ``columns`` replace these."""
    numbers = range(count)
    made: dict[str, Sequence[Any]] = {
        "data": [f'{{"n": {n}}}'.encode() for n in numbers],
        "attributes": [[{"key": "n", "value": str(n)}] for n in numbers],
        "message_id": [f"m{n}" for n in numbers],
        "publish_time": [PUBLISHED + timedelta(seconds=n) for n in numbers],
        "ordering_key": [""] * count,
        "ack_id": ["a"] * count,
    }
    return pa.RecordBatch.from_pydict({**made, **columns}, schema=PULLED_SCHEMA)


def write_commits(archive: Any, *commits: Mapping[str, pa.RecordBatch]) -> Any:
    """Make the archive, commit the messages of each topic, each commit an attempt of one stream, and return it."""
    archive.create()
    lease = archive.take_lease("lease")
    for number, topics in enumerate(commits, archive.committed_attempt("stream") + 1):
        parts = [(topic, f"refeed-backup.{topic}", rows) for topic, rows in topics.items()]
        archive.commit([archive.writer().write(parts)], Attempt("stream", number, "lease", lease))
    return archive


def fill_archive(home: Path, counts: Mapping[str, int]) -> None:
    """Archive so many messages of each topic in the lake of a home."""
    archive = LakeArchive(str(home / "lake"), "backup.messages")
    write_commits(archive, {topic: messages(count) for topic, count in counts.items()})
