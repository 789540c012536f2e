"""The objects of one process over one deployment, made of its settings."""

import os
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Self

from app.closing import Closers, ClosingStep
from model.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from backfill.plan.settings import BackfillSettings
    from backfill.steer.service import BackfillService
    from backup.compaction.service import CompactionService
    from connectors.pubsub.client import PubSub
    from inventory.service import Inventory
    from inventory.sources import SourceCatalog
    from jobs.keys import Keyring
    from jobs.launcher import Launcher
    from jobs.loop import BackgroundLoop
    from jobs.service import JobService
    from jobs.store import JobStore
    from model.stream_record import StreamRecord
    from pipeline.staged import StagedTopics
    from reporting.service import MergeService
    from rollout.changes import ChangeService
    from rollout.checking import CheckService, UpdateChecker
    from rollout.fence import StreamFence
    from rollout.known_releases import KnownReleases
    from rollout.launching import TemplateService
    from rollout.manifests.scheduler import Scheduler
    from rollout.manifests.service import ManifestService
    from rollout.manifests.upload_status import UploadStatus
    from rollout.releases import Releases
    from rollout.rollouts import RolloutService
    from rollout.service import StreamService
    from rollout.snapshot_work import SnapshotWork
    from rollout.snapshots import SnapshotService
    from rollout.stream_changes import StreamChanges
    from rollout.stream_reports import StreamReports
    from rollout.update_work import UpdateWork
    from rollout.updates import UpdateService
    from warehouse.merges import MergeSource
    from warehouse.port import Warehouse
    from warehouse.queries import Queries
    from warehouse.rows import RowTables

# Of the last hour, of all streams.
_MOST_EVENTS: Final = 1000


