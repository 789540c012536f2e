"""The job store: one object over one database, for everything that outlives a process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy.engine import URL

from jobs.store.audit import AuditLog
from jobs.store.changes import Changes
from jobs.store.database import Database
from jobs.store.events import Events
from jobs.store.figures import FigureHistory
from jobs.store.jobs import Jobs
from jobs.store.keys import Keys
from jobs.store.leases import Leases
from jobs.store.managed_streams import ManagedStreams
from jobs.store.manifests import Manifests
from jobs.store.outbox import WebhookOutbox
from jobs.store.reports import Reports
from jobs.store.short_lived import ShortLived
from jobs.store.stream_snapshots import StreamSnapshots
from jobs.store.stream_updates import StreamUpdates
from jobs.store.uploads import Uploads


class JobStore(
    Jobs,
    Leases,
    WebhookOutbox,
    ShortLived,
    Keys,
    AuditLog,
    Reports,
    ManagedStreams,
    StreamSnapshots,
    # Updates are jobs in steps: so are snapshots, their deletion and rollbacks.
    StreamUpdates,
    Manifests,
    Uploads,
    Changes,
    FigureHistory,
    Events,
):
    """Jobs with their history and leases, plans, keys, sessions, the audit log, streams, manifests and figures.

    ``where`` is the path of a SQLite file, or a url. For several threads and processes; of several machines only
    on PostgreSQL. Opening it brings its schema up to date, however many open it at once.

    Raises:
        SettingsError: the url is none of a SQLite file or a PostgreSQL database.
        StoreUnavailableError: it does not answer; any call may raise it, and may be made again.
        JobNotFoundError: any call that names a job that is not there.
    """

    def __init__(self, where: str | Path) -> None:
        self._database = Database(URL.create("sqlite", database=str(where)) if isinstance(where, Path) else where)

    @property
    def is_shared(self) -> bool:
        """Whether replicas on several machines can share it."""
        return self._database.is_shared

    @contextmanager
    def together(self) -> Iterator[None]:
        """Keep everything that this thread's calls write in the block, or nothing where the block raises.

        The trap: nobody else writes to a SQLite file meanwhile, so the block must not wait for anything else.
        """
        with self._database.write():
            yield

    def rehearse(self, call: Callable[[], object]) -> None:
        """Make the call and keep nothing that it writes; it raises whatever keeps it from being made now."""
        with suppress(_RehearsedError), self.together():
            call()
            raise _RehearsedError

    def close(self) -> None:
        """Close every connection."""
        self._database.close()


class _RehearsedError(Exception):
    """Takes back everything that a rehearsed call has written."""


def open_store(url: str) -> JobStore:
    """Return the store at ``sqlite:///PATH`` or ``postgresql+psycopg://USER@HOST/DATABASE``."""
    return JobStore(url)
