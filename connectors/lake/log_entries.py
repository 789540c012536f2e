"""What a commit writes to a table's log: the files that it adds and removes, and its transactions."""

import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from deltalake.transaction import AddAction, RemoveAction

from connectors.lake.data_files import DataFile
from connectors.lake.files import PARTITION_COLUMNS, WrittenFile, partition_value
from model.table import Partitioning


def append_entries(
    files: Sequence[WrittenFile], transactions: Mapping[str, int], partitioning: Partitioning
) -> list[dict[str, Any]]:
    """Return the lines of a commit that adds ``files``, as Delta's protocol has them in JSON."""
    entries: list[dict[str, Any]] = [
        {
            "commitInfo": {
                "timestamp": int(time.time() * 1000),
                "operation": "WRITE",
                "operationParameters": {"mode": "Append"},
            }
        }
    ]
    partition = PARTITION_COLUMNS[partitioning].name
    entries += [
        {
            "add": {
                "path": quote(file.path),
                "partitionValues": {partition: file.partition},
                "size": file.size_bytes,
                "modificationTime": file.modified_at_ms,
                "dataChange": True,
                "stats": file.stats,
            }
        }
        for file in files
    ]
    entries += [{"txn": {"appId": app, "version": version}} for app, version in transactions.items()]
    return entries


def add_action(file: WrittenFile, partitioning: Partitioning, *, is_data_change: bool) -> AddAction:
    """Return what adds a file in a commit that delta-rs writes."""
    return AddAction(
        path=file.path,
        size=file.size_bytes,
        partition_values={PARTITION_COLUMNS[partitioning].name: file.partition},
        modification_time=file.modified_at_ms,
        data_change=is_data_change,
        stats=file.stats,
    )


def remove_action(path: str, file: DataFile, partitioning: Partitioning, *, is_data_change: bool) -> RemoveAction:
    """Return what takes a file, which is at ``path`` in the table's folder, out of the table."""
    return RemoveAction(
        path=path,
        data_change=is_data_change,
        deletion_timestamp=int(time.time() * 1000),
        size=file.size_bytes,
        partition_values={PARTITION_COLUMNS[partitioning].name: partition_value(file.partition, partitioning)},
    )
