import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from cli.processes import free_port
from connectors.lake.query_process import QueryProcesses
from jobs.store import JobStore, open_store
from model.process import raise_file_limit
from tests import certificates, schema, spares
from tests.ending import pytest_sessionstart, pytest_unconfigure
from tests.schema import migrations
from tests.spares import own_spares
from tests.standin.shared import session_standin, shared_standin
from tests.worlds.bucket import bucket_lake, bucket_proxy, gs_server, s3_server, unkind_gs_server, unkind_s3_server

__all__ = [
    "bucket_lake",
    "bucket_proxy",
    "gs_server",
    "migrations",
    "own_spares",
    "pytest_sessionstart",
    "pytest_unconfigure",
    "s3_server",
    "session_standin",
    "shared_standin",
    "unkind_gs_server",
    "unkind_s3_server",
]

_START_SECONDS = 60


def pytest_configure() -> None:
    # Servers run in these processes too.
    raise_file_limit()
    for each in (certificates, schema, spares):
        each.install()


class PostgreSQL:
    """A server of its own, from the system's packages, on loopback and without fsync."""

    def __init__(self, bin_path: Path) -> None:
        self._bin = bin_path
        # Not under pytest's folder: nobody but its owner may enter that, and the server runs as another user.
        self.folder = Path(tempfile.mkdtemp(prefix="refeed-postgresql-"))
        # The server refuses to run as root.
        self._user = "postgres" if os.geteuid() == 0 else None
        if self._user is not None:
            shutil.chown(self.folder, self._user, self._user)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        data = str(self.folder / "data")
        self._run(
            "initdb", "-D", data, "-U", "refeed", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"
        )
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    str(self._bin / "postgres"),
                    *("-D", data, "-p", str(self.port), "-k", str(self.folder)),
                    *("-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c", "max_connections=200"),
                ],
                **self._as_user(),
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=2).close()
            except psycopg.OperationalError:
                says = (self.folder / "log").read_text()
                assert self._process.poll() is None, says
                assert time.monotonic() < deadline, f"not within {_START_SECONDS} s: PostgreSQL answers: {says}"
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        if self._process is not None:
            # Immediate shutdown: nothing of it is kept, and connections that a failed test left open are closed.
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(_START_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str) -> str:
        return f"postgresql://refeed@127.0.0.1:{self.port}/{database}"

    def make_database(self, template: str = "template1") -> str:
        name = f"t{secrets.token_hex(8)}"
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
            sql.Identifier(name), sql.Identifier(template)
        )
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement)
        return self.url(name)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._bin / program), *arguments], **self._as_user(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def _as_user(self) -> dict[str, object]:
        user = {} if self._user is None else {"user": self._user, "group": self._user, "extra_groups": []}
        return {"cwd": self.folder, **user}


@pytest.fixture(scope="session")
def postgresql():
    """A server for all tests of the session; they are skipped where none is installed."""
    # Debian has several versions side by side, none of them on PATH.
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    program = str(found[-1]) if found else shutil.which("postgres")
    if program is None or not (Path(program).parent / "initdb").exists():
        pytest.skip(
            "PostgreSQL's server is not installed, so nothing here is shown for it: apt-get install postgresql"
        )
    server = PostgreSQL(Path(program).resolve().parent)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def postgresql_template(postgresql):
    """The name of a database with the store's schema, which is quicker to copy than to make."""
    url = postgresql.make_database()
    open_store(url).close()
    return url.rpartition("/")[2]


@pytest.fixture
def make_postgresql_store(postgresql, postgresql_template):
    return lambda: postgresql.make_database(postgresql_template)


@pytest.fixture
def store(tmp_path):
    """A job store in a file of the test's own."""
    store = JobStore(tmp_path / "jobs.db")
    yield store
    store.close()


@pytest.fixture(scope="module")
def processes():
    """The query processes of a lake, for all tests of a module."""
    processes = QueryProcesses(keep_spare=True)
    yield processes
    processes.close()
