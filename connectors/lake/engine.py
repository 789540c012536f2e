"""DuckDB as the lake's engine: connections that keep to limits, names and texts as its SQL has them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What a connection may use: memory ("2GB"; beyond it spills to ``temp_folder``) and threads."""

    memory: str
    temp_folder: Path
    threads: int = 2


@contextmanager
def open_engine(limits: EngineLimits, **settings: str) -> Iterator[Any]:
    """Give a connection in UTC that keeps to ``limits``; further ``settings``, as SQL, are made in their order."""
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
    with duckdb.connect(":memory:") as connection:
        for name, value in (common | settings).items():
            connection.execute(f"SET {name} = {value}")
        yield connection


def quote_name(name: str) -> str:
    """Return a name as an identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """Return a text as a literal."""
    return "'" + text.replace("'", "''") + "'"
