"""The job store: one object over one database, for everything that outlives a process."""

from pathlib import Path

from sqlalchemy.engine import URL

from jobs.store.agents import Agents
from jobs.store.audit import AuditLog
from jobs.store.database import Database
from jobs.store.jobs import Jobs
from jobs.store.keys import Keys
from jobs.store.leases import Leases
from jobs.store.managed_streams import ManagedStreams
from jobs.store.manifests import Manifests
from jobs.store.outbox import WebhookOutbox
from jobs.store.plans import Plans
from jobs.store.stream_snapshots import StreamSnapshots
from jobs.store.stream_updates import StreamUpdates
from jobs.store.streams import Streams


class JobStore(
    Jobs,
    Leases,
    WebhookOutbox,
    Plans,
    Keys,
    AuditLog,
    Streams,
    ManagedStreams,
    StreamSnapshots,
    StreamUpdates,
    Manifests,
    Agents,
):
    """Jobs with their history and leases, plans, API keys, the audit log, streams, manifests and news to be told.

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

    def close(self) -> None:
        """Close every connection."""
        self._database.close()


def open_store(url: str) -> JobStore:
    """Return the store at ``sqlite:///PATH`` or ``postgresql+psycopg://USER@HOST/DATABASE``."""
    return JobStore(url)
