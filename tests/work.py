"""Counts what a job store's database does for its callers: unlike seconds, counts do not depend on the machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from jobs.store import JobStore

# SQLite calls back after this number of instructions of its virtual machine, which scans count as results do.
_INSTRUCTIONS = 20


@dataclass
class Work:
    """The statements of a block and the rows that they gave or changed; on SQLite also its instructions.

    PostgreSQL's driver counts the rows of a whole result, and SQLite's those that somebody fetched.
    """

    statements: int = 0
    rows: int = 0
    instructions: int = 0


@contextmanager
def counted(store: JobStore) -> Iterator[Work]:
    """Count the work of every call that the block makes, of this process."""
    engine, work = store._database._engine, Work()

    def count(_: Any, cursor: Any, *__: Any) -> None:
        work.statements += 1
        work.rows += max(cursor.rowcount, 0)

    def count_row(_: Any, row: tuple[Any, ...]) -> tuple[Any, ...]:
        work.rows += 1
        return row

    def count_instructions() -> None:
        work.instructions += _INSTRUCTIONS

    def connect(connection: Any, *_: Any) -> None:
        if engine.dialect.name == "sqlite":
            connection.set_progress_handler(count_instructions, _INSTRUCTIONS)
            connection.row_factory = count_row

    def leave(connection: Any, *_: Any) -> None:
        if engine.dialect.name == "sqlite":
            connection.set_progress_handler(None, 0)
            connection.row_factory = None

    listeners = (("after_cursor_execute", count), ("checkout", connect), ("checkin", leave))
    for name, listener in listeners:
        sa.event.listen(engine, name, listener)
    try:
        yield work
    finally:
        for name, listener in listeners:
            sa.event.remove(engine, name, listener)
