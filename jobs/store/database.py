"""The store's database: connections, transactions, locks, the schema, and the translation of its errors."""

import json
import sqlite3
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine, make_url

from jobs.store.tables import JOBS, SCHEMA_REVISION
from model.errors import RequestInvalidError, SettingsError, StoreError, StoreUnavailableError
from model.typed import to_plain

_BUSY_SECONDS: Final = 15.0
_BUSY_POLL_SECONDS: Final = 0.02
_CONNECT_SECONDS: Final = 5
_MIGRATE_SECONDS: Final = 120
# A replica that is suspended in a transaction loses it, with its locks, after this time. This must be shorter than
# the others' lock timeout: else they would fail while they wait for the locks.
_IDLE_SECONDS: Final = 5.0
# A server whose machine is gone sends not even a reset: without these a call would wait for hours.
_KEEPALIVE: Final = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
# Namespace of our advisory locks: "refe".
_LOCKS: Final = 0x72656665
_MIGRATIONS: Final = Path(__file__).parents[1] / "migrations"
_render_json: Final = partial(json.dumps, default=to_plain)


class Database:
    """One SQLite file or one PostgreSQL database, migrated to the newest schema when it is opened.

    SQLite serves several threads and processes of one machine: with write-ahead logging readers continue while one
    process writes, and a writer waits up to 15 s for its turn. PostgreSQL serves several machines.

    Raises:
        SettingsError: the url is neither of a SQLite file nor of a PostgreSQL database.
        StoreUnavailableError: it does not answer, or a newer Refeed wrote it; any call may raise it.
    """

    def __init__(self, url: str | URL) -> None:
        self._engine = _create_engine(_parse_url(url))
        self._joined = _Joined()
        self.is_shared = self._engine.dialect.name == "postgresql"
        try:
            self._migrate()
        except BaseException:
            self._engine.dispose()
            raise

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Yield a connection whose reads see one snapshot of the data."""
        if self._joined.connection is not None:
            yield self._joined.connection
            return
        with _translate_errors(), self._engine.connect() as connection:
            if self.is_shared:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")  # noqa: PLW2901
            yield connection

    @contextmanager
    def write(self, lock: str | None = None) -> Iterator[Connection]:
        """Yield a connection in one transaction: its changes are committed together or not at all.

        Other calls of this thread within the block join the transaction. SQLite has one writer at a time, so the
        block must not wait for anything else. On PostgreSQL a read ``for update`` waits for transactions that
        change the same row, and transactions with the same ``lock`` run one at a time.
        """
        with ExitStack() as stack:
            connection = self._joined.connection
            if connection is None:
                stack.enter_context(_translate_errors())
                connection = stack.enter_context(self._engine.connect())
                connection = connection.execution_options(refeed_write=True)
                stack.enter_context(connection.begin())
                stack.enter_context(self._joined.to(connection))
            if lock is not None and self.is_shared and lock not in self._joined.locks:
                _lock(connection, lock)
                self._joined.locks.add(lock)
            yield connection

    @contextmanager
    def write_now(self, lock: str | None = None) -> Iterator[tuple[Connection, datetime]]:
        """Yield the connection of :meth:`write` and the time of :meth:`now`."""
        with self.write(lock) as connection:
            yield connection, self.now(connection)

    def now(self, connection: Connection) -> datetime:
        """Return the time by which leases are measured: PostgreSQL's own, since replicas' clocks may differ."""
        if not self.is_shared:
            return datetime.now(UTC)
        moment: datetime = connection.execute(sa.select(sa.func.clock_timestamp())).scalar_one()
        return moment.astimezone(UTC)

    def _migrate(self) -> None:
        with self.read() as connection:
            if _revision(connection) == SCHEMA_REVISION:
                return
        with self.write() as connection:
            if self.is_shared:
                # Another replica may migrate now, which takes longer than other transactions if the data is large.
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_MIGRATE_SECONDS}s'")
                connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
                _lock(connection, "migrate")
            if _revision(connection) != SCHEMA_REVISION:
                _run_migrations(connection)


class _Joined(threading.local):
    """The connection and locks of the transaction that this thread's calls join."""

    connection: Connection | None = None

    def __init__(self) -> None:
        self.locks: set[str] = set()

    @contextmanager
    def to(self, connection: Connection) -> Iterator[None]:
        self.connection = connection
        try:
            yield
        finally:
            self.connection = None
            self.locks.clear()


