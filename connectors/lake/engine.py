"""DuckDB as the lake's engine: connections that keep to limits, names and texts as its SQL has them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from connectors.lake.object_reads import ObjectReads


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What a connection may use: memory ("2GB"; beyond it spills to ``temp_folder``) and threads."""

    memory: str
    temp_folder: Path
    threads: int = 2


@contextmanager
def open_engine(limits: EngineLimits, reads: ObjectReads | None = None, **settings: str) -> Iterator[Any]:
    """Give a connection in UTC that keeps to ``limits``; further ``settings``, as SQL, are made in their order.

    With ``reads`` it opens files of their bucket, too; an error of theirs is raised as it is.
    """
    limits.temp_folder.mkdir(parents=True, exist_ok=True)
    common = {
        "TimeZone": "'UTC'",
        "threads": str(limits.threads),
        # DuckDB takes 512MB, not 512M.
        "memory_limit": quote_text(limits.memory if limits.memory[-1] in "bB" else f"{limits.memory}B"),
        "temp_directory": quote_text(str(limits.temp_folder)),
        # Payloads of 10 MB come in batches of thousands: 32-bit offsets would overflow.
        "arrow_large_buffer_size": "true",
        "autoinstall_known_extensions": "false",
    }
    with duckdb.connect(":memory:") as connection, _reading(connection, reads):
        for name, value in (common | settings).items():
            connection.execute(f"SET {name} = {value}")
        yield connection


@contextmanager
def _reading(connection: Any, reads: ObjectReads | None) -> Iterator[None]:
    """Have the connection open files by ``reads`` for the length of the block."""
    if reads is None:
        yield
        return
    # A lake on a disk needs none of it.
    from connectors.lake.object_files import ObjectFiles

    files = ObjectFiles(reads)
    connection.register_filesystem(files)
    try:
        yield
    except (duckdb.Error, pa.ArrowException) as exc:
        if files.failure is not None:
            raise files.failure from exc
        raise


def quote_name(name: str) -> str:
    """Return a name as an identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """Return a text as a literal."""
    return "'" + text.replace("'", "''") + "'"
