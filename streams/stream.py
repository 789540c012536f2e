"""Runs one stream from its start to its end: its Spark session, its home's lock, its lease and its query."""

import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from connectors.spark.session import open_session
from model.settings import Settings
from streams.ack_leases import AckLeases
from streams.backlog import ReadSample, measuring
from streams.commit_worker import CommitWorker
from streams.committer import StreamCommitter
from streams.control import ControlFile
from streams.folder import StreamFolder
from streams.journal import Journal
from streams.learning import Learner, ReadIds
from streams.lease import HeldLease, lock_home
from streams.orders import Orders
from streams.queries import StreamQueries, StreamQuery
from streams.run import run_until_stopped
from streams.standby import take_over, wait_as_standby
from streams.status import StatusFile
from streams.targets import Targets, Work


def start_spark(settings: Settings, folder: StreamFolder) -> Any:
    """Start the Spark session of the stream with the folder ``folder``.

    Call it before anything opens a gRPC channel: PySpark forks to start its JVM, and a fork while gRPC starts its
    threads may end in SIGABRT (2 of 25 tries).
    """
    shutil.rmtree(folder.scratch, ignore_errors=True)
    folder.run.mkdir(parents=True, exist_ok=True)
    return open_session(
        f"refeed-{folder.name}",
        master=settings.spark_master,
        driver_memory=settings.spark_driver_memory,
        scratch=folder.scratch,
        conf=settings.spark_conf,
    )


@dataclass(frozen=True, slots=True)
class OwnedHome:
    """The state folder of a stream that this process has locked; ``stream`` is the stream's id in the folder."""

    folder: Path
    stream: str
    status: StatusFile

    @property
    def journal(self) -> Path:
        """The folder of the stream's journal."""
        return self.folder / "journal"


@dataclass(frozen=True, slots=True)
class StreamWork:
    """The recovered committer of a stream that this process owns, and the function that reads the backlog.

    ``watch`` is called a few times a second.
    """

    committer: StreamCommitter
    read_backlog: ReadSample
    watch: Callable[[], None] = lambda: None


def open_committer(
    settings: Settings,
    home: OwnedHome,
    held: HeldLease,
    journal: Journal,
    *,
    work: Work,
    targets: Targets,
    names: Iterable[str],
    channel: Any,
    read_ids: ReadIds,
    find_oldest: Callable[[], datetime],
) -> StreamCommitter:
    """Return the committer, after its recovery, of the stream that owns ``home`` and its lease.

    Raises:
        RefeedError: a table of ``names`` can't be taken, its ids can't be learned, or an attempt can't be settled.
    """
    home.status.note(epoch=held.epoch)
    committer = StreamCommitter(
        work=work,
        targets=targets,
        names=names,
        journal=journal,
        ack_leases=AckLeases(channel, settings.project),
        status=home.status,
        learner=Learner(
            journal,
            held,
            read_ids=read_ids,
            find_oldest=find_oldest,
            min_free_bytes=settings.min_free_disk_bytes,
            status=home.status,
        ),
    )
    committer.recover()
    return committer


# A context that holds the stream's lease.
OpenWork = Callable[[OwnedHome], AbstractContextManager[StreamWork]]


def run_stream(
    settings: Settings,
    folder: StreamFolder,
    query: StreamQuery,
    *,
    open_work: OpenWork,
    check_free: Callable[[str], object] = lambda _: None,
    reach: Callable[[], object] = lambda: None,
    place: Mapping[str, Any],
) -> None:
    """Own the stream of ``folder`` and run its ``query`` until a signal or an order ends it.

    The process locks the home first. Then ``open_work`` opens the journal, takes the lease and recovers. Nothing
    is committed or acknowledged without lock and lease. After the last commit and its acknowledgements an instance
    releases both, and only then stops Spark, so that another process can continue meanwhile.

    A standby first starts Spark and a query that pulls nothing, and calls ``reach`` to open its connections. It
    owns nothing until its control file has the order ``run``. Any other instance calls ``check_free`` with the
    stream's id before Spark starts. ``place`` is written into the status.

    Raises:
        LeaseHeldError: another process owns the stream; a standby waits until its order's timeout.
        RefeedError: as :func:`streams.run.run_until_stopped`, or the last batch failed.
    """
    orders = Orders(None if folder.control is None else ControlFile(folder.control))
    status = StatusFile(folder.status, instance=folder.instance_id)
    status.note(place=place)
    with ExitStack() as owned:
        is_standby = orders.is_standing_by
        work: StreamWork | None
        home = None if is_standby else _lock(folder, status, owned)
        if home is not None:
            check_free(home.stream)
        queries = StreamQueries(start_spark(settings, folder), query, settings, folder)
        if home is not None:
            work = owned.enter_context(open_work(home))
        else:
            reach()
            is_wanted = wait_as_standby(orders, status, queries)
            own = partial(_own, folder, status, open_work)
            work = take_over(own, owned, orders, status) if is_wanted else None
        if work is None:
            queries.stop_spark()
            return
        queries.worker = worker = owned.enter_context(CommitWorker(work.committer))
        with measuring(status, settings.project, settings.pubsub_address, work.read_backlog):
            name = work.committer.name
            end = run_until_stopped(queries.start, name=name, sink=worker, orders=orders, watch=work.watch)
            status.write_last(**end.status)
            # A query that does not end in time ends with the process, and so does Spark.
            if end.is_over:
                if folder.instance_id is not None:
                    # The instance has its own folder for Spark's files: another process may continue meanwhile.
                    owned.close()
                queries.stop_spark()
    if end.failure is not None:
        raise end.failure


def _lock(folder: StreamFolder, status: StatusFile, owned: ExitStack) -> OwnedHome:
    stream = owned.enter_context(lock_home(folder.state))
    if folder.instance_id is None:
        status.note(instance=stream)
    return OwnedHome(folder.state, stream, status)


def _own(folder: StreamFolder, status: StatusFile, open_work: OpenWork, owned: ExitStack) -> StreamWork:
    """Own the stream until ``owned`` is closed."""
    return owned.enter_context(open_work(_lock(folder, status, owned)))
