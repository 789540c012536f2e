"""Messages, and archives that hold them as the backup stream would have written them."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from connectors.columns import arrow_schema
from connectors.lake.archive import LakeArchive
from connectors.lake.files import FILE_SCHEMA
from connectors.pubsub.pull import PULLED_SCHEMA
from model.archive import Attempt
from pipeline.dead_letters import DEAD_LETTER_SCHEMA

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
    archive = LakeArchive(str(home / "lake"), "backup.messages")
    write_commits(archive, {topic: messages(count) for topic, count in counts.items()})


def entries(attributes: Mapping[str, str | None]) -> list[dict[str, str | None]]:
    """Return attributes as a column of the archive holds them."""
    return [{"key": key, "value": value} for key, value in attributes.items()]


def write_table(lake: Path, table: str, rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> None:
    dated = [{**row, "ingest_date": row["ingest_time"].date()} for row in rows]
    columns = schema.append(pa.field("ingest_date", pa.date32()))
    path = str(lake.joinpath(*table.split(".")))
    found = pa.Table.from_pylist(dated, columns)
    write_deltalake(path, found, partition_by=["ingest_date"], mode="append", schema_mode="merge")


def write_archived(lake: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write an archive of messages that came when their rows say it."""
    given = ({"subscription": f"refeed-backup.{row['topic']}", "ordering_key": "", **row} for row in rows)
    write_table(lake, "backup.messages", given, FILE_SCHEMA)


def write_letters(lake: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write dead letters as a pipeline's stream would have written them."""
    write_table(lake, "backup.dead_letters", rows, arrow_schema(DEAD_LETTER_SCHEMA))
