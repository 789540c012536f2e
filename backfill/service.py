"""What can be done with backfills: one service for the API and the command line."""

import base64
import binascii
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import structlog

from backfill.plan import Plan, make_plan
from backfill.request import BackfillRequest, ValidRequest, validate_request
from backfill.resource import Backfill, render_moment
from backfill.supervisor import KIND, Supervisor
from connectors.lake.archive import LakeArchive
from connectors.lake.query import ArchiveSnapshot, QueryLimits
from connectors.pubsub.client import PubSub
from connectors.spark.connect import ConnectServer, find_spark_submit
from connectors.spark.session import spark_environment
from jobs.folder import Control, Order
from jobs.launcher import ConnectLauncher, Launcher, SparkSubmitLauncher
from jobs.store import Event, Idempotency, Job, JobStore
from model.errors import JobNotFoundError, RefeedError, RequestInvalidError, TopicNotFoundError
from model.job import JobState, is_job_id, new_job_id
from model.message import parse_resource_id, replay_token
from model.settings import Settings
from model.table import Partitioning
from sql.validate import Policy

_LOG: Final = structlog.get_logger()
MAX_PAGE_SIZE: Final = 1000
DEFAULT_PAGE_SIZE: Final = 50
_PLAN_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Deployment:
    """Where a service's archive lies, where its messages go and what its callers may ask for."""

    home: Path
    project: str
    emulator_host: str | None
    replay_secret: str
    lake: str
    archive_table: str
    archive_partitioning: Partitioning
    max_window_days: int
    query_memory: str


@dataclass(frozen=True, slots=True)
class Page:
    """Some backfills, newest first, and the token of those that come after them."""

    backfills: list[Backfill]
    next_page_token: str | None


