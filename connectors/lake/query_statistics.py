"""What the archive's log says of its files: whose messages they hold and how new those are."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from connectors.lake.archive import DataFile, LakeArchive
from connectors.lake.files import PARTITION_COLUMNS
from model.errors import WarehouseError
from model.window import Window

_COLUMNS: Final = ("min.topic", "max.topic", "max.publish_time", "max.ingest_time", "min.ingest_time")


@dataclass(frozen=True, slots=True)
class FileStatistics:
    """A file of the archive; ``topic`` is None when it holds several, or when the log does not tell."""

    file: DataFile
    topic: str | None
    first_ingest_time: datetime | None
    last_ingest_time: datetime | None
    last_publish_time: datetime | None


def read_statistics(archive: LakeArchive, window: Window) -> list[FileStatistics]:
    """Return the files of the newest snapshot whose partitions touch ``window``; none without an archive.

    Raises:
        WarehouseError: the log can't be read.
    """
    try:
        actions = pa.table(DeltaTable(archive.uri).get_add_actions(flatten=True))
    except TableNotFoundError:
        return []
    except (DeltaError, OSError) as exc:
        raise WarehouseError(f"The lake failed while reading the archive's log: {exc}") from exc
    partition = f"partition.{PARTITION_COLUMNS[archive.partitioning].name}"
    names = ["path", "size_bytes", "num_records", partition]
    names += [name for name in _COLUMNS if name in actions.schema.names]
    step = timedelta(days=1) if archive.partitioning == "day" else timedelta(hours=1)
    found = [_statistics(archive.uri, row, partition) for row in actions.select(names).to_pylist()]
    return [s for s in found if s.file.partition < window.end and window.start < s.file.partition + step]


def _statistics(uri: str, row: Mapping[str, Any], partition: str) -> FileStatistics:
    first, last = row.get("min.topic"), row.get("max.topic")
    start = row[partition]
    moment = start if isinstance(start, datetime) else datetime(start.year, start.month, start.day, tzinfo=UTC)
    file = DataFile(f"{uri}/{unquote(row['path'])}", row["size_bytes"], row["num_records"], _aware(moment))
    return FileStatistics(
        file,
        first if first == last else None,
        _moment(row.get("min.ingest_time")),
        _moment(row.get("max.ingest_time")),
        _moment(row.get("max.publish_time")),
    )


def _moment(value: Any) -> datetime | None:
    return _aware(value) if isinstance(value, datetime) else None


def _aware(moment: datetime) -> datetime:
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
