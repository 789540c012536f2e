"""Gives each new SQLite job store of a test process the schema that the first one's migrations made.

To run every migration takes 15 times as long as to make the tables they end in, and thousands of tests open a
store. Tests of the migrations use the fixture ``migrations``, which runs them as the product does.
"""

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from jobs.store import database

_run_migrations = database._run_migrations
_on_sqlite_connect = database._on_sqlite_connect


class Schema:
    """The statements that make the newest schema, from the first store that the migrations made."""

    def __init__(self) -> None:
        self._statements: list[str] = []

    def make(self, connection: Connection) -> None:
        if connection.dialect.name != "sqlite" or sa.inspect(connection).get_table_names():
            _run_migrations(connection)
        elif self._statements:
            for statement in self._statements:
                connection.exec_driver_sql(statement)
        else:
            _run_migrations(connection)
            made = connection.connection.driver_connection.iterdump()
            self._statements = [line for line in made if line not in {"BEGIN TRANSACTION;", "COMMIT;"}]


def connect(connection: Any, record: Any) -> None:
    """Prepare a connection as the product does, but without fsync: the tests of power cuts run other processes."""
    _on_sqlite_connect(connection, record)
    connection.execute("PRAGMA synchronous = OFF")


def install() -> None:
    """Let every new SQLite store of this test process have the copied schema."""
    database._run_migrations = Schema().make
    database._on_sqlite_connect = connect


@pytest.fixture
def migrations(monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(database, "_run_migrations", _run_migrations)
        yield
