"""What a commit writes to a table's log: the files that it adds and removes, and its transactions."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from deltalake.transaction import AddAction, RemoveAction

from connectors.lake.files import WrittenFile


def append_entries(
    files: Sequence[WrittenFile], transactions: Mapping[str, int], column: str, *, now: float
) -> list[dict[str, Any]]:
    """Return the lines of a commit that adds ``files`` at ``now``, as Delta's protocol has them in JSON."""
    commit = {
        "timestamp": int(now * 1000),
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
    path: str, size_bytes: int, partition: Mapping[str, str | None], *, now: float, is_data_change: bool = True
) -> RemoveAction:
    """Return what takes a file, which is at ``path`` in the table's folder, out of the table at ``now``.

    Vacuum deletes the file by that time, so it is the storage's, in Unix seconds.
    """
    return RemoveAction(
        path=path,
        data_change=is_data_change,
        deletion_timestamp=int(now * 1000),
        size=size_bytes,
        partition_values=dict(partition),
    )
