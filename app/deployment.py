"""The objects of one process over one deployment, made of its settings."""

import os
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from app.closing import Closers, ClosingStep
from model.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from backfill.plan.settings import BackfillSettings
    from backfill.steer.service import BackfillService
    from connectors.pubsub.client import PubSub
    from inventory.service import Inventory
    from jobs.keys import Keyring
    from jobs.launcher import Launcher
    from jobs.service import JobService
    from jobs.store import JobStore
    from model.stream_record import StreamRecord
    from pipeline.registry import Source
    from pipeline.staged import StagedTopics
    from reporting.service import MergeService
    from rollout.checking import CheckService, UpdateChecker
    from rollout.fence import StreamFence
    from rollout.known_releases import KnownReleases
    from rollout.launching import TemplateService
    from rollout.manifests.scheduler import Scheduler
    from rollout.manifests.service import ManifestService
    from rollout.releases import Releases
    from rollout.service import StreamService
    from rollout.snapshot_work import SnapshotWork
    from rollout.snapshots import SnapshotService
    from rollout.update_work import UpdateWork
    from rollout.updates import UpdateService
    from streams.report import StreamReporter
    from warehouse.port import Warehouse
    from warehouse.queries import Queries


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
    def reporter(self) -> "StreamReporter | None":
        """What keeps a stream's reports in the job store; None where that is the home's own file.

        Its first report opens the store, so that a stream starts while the store is away.
        """
        from jobs.reporter import open_reporter

        return open_reporter(self.settings)

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
    def update_checker(self) -> "UpdateChecker":
        """What checks updates of streams whose state is in this home, by the settings of this process."""
        from rollout.checking import UpdateChecker

        environment = {**os.environ, "REFEED_HOME": str(self.settings.home)}
        return UpdateChecker(self.settings, self.releases, self.warehouse, environment)

    @cached_property
    def checks(self) -> "CheckService":
        """What checks updates for callers."""
        from rollout.checking import CheckService

        return CheckService(self.streams, self.update_checker)

    @cached_property
    def templates(self) -> "TemplateService":
        """The templates, and the services that launch them."""
        from jobs.files import open_files
        from rollout.launching import TemplateService
        from rollout.templates import Templates

        templates = Templates(open_files(self.settings.templates))
        return TemplateService(templates, backfills=self.backfills, merges=self.merges, streams=self.streams)

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
        """What asks the warehouse, for plans and for whatever people look at."""
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
        from app.backfills import assemble_backfills

        service = assemble_backfills(
            self.backfill_settings,
            launcher=self.launcher,
            pubsub=self.pubsub,
            queries=self.queries,
            store=self.store,
            max_running=self.settings.max_running,
            keep_job_days=self.settings.keep_job_days,
            staging_of=self.staged,
            places=self.staged.place,
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

    @property
    def job_services(self) -> "tuple[JobService[Any], ...]":
        """The service of every kind of job; another kind is one more here."""
        return (self.backfills, self.merges)

    @cached_property
    def inventory(self) -> "Inventory":
        """What people look at: topics, messages, streams."""
        from inventory.service import Inventory

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
        )

    @cached_property
    def streams(self) -> "StreamService":
        """What people want of streams; an agent carries it out."""
        from rollout.service import StreamService

        return StreamService(self.store, groups=self.staged.groups, check_release=self.known_releases.check_name)

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
    def stream_fence(self) -> "StreamFence":
        """What keeps a stream from running while its state is changed."""
        from rollout.fence import StreamFence

        return StreamFence(self.warehouse, project=self.settings.project)

    @cached_property
    def update_work(self) -> "UpdateWork":
        """What an agent does about updates of the streams that it holds."""
        from connectors.pubsub.stats import read_stats
        from inventory.retention import parse_sample, subscriptions_of
        from model.errors import RefeedError
        from rollout.checking import UpdateChecker
        from rollout.update_work import UpdateWork
        from warehouse.open import open_warehouse

        settings = self.settings
        environment = {**os.environ, "REFEED_HOME": str(settings.home)}

        def open_checker() -> UpdateChecker:
            return UpdateChecker(settings, self.releases, open_warehouse(settings), environment)

        def read_lag(record: "StreamRecord", status: "Mapping[str, Any]") -> float | None:
            try:
                stats = read_stats(self.pubsub.channel)
            except RefeedError:
                return None
            if stats is None:
                sample = parse_sample(status)
                return None if sample is None else sample.oldest_unacked_seconds
            own = subscriptions_of(record.kind, status, stats)
            return max((stats[name].oldest_unacked_seconds for name in own), default=None)

        return UpdateWork(self.store, open_checker=open_checker, read_lag=read_lag)

    @cached_property
    def snapshots(self) -> "SnapshotService":
        """Which snapshots of streams people want; an agent makes them."""
        from rollout.snapshots import SnapshotService

        return SnapshotService(self.store)

    @cached_property
    def manifests(self) -> "ManifestService":
        """What people applied: schedules."""
        from rollout.manifests.service import ManifestService

        return ManifestService(self.store)

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
        )
        scheduler = Scheduler(self.store, jobs)
        self.closers.add(ClosingStep.SCHEDULES, scheduler.stop)
        return scheduler

    @cached_property
    def updates(self) -> "UpdateService":
        """Which updates of streams people want; an agent carries them out."""
        from rollout.updates import UpdateService

        return UpdateService(self.store)

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
        self.open()
        self.closers.add(ClosingStep.LAUNCHER, self._close_launcher)
        self._start_webhooks()
        for service in self.job_services:
            service.start()
        self.manifests.keep_nightly_merge(self.settings.merge_at)
        self.scheduler.start()

    def close(self) -> None:
        """Close what was opened. Running jobs go on and are found again by the next service, or are interrupted.

        The Spark Connect server stays while a running job needs it.
        """
        self.closers.close()

    def _close_launcher(self) -> None:
        if not any(job.driver is not None for job in self.store.list_active()):
            self.launcher.close()

    def _start_webhooks(self) -> None:
        from jobs.notify import Notifier

        url, secret = self.settings.notify_url, self.settings.notify_secret
        if url is None or secret is None:
            return
        for service in self.job_services:
            notifier = Notifier(self.store, service.kind, url, secret)
            notifier.start()
            self.closers.add(ClosingStep.WEBHOOKS, notifier.stop)

    def _read_sources(self) -> "Sequence[Source]":
        """Return the sources of the registry as it is now that have no fault; of one that nobody has filled, none.

        Raises:
            RegistryError: it, or its ``sources.yaml``, can't be read.
        """
        from pipeline.registry import Registry, read_snapshot

        registry = Registry(self.settings.registry)
        files = registry.read_files()
        return read_snapshot(files, registry.url, is_partial=True).valid_sources() if files else ()