def _run_migrations(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        if _revision(connection) is None and sa.inspect(connection).has_table(JOBS.name):
            # A Refeed without migrations made this store: its tables are those of the first revision.
            command.stamp(config, "0001")
        command.upgrade(config, SCHEMA_REVISION)
    except CommandError as exc:
        raise StoreUnavailableError(
            "A newer Refeed wrote the job store. This version of Refeed does not know the store's schema "
            f"{_revision(connection)}.",
        ) from exc


def _revision(connection: Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    return found


def _parse_url(url: str | URL) -> URL:
    try:
        parsed = make_url(url)
    except sa.exc.ArgumentError as exc:
        raise SettingsError(
            "REFEED_JOB_STORE must have the form sqlite:///PATH or postgresql+psycopg://..."
        ) from exc
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in {"sqlite", "postgresql+psycopg"} or (
        parsed.drivername == "sqlite" and not parsed.database
    ):
        raise SettingsError("REFEED_JOB_STORE must have the form sqlite:///PATH or postgresql+psycopg://...")
    return parsed


def _create_engine(url: URL) -> Engine:
    if url.drivername == "sqlite":
        Path(str(url.database)).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        engine = sa.create_engine(url, json_serializer=_render_json, connect_args={"timeout": _BUSY_SECONDS})
        sa.event.listen(engine, "connect", _on_sqlite_connect)
        sa.event.listen(engine, "begin", _on_sqlite_begin)
        return engine
    engine = sa.create_engine(
        url,
        json_serializer=_render_json,
        # Costs a round trip, and prevents errors after a restart of the server.
        pool_pre_ping=True,
        pool_timeout=_BUSY_SECONDS,
        # A pooler in front of the server may not support prepared statements.
        connect_args={"connect_timeout": _CONNECT_SECONDS, "prepare_threshold": None, **_KEEPALIVE},
    )
    sa.event.listen(engine, "connect", _on_postgresql_connect)
    return engine


def _on_sqlite_connect(connection: Any, _record: Any) -> None:
    # The driver must not open transactions by itself: this module sends BEGIN IMMEDIATE.
    connection.isolation_level = None
    _log_ahead(connection)
    for pragma in ("synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")


def _log_ahead(connection: Any) -> None:
    """Switch the file to write-ahead logging, which is permanent.

    The switch needs exclusive access, for which SQLite does not use its busy handler
    (https://sqlite.org/c3ref/busy_handler.html): without this retry, all but one of several processes that open
    an earlier store at once would fail with "database is locked".
    """
    give_up_at = time.monotonic() + _BUSY_SECONDS
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_at:
                raise
            time.sleep(_BUSY_POLL_SECONDS)


def _on_sqlite_begin(connection: Connection) -> None:
    # A writer takes its lock at the start: a later upgrade could fail with "database is locked".
    writes = connection.get_execution_options().get("refeed_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _on_postgresql_connect(connection: Any, _record: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = '{_BUSY_SECONDS:.0f}s'")
        cursor.execute(f"SET statement_timeout = '{2 * _BUSY_SECONDS:.0f}s'")
        cursor.execute(f"SET idle_in_transaction_session_timeout = '{_IDLE_SECONDS * 1000:.0f}ms'")
        cursor.execute("SET timezone = 'UTC'")
    connection.commit()


def _lock(connection: Connection, name: str) -> None:
    """Wait until no other transaction holds the same lock, and take it until the transaction's end."""
    number = zlib.crc32(name.encode()) - (1 << 31)
    connection.execute(
        sa.select(sa.func.pg_advisory_xact_lock(sa.cast(_LOCKS, sa.Integer), sa.cast(number, sa.Integer)))
    )


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Translate all errors of the database, which quote SQL and values."""
    try:
        yield
    except UnicodeEncodeError as exc:
        raise RequestInvalidError(
            "A string contains an unpaired surrogate, so it is not valid Unicode. The job store can't store this."
        ) from exc
    except sa.exc.DataError as exc:
        raise RequestInvalidError(
            "A string contains a character that the job store can't store, such as NUL."
        ) from exc
    except (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.InternalError, sa.exc.TimeoutError) as exc:
        raise StoreUnavailableError(f"The job store does not answer: {_first_line(exc)}") from exc
    except sa.exc.SQLAlchemyError as exc:
        if isinstance(exc, sa.exc.StatementError) and isinstance(exc.orig, OverflowError):
            raise RequestInvalidError("A time (in UTC) is before the year 1 or after the year 9999.") from exc
        if isinstance(exc, sa.exc.DBAPIError) and exc.connection_invalidated:
            raise StoreUnavailableError(f"The job store does not answer: {_first_line(exc)}") from exc
        raise StoreError from exc


def _first_line(exc: Exception) -> str:
    cause = getattr(exc, "orig", None) or exc
    lines = str(cause).strip().splitlines()
    return lines[0][:300] if lines else type(cause).__name__