class BackfillService:
    """Creates backfills, tells how they are and stops them; :meth:`start` begins to run what is created.

    Every call answers from the store within milliseconds, except :meth:`plan`, which runs the query.
    """

    def __init__(
        self,
        deployment: Deployment,
        *,
        store: JobStore,
        pubsub: PubSub,
        launcher: Launcher,
        supervisor: Supervisor,
    ) -> None:
        self._deployment = deployment
        self._store = store
        self._pubsub = pubsub
        self._launcher = launcher
        self._supervisor = supervisor
        self._is_started = False

    def start(self) -> None:
        """Launch and follow backfills in the background, also those that an earlier service left."""
        self._is_started = True
        self._supervisor.start()

    def prepare(self) -> None:
        """Get the launcher ready, so that the first backfill starts as quickly as the second; takes seconds.

        Raises:
            LaunchError, JavaNotFoundError: it can't be.
        """
        self._launcher.prepare()

    def close(self, *, interrupt: bool = False) -> None:
        """Stop following. Running jobs go on and are found again by the next service, or are interrupted.

        An interrupted job is FAILED and can be retried from where it is. The Spark Connect server stays while
        a running job needs it.
        """
        if interrupt:
            self._supervisor.interrupt("The service was stopped; a retry goes on from there.")
        self._supervisor.stop()
        running = {JobState.RUNNING, JobState.CANCELLING}
        if self._is_started and not any(job.state in running for job in self._store.list_active(KIND)):
            # Also ends a start under way, which a launch may be waiting for.
            self._launcher.close()
        self._supervisor.join()
        self._store.close()
        self._pubsub.close()

    def create(
        self, request: BackfillRequest, *, actor: str = "local", idempotency_key: str | None = None
    ) -> Backfill:
        """Validate the request and keep it as a PENDING backfill; returns before its query runs.

        The same idempotency key with the same request gives back the backfill that the first call made.

        Raises:
            QueryRefusedError, RequestInvalidError: the request is wrong; every violation is in the details.
            TopicNotFoundError: the target does not exist (an embedded Pub/Sub gets it created).
            IdempotencyKeyReusedError: the key came before with another request.
        """
        valid = validate_request(request, self._policy())
        self._ensure_topic(request.topic)
        job_id = new_job_id("bf")
        folder = self._supervisor.folder(job_id)
        # The folder is complete before the job exists: whoever finds the job can launch it.
        folder.write_specification(self._specification(job_id, request.topic, valid))
        idempotency = None if idempotency_key is None else Idempotency(idempotency_key, request.fingerprint())
        window = {"from": render_moment(valid.window.start), "to": render_moment(valid.window.end)}
        asked = {**request.to_json(), "window": window}
        job: Job | None = None
        try:
            job = self._store.insert(job_id, KIND, asked, actor=actor, idempotency=idempotency)
        finally:
            if job is None or job.id != job_id:
                shutil.rmtree(folder.path, ignore_errors=True)
        if job.id == job_id:
            _LOG.info("created", backfill_id=job.id, topic=request.topic)
        self._supervisor.wake()
        return Backfill.from_job(job)

    def plan(self, request: BackfillRequest) -> Plan:
        """Run the request's query to say what a backfill of it would publish; nothing is kept.

        Raises:
            QueryRefusedError, RequestInvalidError: as :meth:`create`.
            QueryError: the query fails, or needs more than it may use.
        """
        valid = validate_request(request, self._policy())
        place = self._deployment
        archive = LakeArchive(place.lake, place.archive_table, place.archive_partitioning)
        snapshot = ArchiveSnapshot(archive.data_files(valid.window), place.archive_partitioning)
        spill = place.home / "backfills" / f"plan-{new_job_id('pl')}"
        try:
            limits = QueryLimits(place.query_memory, spill, seconds=_PLAN_SECONDS)
            return make_plan(snapshot, valid.window, valid.lake, limits)
        finally:
            shutil.rmtree(spill, ignore_errors=True)

    def get(self, backfill_id: str) -> Backfill:
        """Return the backfill with its latest figures.

        Raises:
            JobNotFoundError: there is none.
        """
        return Backfill.from_job(self._get(backfill_id))

    def list_backfills(self, *, page_size: int = DEFAULT_PAGE_SIZE, page_token: str | None = None) -> Page:
        """Return backfills, newest first.

        Raises:
            RequestInvalidError: the token is not one that a page gave.
        """
        size = max(1, min(page_size, MAX_PAGE_SIZE))
        before = None if not page_token else _parse_page_token(page_token)
        jobs = self._store.list_jobs(KIND, limit=size + 1, after=None if before is None else (before,))
        token = _render_page_token(jobs[size - 1].id) if len(jobs) > size else None
        return Page([Backfill.from_job(job) for job in jobs[:size]], token)

    def list_events(self, backfill_id: str) -> list[Event]:
        """Return the backfill's history, oldest first."""
        return self._store.list_events(self._get(backfill_id).id)

    def cancel(self, backfill_id: str, *, actor: str = "local", expected_version: int | None = None) -> Backfill:
        """Stop the backfill: no task starts another request after this returns, within the files' visibility.

        What is under way still goes out: four requests of 1,000 messages a running task at most. Cancelling
        twice is one cancel.

        Raises:
            JobNotFoundError: there is none.
            JobStateError: it is at its end.
            JobChangedError: it is not at ``expected_version``.
        """
        job = self._get(backfill_id)
        if job.state is JobState.CANCELLING:
            return Backfill.from_job(job)
        target = JobState.CANCELLED if job.state is JobState.PENDING else JobState.CANCELLING
        job = self._store.move(job.id, target, actor=actor, why="cancelled", expected_version=expected_version)
        self._supervisor.folder(job.id).write_control(Control(job.epoch, Order.STOP))
        self._supervisor.wake()
        return Backfill.from_job(job)

    def retry(self, backfill_id: str, *, actor: str = "local", expected_version: int | None = None) -> Backfill:
        """Let a failed or cancelled backfill go on behind its last checkpoints, on the same selection.

        Raises:
            JobNotFoundError: there is none.
            JobStateError: it is neither failed nor cancelled.
            JobChangedError: it is not at ``expected_version``.
        """
        job = self._get(backfill_id)
        job = self._store.move(
            job.id, JobState.PENDING, actor=actor, why="retried", expected_version=expected_version
        )
        self._supervisor.wake()
        return Backfill.from_job(job)

    def read_log(self, backfill_id: str, max_bytes: int = 100_000) -> str:
        """Return the end of the driver's log."""
        return self._supervisor.folder(self._get(backfill_id).id).read_log_tail(max_bytes)

    def check_readiness(self) -> dict[str, str]:
        """Return what is not ready, by name, with the reason; empty when a backfill could start now."""
        problems: dict[str, str] = {}
        checks: dict[str, Callable[[], object]] = {
            "job_store": lambda: self._store.list_jobs(KIND, limit=1),
            "pubsub": lambda: self._pubsub.topic_exists("refeed-readiness"),
        }
        for name, check in checks.items():
            try:
                check()
            except RefeedError as exc:
                problems[name] = exc.message
        return problems

    def _get(self, backfill_id: str) -> Job:
        job = self._store.get(backfill_id)
        if job.kind != KIND:
            raise JobNotFoundError(f"There is no backfill {backfill_id}.", id=backfill_id)
        return job

    def _policy(self) -> Policy:
        return Policy(
            archive_table=self._deployment.archive_table,
            project=self._deployment.project,
            max_window_days=self._deployment.max_window_days,
            now=datetime.now(UTC),
        )

    def _ensure_topic(self, topic: str) -> None:
        parse_resource_id(topic)
        if self._pubsub.topic_exists(topic):
            return
        if self._deployment.emulator_host is None:
            raise TopicNotFoundError(
                f"There is no topic {topic} in project {self._deployment.project}.", topic=topic
            )
        self._pubsub.create_topic(topic)

    def _specification(self, job_id: str, topic: str, valid: ValidRequest) -> Mapping[str, Any]:
        place = self._deployment
        return {
            "query": {
                "sql": valid.lake.sql,
                "parameters": dict(valid.lake.parameters),
                "window": [valid.window.start.isoformat(), valid.window.end.isoformat()],
                "memory": place.query_memory,
            },
            "archive": {
                "lake": place.lake,
                "table": place.archive_table,
                "partitioning": place.archive_partitioning,
            },
            "target": {
                "backfill_id": job_id,
                "topic_path": self._pubsub.topic_path(topic),
                "emulator_host": place.emulator_host,
                "replay_token": replay_token(place.replay_secret, topic),
            },
        }


