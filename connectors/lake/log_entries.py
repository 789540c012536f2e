"""What a commit writes to a table's log: the files that it adds and removes, and its transactions."""

import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from deltalake.transaction import AddAction, RemoveAction

from connectors.lake.files import WrittenFile


def append_entries(
    files: Sequence[WrittenFile], transactions: Mapping[str, int], column: str
) -> list[dict[str, Any]]:
    """Return the lines of a commit that adds ``files``, as Delta's protocol has them in JSON."""
    commit = {
        "timestamp": int(time.time() * 1000),
        "operation": "WRITE",
        "operationParameters": {"mode": "Append"},
    }
    added = [
        {
            "path": quote(file.path),
            "partitionValues": {column: file.partition},
            "size": file.size_bytes,
            "modificationTime": file.modified_at_ms,
            "dataChange": True,
            "stats": file.stats,
        }
        for file in files
    ]
    noted = [{"appId": app, "version": version} for app, version in transactions.items()]
    return [{"commitInfo": commit}, *({"add": file} for file in added), *({"txn": each} for each in noted)]


def add_action(file: WrittenFile, column: str, *, is_data_change: bool = True) -> AddAction:
    """Return what adds a file, of a partition by ``column``, in a commit that delta-rs writes."""
    return AddAction(
        path=file.path,
        size=file.size_bytes,
        partition_values={column: file.partition},
        modification_time=file.modified_at_ms,
        data_change=is_data_change,
        stats=file.stats,
    )


def remove_action(
    path: str, size_bytes: int, partition: Mapping[str, str | None], *, is_data_change: bool = True
) -> RemoveAction:
    """Return what takes a file, which is at ``path`` in the table's folder, out of the table."""
    return RemoveAction(
        path=path,
        data_change=is_data_change,
        deletion_timestamp=int(time.time() * 1000),
        size=size_bytes,
        partition_values=dict(partition),
    )