class Deployment:
    """What one process has of a deployment; each object is opened when it is first asked for, and once.

    A process imports and opens only what it asks for. :meth:`close` closes what was opened, in the order of
    :class:`app.closing.ClosingStep`. The trap: two threads that ask for the same object at once may open two, so a
    process asks for what it shares before it starts threads.

    With ``interrupt_at_exit`` the end of this process ends the jobs that it follows. ``launcher`` replaces the one
    that the settings choose.
    """

    def __init__(
        self, settings: Settings, *, interrupt_at_exit: bool = False, launcher: "Launcher | None" = None
    ) -> None:
        self.settings = settings
        self.closers = Closers()
        self._interrupts = interrupt_at_exit
        self._given_launcher = launcher
        self._loops: Sequence[BackgroundLoop] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def warehouse(self) -> "Warehouse":
        """The warehouse that the settings choose."""
        from warehouse.open import open_warehouse

        return open_warehouse(self.settings)

    @cached_property
    def store(self) -> "JobStore":
        """The job store, the only one that this process opens."""
        from jobs.store import open_store

        store = open_store(self.settings.job_store)
        self.closers.add(ClosingStep.STORE, store.close)
        return store

    @cached_property
    def keyring(self) -> "Keyring":
        """The keys of the API's callers."""
        from jobs.keys import Keyring

        return Keyring(self.store)

    @property
    def has_callers(self) -> bool:
        """Whether the deployment has an issuer or ever had a key, by which it authenticates callers."""
        return self.settings.oidc_issuer is not None or not self.keyring.is_empty()

    @cached_property
    def pubsub(self) -> "PubSub":
        """The connection to Pub/Sub.

        Raises:
            PubSubError: there are no credentials.
        """
        from connectors.pubsub.client import PubSub

        pubsub = PubSub(self.settings.project, self.settings.pubsub_address)
        self.closers.add(ClosingStep.PUBSUB, pubsub.close)
        return pubsub

    @cached_property
    def releases(self) -> "Releases":
        """The releases of this home."""
        from rollout.releases import Releases

        return Releases(self.settings.home)

    @cached_property
    def known_releases(self) -> "KnownReleases":
        """The releases of every agent, and of this home."""
        from rollout.known_releases import KnownReleases

        return KnownReleases(self.store, self.releases)

    @cached_property
    def checks(self) -> "CheckService":
        """What checks updates for callers."""
        from rollout.checking import CheckService

        return CheckService(self.streams, self._open_checker(self.warehouse))

    def _open_checker(self, warehouse: "Warehouse") -> "UpdateChecker":
        """Return what checks updates of streams whose state is in this home, by the settings of this process."""
        from rollout.checking import UpdateChecker

        environment = {**os.environ, "REFEED_HOME": str(self.settings.home)}
        return UpdateChecker(self.settings, self.releases, warehouse, environment)

    @cached_property
    def templates(self) -> "TemplateService":
        """What launches templates."""
        from rollout.launching import TemplateService

        return TemplateService(self.store, backfills=self.backfills, merges=self.merges, streams=self.streams)

    @cached_property
    def launcher(self) -> "Launcher":
        """What starts the drivers of every kind of job.

        Raises:
            JavaNotFoundError: there is no Java for Spark.
        """
        if self._given_launcher is not None:
            return self._given_launcher
        from app.launchers import open_launcher

        return open_launcher(self.settings)

    @cached_property
    def staged(self) -> "StagedTopics":
        """The staging tables of every topic, by the registry."""
        from pipeline.staged import StagedTopics

        return StagedTopics(self.settings, self.warehouse)

    @cached_property
    def backfill_settings(self) -> "BackfillSettings":
        """The backfills' part of the settings."""
        from backfill.plan.settings import BackfillSettings

        return BackfillSettings.from_settings(self.settings, self.warehouse)

    @cached_property
    def queries(self) -> "Queries":
        """The warehouse's queries, for plans and for what people look at."""
        from app.backfills import open_queries

        queries = open_queries(self.backfill_settings)
        self.closers.add(ClosingStep.QUERIES, queries.close)
        return queries

    @cached_property
    def backfills(self) -> "BackfillService":
        """The service of backfills; :meth:`start` begins to run them.

        Raises:
            JavaNotFoundError: there is no Java for Spark.
            PubSubError: there are no credentials for Pub/Sub.
        """
        from app.backfills import assemble_backfills, find_changes

        staged, inventory = self.staged, self.inventory
        service = assemble_backfills(
            self.backfill_settings,
            launcher=self.launcher,
            pubsub=self.pubsub,
            queries=self.queries,
            store=self.store,
            max_running=self.settings.max_running,
            keep_job_days=self.settings.keep_job_days,
            staging_of=staged,
            waiting_of=lambda topic, until: inventory.find_waiting(staged.sources(topic), until),
            idle_of=lambda topic, receives: inventory.describe_idle(staged.sources(topic), receives),
            places=staged.place,
            find_changes=lambda sources: find_changes(staged, inventory, sources),
        )
        self.closers.add(ClosingStep.BACKFILLS, lambda: service.stop(interrupt=self._interrupts))
        self.closers.add(ClosingStep.LAUNCHES, service.join)
        return service

    @cached_property
    def merges(self) -> "MergeService":
        """The service of merges; :meth:`start` begins to run them."""
        from reporting.service import MergeService

        service = MergeService(
            self.settings,
            warehouse=self.warehouse,
            store=self.store,
            launcher=self.launcher,
            sources=self._read_sources,
        )
        self.closers.add(ClosingStep.MERGES, lambda: service.stop(interrupt=self._interrupts))
        self.closers.add(ClosingStep.LAUNCHES, service.join)
        return service

    @cached_property
    def compactions(self) -> "CompactionService":
        """The service of compactions; :meth:`start` begins to run them."""
        from backup.compaction.service import CompactionService

        service = CompactionService(
            self.settings, warehouse=self.warehouse, store=self.store, launcher=self.launcher
        )
        self.closers.add(ClosingStep.COMPACTIONS, lambda: service.stop(interrupt=self._interrupts))
        self.closers.add(ClosingStep.LAUNCHES, service.join)
        return service

    @property
    def job_services(self) -> "tuple[JobService[Any], ...]":
        """The service of every kind of job; another kind is one more here."""
        return (self.backfills, self.merges, self.compactions)

    @cached_property
    def inventory(self) -> "Inventory":
        """What people look at: topics, messages, streams."""
        from inventory.service import Inventory
        from jobs.store.events import STREAM

        store = self.store
        return Inventory(
            self.pubsub,
            self.queries,
            home=self.settings.home,
            replay_secret=self.backfill_settings.replay_secret,
            reports=self.store.list_stream_reports,
            groups=self.staged.groups,
            records=self.store.list_streams,
            snapshots=self.store.list_snapshots,
            snapshot_seconds=self.settings.snapshot_seconds,
            # Where events that nobody reads are wanted, they are no problem.
            collected=() if self.settings.collector_allow_unread else self.settings.collector_topics,
            figures=self.store.list_figures,
            events=lambda since: store.list_last_events(since, limit=_MOST_EVENTS, of=(STREAM, None)),
        )

    @cached_property
    def sources(self) -> "SourceCatalog":
        """The sources of the registry, with their figures and schemas."""
        from inventory.sources import SourceCatalog, SourceFigures
        from reporting.service import list_merged_sources
        from streams.folder import read_statuses

        settings, store, warehouse = self.settings, self.store, self.warehouse
        figures = SourceFigures(
            self.queries.counts,
            statuses=lambda: (status for _, status in read_statuses(settings.home)),
            merged=lambda since: list_merged_sources(store, since),
        )

        def open_tables() -> "RowTables":
            return warehouse.open_row_tables(stream="", lease="")

        return SourceCatalog(settings.registry, figures, open_tables, settings.dead_letter_table, store)

    @cached_property
    def streams(self) -> "StreamService":
        """What people want of streams; an agent carries it out."""
        from rollout.service import StreamService

        return StreamService(
            self.store,
            home=self.settings.home,
            groups=self.staged.groups,
            check_release=self.known_releases.check_name,
        )

    @cached_property
    def snapshot_work(self) -> "SnapshotWork":
        """What an agent does about snapshots of the streams that it holds."""
        from socket import gethostname

        from connectors.pubsub.client import PubSub
        from jobs.files import open_files
        from rollout.restorer import StreamRestorer
        from rollout.snapshot_taker import SnapshotTaker
        from rollout.snapshot_work import SnapshotWork

        settings = self.settings

        def open_pubsub() -> PubSub:
            return PubSub(settings.project, settings.pubsub_address)

        host = gethostname()
        files = open_files(settings.jobs_folder or settings.home.absolute()).folder("snapshots")
        return SnapshotWork(
            self.store,
            taker=SnapshotTaker(self.store, open_pubsub=open_pubsub, files=files, host=host),
            restorer=StreamRestorer(
                self.store,
                fence=self.stream_fence,
                open_pubsub=open_pubsub,
                host=host,
                min_free_bytes=settings.min_free_disk_bytes,
            ),
            every_seconds=settings.snapshot_seconds,
            keep=settings.keep_snapshots,
        )

    @cached_property
    def stream_reports(self) -> "StreamReports | None":
        """What reports this home's streams to the job store; None where that is the home's own file.

        A reader of that file reads the streams' status files beside it. They need no locks, which a SQLite file on
        a disk that several hosts share may not have: https://sqlite.org/wal.html, "Overview".
        """
        from rollout.stream_reports import StreamReports

        return StreamReports(lambda: self.store, self.settings.home) if self.settings.has_own_store else None

    @cached_property
    def stream_fence(self) -> "StreamFence":
        """What keeps a stream from running while its state is changed."""
        from rollout.fence import StreamFence

        return StreamFence(self.warehouse, project=self.settings.project)

    @cached_property
    def update_work(self) -> "UpdateWork":
        """What an agent does about updates of the streams that it holds."""
        from rollout.update_work import UpdateWork
        from warehouse.open import open_warehouse

        return UpdateWork(
            self.store,
            # In a thread, with a warehouse of its own.
            open_checker=lambda: self._open_checker(open_warehouse(self.settings)),
            read_lag=self._read_lag,
        )

    @cached_property
    def snapshots(self) -> "SnapshotService":
        """Which snapshots of streams people want; an agent makes them."""
        from rollout.snapshots import SnapshotService

        return SnapshotService(self.store)

    @cached_property
    def manifests(self) -> "ManifestService":
        """What people applied: schedules, templates and rollouts."""
        from rollout.manifests.job_gate import JobGate
        from rollout.manifests.service import ManifestService

        queries = JobGate(self.backfills.validate, self.store.now)
        compactions = self.compactions.check
        return ManifestService(self.store, rollouts=self.rollouts, queries=queries, check_compaction=compactions)

    @cached_property
    def rollouts(self) -> "RolloutService":
        """Which rollouts of streams people want; the agents of the streams carry them out."""
        from rollout.rollouts import RolloutService

        return RolloutService(self.store, check_release=self.known_releases.check_name)

    @cached_property
    def scheduler(self) -> "Scheduler":
        """What starts the jobs of schedules; :meth:`start` begins to."""
        from rollout.manifests.scheduled_jobs import ScheduledJobs
        from rollout.manifests.scheduler import Scheduler

        jobs = ScheduledJobs(
            self.store,
            backfills=self.backfills,
            merges=self.merges,
            snapshots=self.snapshots,
            templates=self.templates,
            rollouts=self.rollouts,
            compactions=self.compactions,
        )
        return Scheduler(self.store, jobs)

    @cached_property
    def upload_status(self) -> "UploadStatus":
        """What people see of manifests that come by upload."""
        from app.uploads import source_of
        from rollout.manifests.upload_status import UploadStatus

        return UploadStatus(self.store, source_of(self.settings))

    @cached_property
    def updates(self) -> "UpdateService":
        """Which updates of streams people want; an agent carries them out."""
        from rollout.updates import UpdateService

        return UpdateService(self.store, check_release=self.known_releases.check_name)

    @cached_property
    def changes(self) -> "ChangeService":
        """What waits until a second person approves it."""
        from rollout.changes import ChangeService
        from rollout.stream_changes import stream_acts

        return ChangeService(self.store, stream_acts(self.streams, self.snapshots, self.updates))

    @cached_property
    def stream_changes(self) -> "StreamChanges":
        """What holds changes of streams for a second person, where the settings name them."""
        from rollout.stream_changes import StreamChanges

        return StreamChanges(self.changes, self.streams, self.settings.approve_streams)

    def open(self) -> None:
        """Open everything that runs jobs, without running any yet.

        Raises:
            JavaNotFoundError: there is no Java for Spark.
            PubSubError: there are no credentials for Pub/Sub.
            StoreUnavailableError: the store does not answer.
        """
        _ = self.job_services

    def start(self) -> None:
        """Launch and follow jobs in the background, those of schedules too, and send their webhooks.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        from app.background import start_background

        self.open()
        self.closers.add(ClosingStep.LAUNCHER, self._close_launcher)
        self._loops = start_background(self)

    def background_problems(self) -> dict[str, str]:
        """Return which background loops fail or hang now, by their names, with the reason."""
        return {loop.name: loop.problem for loop in self._loops if loop.problem is not None}

    def close(self) -> None:
        """Close what was opened. Running jobs go on and are found again by the next service, or are interrupted.

        The Spark Connect server stays while a running job needs it.
        """
        self.closers.close()

    def _read_lag(self, record: "StreamRecord", status: "Mapping[str, Any]") -> float | None:
        from app.lag import read_lag

        return read_lag(lambda: self.pubsub, record, status)

    def _close_launcher(self) -> None:
        if not any(job.driver is not None for job in self.store.list_active()):
            self.launcher.close()

    def _read_sources(self) -> "Mapping[str, MergeSource | None]":
        """Return the registry's sources without a fault as merges take them; none where nobody has filled it.

        Raises:
            RegistryError: it, or its ``sources.yaml``, can't be read.
        """
        from pipeline.registry import Registry, read_snapshot

        registry = Registry(self.settings.registry)
        files = registry.read_files()
        return read_snapshot(files, registry.url, is_partial=True).merge_sources() if files else {}