def open_backfills(settings: Settings) -> BackfillService:
    """Return the service of a deployment; nothing runs before its ``start``.

    Raises:
        JavaNotFoundError: there is no Java for Spark.
        PubSubError: there are no credentials for Pub/Sub.
    """
    home = settings.home
    deployment = Deployment(
        home=home,
        project=settings.project,
        emulator_host=settings.pubsub_emulator_host,
        replay_secret=settings.replay_secret(),
        lake=settings.lake,
        archive_table=settings.archive_table,
        archive_partitioning=settings.archive_partitioning,
        max_window_days=settings.max_window_days,
        query_memory=settings.query_memory,
    )
    # The store last: what is missing is found before anything is open that would have to be closed.
    launcher = open_launcher(settings)
    pubsub = PubSub(settings.project, settings.pubsub_emulator_host)
    store = JobStore(settings.job_store)
    return BackfillService(
        deployment,
        store=store,
        pubsub=pubsub,
        launcher=launcher,
        supervisor=Supervisor(store, launcher, home, max_running=settings.max_running),
    )


def open_launcher(settings: Settings) -> Launcher:
    """Return the launcher that the settings choose; REFEED_CONNECT_URL names a server that others look after."""
    run = settings.home / "run"
    environment = spark_environment(run / "spark")
    if settings.launcher == "spark-submit":
        return SparkSubmitLauncher(
            find_spark_submit(),
            environment,
            master=settings.spark_master,
            driver_memory=settings.spark_driver_memory,
        )
    if settings.connect_url is not None:
        return ConnectLauncher(_ForeignServer(settings.connect_url), environment)
    server = ConnectServer(
        run, environment, master=settings.spark_master, driver_memory=settings.spark_driver_memory
    )
    return ConnectLauncher(server, environment)


@dataclass(frozen=True, slots=True)
class _ForeignServer:
    """A Spark Connect server that others start and stop."""

    url: str

    def start(self) -> str:
        return self.url

    def stop(self) -> None:
        return None


def _render_page_token(job_id: str) -> str:
    return base64.urlsafe_b64encode(job_id.encode()).decode().rstrip("=")


def _parse_page_token(token: str) -> str:
    try:
        job_id = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
    except (binascii.Error, ValueError):
        job_id = ""
    if not is_job_id(job_id):
        raise RequestInvalidError(
            "The page_token is not one that a page gave.",
            errors=[{"code": "page_token_invalid", "message": "Not a page_token.", "pointer": "/page_token"}],
        )
    return job_id
