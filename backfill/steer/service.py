"""What can be done with backfills: one service for the API and the command line."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from backfill.plan.create import BackfillCreate
from backfill.plan.creation import (
    check_rows,
    check_subscriptions,
    check_topic,
    render_specification,
    render_window,
)
from backfill.plan.plan import render_nothing_warning, render_replays
from backfill.plan.planner import Planner
from backfill.plan.redrive import LetterCounter
from backfill.plan.request import LIVE, BackfillRequest
from backfill.plan.settings import BackfillSettings
from backfill.plan.validation import ValidRequest, validate_changes
from backfill.run.dead_letters import find_dead_letters
from backfill.run.progress import Progress
from backfill.steer.approval import allowed_rows, approval_of, approved, exceeds_approval, is_approved
from backfill.steer.kind import BACKFILL
from backfill.steer.letters import hide_samples
from backfill.steer.overlap import overlap_guard, overlapping_ids, retry_guard
from backfill.steer.periodic import verify_again_seconds
from backfill.steer.reader import BackfillReader
from backfill.steer.steering import Steering
from backfill.steer.verification import Verifier
from backfill.steer.view import Backfill
from connectors.pubsub.client import PubSub
from jobs.service import check_ended, check_lives
from jobs.store import Idempotency, Job, JobStore
from jobs.supervisor import JobSupervisor
from jobs.versions import Versions, check_version, expected_version
from model.errors import (
    AlreadyMergedError,
    ApprovalRequiredError,
    ForbiddenError,
    JobStateError,
    RefeedError,
    RequestInvalidError,
    RevertIncompleteError,
)
from model.job import JobState
from model.moment import render_moment
from model.naming import counted
from model.principal import APPROVE, MESSAGES, PLAN, RUN, Principal
from sql.violation import QueryRefusedError

_LOG: Final = structlog.get_logger()
RETRIES: Final = ("all", "failed", "missing")


class BackfillService(BackfillReader):
    """Creates backfills, steers them and shows them; :meth:`start` begins to run what is created.

    Every call answers from the store within milliseconds, except :meth:`plan`, which runs the query. A call
    that changes a backfill takes the versions that its caller has seen, if they matter.

    Raises:
        ForbiddenError: any call whose ``principal`` lacks the scope, or may not publish to the topic.
        JobNotFoundError: any call that names a backfill that is not there.
        JobChangedError: any call with ``versions`` of which the backfill is at none.
    """

    def __init__(
        self,
        settings: BackfillSettings,
        *,
        store: JobStore,
        pubsub: PubSub,
        supervisor: JobSupervisor,
        planner: Planner,
        verifier: Verifier,
        letters: LetterCounter,
    ) -> None:
        super().__init__(store, supervisor, verifier, letters)
        self._settings = settings
        self._pubsub = pubsub
        self._planner = planner
        self._steering = Steering(store, supervisor.folder, max_running=supervisor.max_running)

    def start(self) -> None:
        """Launch and follow backfills in the background, also those that an earlier service left."""
        self._planner.warm()
        super().start()

    def check_query(self, request: BackfillCreate, *, principal: Principal) -> dict[str, Any]:
        """Return the gate's findings on a request's query and the edits that would mend it; nothing is run.

        Raises:
            RequestInvalidError: no query can be written of the request's range.
        """
        principal.require(PLAN)
        table = self._settings.warehouse.archive_table
        query = request.write(table).query if request.has_range else request.query
        return {"query": query, **self._planner.check(query, request.parameters)}

    def validate(self, request: BackfillRequest) -> ValidRequest:
        """Return the gate's verdict on a request that somebody keeps for later; nothing is run.

        Raises:
            QueryRefusedError, RequestInvalidError: a backfill of it would be refused now.
            WarehouseError: the warehouse, which knows the tables, does not answer.
        """
        return self._validate(self._write(request), request)

    def plan(
        self, request: BackfillRequest, *, principal: Principal, exact: bool = False, originals: bool = False
    ) -> dict[str, Any]:
        """Run the request's query to find what a backfill of it would do, and keep that for a create to quote.

        BigQuery is only asked what it would do, unless ``exact``: then it runs the query, and a create that quotes
        the plan reads what it selected. Samples have the payloads that the caller may read, and with ``originals``
        the archived messages beside them.

        Raises:
            ForbiddenError: ``originals``, and the caller may not read messages, or not those of a sample's topic.
            QueryRefusedError, RequestInvalidError, TopicNotFoundError: as :meth:`create`.
            QueryError: the query fails, or needs more than it may use.
        """
        principal.require(PLAN)
        wanted, request = request, self._write(request)
        principal.require_topic(request.topic)
        if originals:
            principal.require(MESSAGES)
        valid = self._validate(request, wanted)
        check_topic(self._pubsub, request, principal)
        overlapping = overlapping_ids(self._store.list_active(BACKFILL.name), request.topic, _times(valid))
        reader = principal if originals else None
        plan = self._planner.plan(request, valid, overlapping=overlapping, exact=exact, reader=reader)
        return hide_samples(
            plan,
            reader=principal,
            is_as_archived=valid.query.is_as_archived,
            rewrites_topic=valid.query.rewrites_topic,
        )

    def read_plan(self, plan_id: str, *, principal: Principal) -> dict[str, Any]:
        """Return a plan that was made, with its request; samples have the payloads that the caller may read.

        Raises:
            PlanExpiredError: it has expired, or there is none.
        """
        principal.require(PLAN)
        plan = self._planner.read(plan_id)
        principal.require_topic(plan["request"]["topic"])
        # One that an earlier release made says neither.
        is_as_archived, rewrites_topic = plan.pop("is_as_archived", False), plan.pop("rewrites_topic", True)
        return hide_samples(plan, reader=principal, is_as_archived=is_as_archived, rewrites_topic=rewrites_topic)

    def create(
        self, request: BackfillRequest, *, principal: Principal, idempotency_key: str | None = None
    ) -> Backfill:
        """Validate the request and keep it as a PENDING backfill, or a PAUSED one; returns before its query runs.

        The same idempotency key with the same request gives back the backfill that the first call made.

        Raises:
            QueryRefusedError, RequestInvalidError: the request is wrong; every violation is in the details.
            TopicNotFoundError: the target does not exist, and ``create_topic`` was not asked for.
            PlanExpiredError, PlanMismatchError: the plan that the request quotes does not stand for it.
            BackfillOverlapsError: an active backfill replays some of the same messages to the same topic.
            ReplayArchivedError: a backup subscription of the target would archive the replay.
            IdempotencyKeyReusedError: the key came before with another request.
            IdempotencyInProgressError: the first call with the key is under way.
        """
        self._require(principal, None)
        wanted, request = request, self._write(request)
        principal.require_topic(request.topic)
        idempotency = None if idempotency_key is None else Idempotency(idempotency_key, request.fingerprint())
        return self._create_once(
            idempotency, principal, lambda: self._create(request, wanted, principal, idempotency)
        )

    def change(
        self,
        backfill_id: str,
        changes: Mapping[str, Any],
        *,
        principal: Principal,
        versions: Versions = None,
    ) -> Backfill:
        """Change the rate limit, the description or the labels, of a running backfill too.

        Raises:
            RequestInvalidError: some changes are wrong; every fault is in the details.
            JobStateError: the rate of one that is at its end.
        """
        valid = validate_changes(changes)
        job = self._steerable(backfill_id, principal, versions)
        if "rate_limit_messages_per_second" in valid and job.state.is_final:
            raise JobStateError(
                f"{job.id} is {job.state}. It publishes no more messages, so its rate limit can't change."
            )
        if not valid:
            return self._show(job)
        what = "changed " + ", ".join(sorted(valid))
        job = self._store.change(
            job.id,
            actor=principal.name,
            what=what,
            options=valid,
            expected_version=expected_version(job, versions),
        )
        self._steer(job)
        if "rate_limit_messages_per_second" in valid:
            # They are of the limit before, until the next look at the job.
            job = replace(job, progress={**job.progress, "rate_messages_per_second": None, "eta_seconds": None})
        return self._show(job)

    def pause(self, backfill_id: str, *, principal: Principal, versions: Versions = None) -> Backfill:
        """Let nothing new go out until :meth:`resume`; ``in_flight_at_most`` is how many messages still may.

        Pausing twice is one pause.

        Raises:
            JobStateError: it is at its end or on its way there.
        """
        job = self._steerable(backfill_id, principal, versions)
        if job.state is JobState.PAUSED:
            return self._tell(job)
        check_lives(job)
        return self._move(job, JobState.PAUSED, principal, versions, why="paused")

    def resume(self, backfill_id: str, *, principal: Principal, versions: Versions = None) -> Backfill:
        """Let a paused backfill go on, without the canary that paused it; resuming twice is one resume.

        It is PENDING, and waits for its turn, while as many others run as may.

        Raises:
            JobStateError: it is at its end or on its way there.
            ApprovalRequiredError: it has more rows than one person may decide about.
        """
        job = self._steerable(backfill_id, principal, versions)
        if job.state in {JobState.PENDING, JobState.PAUSED} and exceeds_approval(job):
            raise ApprovalRequiredError(
                f"{job.id} has more than {allowed_rows(job)} rows, so a person other than {job.created_by} "
                f"must approve it. Before the approval, nobody can resume it.",
                id=job.id,
            )
        if job.state in {JobState.PENDING, JobState.RUNNING}:
            return self._show(job)
        if is_approved(job):
            # The replica that approved it may have died before its driver could learn of that.
            self._write_run(job)
        job = self._steering.resume(
            job, actor=principal.name, why="resumed", expected_version=expected_version(job, versions)
        )
        self._supervisor.wake()
        return self._show(job)

    def retry(
        self,
        backfill_id: str,
        *,
        principal: Principal,
        only: str = "all",
        rows: Collection[int] = (),
        code: str | None = None,
        versions: Versions = None,
    ) -> Backfill:
        """Let a backfill that has ended go on, on the same selection.

        ``all`` goes on after the last checkpoints of one that FAILED or was CANCELLED; ``failed`` sends its dead
        letters again, where ``rows`` or a ``code`` are given those alone; ``missing`` sends what has not landed in
        the target's staging table.

        Raises:
            JobStateError: it has not ended, or there is nothing of that kind to send, or what is missing may only
                not be delivered yet.
            BackfillOverlapsError: an active backfill replays some of the same messages to the same topic.
            StagingUnknownError: nobody knows what is missing.
        """
        if only not in RETRIES:
            raise RequestInvalidError.of("only_invalid", f"only must be one of {', '.join(RETRIES)}.", "/only")
        is_chosen = bool(rows) or code is not None
        if is_chosen and only != "failed":
            message = "The fields rows and code select dead letters. They can be used only with only=failed."
            raise RequestInvalidError.of("only_invalid", message, "/only")
        job = self._steerable(backfill_id, principal, versions)
        self._check_retry(job, only)
        # What an earlier retry asked for is not asked for again.
        chosen: list[int] = []
        if only == "missing":
            chosen = self._find_missing(job)
        elif is_chosen:
            chosen = self._find_letters(job, rows, code)
        check_overlap = retry_guard(job, self._folder_of)

        def guard(active: Sequence[Job]) -> None:
            check_overlap(active)
            # Here, so that of two retries at once the one that comes too late leaves nothing behind.
            self._write_run(job, only=only, rows=chosen)

        why = "retried" if only == "all" else f"retried, only {only}"
        if is_chosen:
            why += f", {len(chosen)} of {Progress.of(job).failed}"
        # What it brings from now on is not reverted.
        options = {"reverted": None}
        return self._move(job, JobState.PENDING, principal, versions, why=why, options=options, guard=guard)

    def approve(self, backfill_id: str, *, principal: Principal, versions: Versions = None) -> Backfill:
        """Let a backfill go on whose rows wait for approval; a person other than its creator has looked at it.

        It holds for the rows that are known by then: where more are selected later, another one is needed.
        One that waited for nothing else starts or goes on at once; one that was to start paused, or that somebody
        has paused, stays paused.

        Raises:
            ForbiddenError: the creator approves, or who applied the schedule that created it.
            JobStateError: there is nothing to approve, or nothing any more.
        """
        principal.require(APPROVE)
        job = self._get(backfill_id)
        principal.require_topic(job.request["topic"])
        check_version(job, versions)
        if job.state.is_final or job.state is JobState.CANCELLING or not exceeds_approval(job):
            raise JobStateError(f"{job.id} is {job.state} and does not wait for an approval.", id=job.id)
        if principal.name == job.created_by:
            raise ForbiddenError(f"You created {job.id} yourself. Another person must approve it.", id=job.id)
        kind, _, name = job.created_by.partition(":")
        applied = self._store.find_manifest_changes(name)[0] if kind == "schedule" else None
        if applied is not None and principal.name == applied.actor:
            message = f"You applied the schedule of {job.id} yourself. Another person must approve the backfill."
            raise ForbiddenError(message, id=job.id)
        approval = approved(job, principal.name)
        job = self._store.change(
            job.id,
            actor=principal.name,
            what="approved",
            why=f"{approval['rows']} rows",
            approval=approval,
            expected_version=expected_version(job, versions),
        )
        # After the store: nothing goes out that the history does not know of.
        self._write_run(job)
        # Its driver waits for this alone; what somebody has paused is theirs to resume.
        if job.state is JobState.PAUSED and self._folder_of(job.id).read_pause(job.epoch) is not None:
            job = self._steering.resume(job, actor=principal.name, why="approved", expected_version=None)
        self._supervisor.wake()
        return self._show(job)

    def revert(self, backfill_id: str, *, principal: Principal, versions: Versions = None) -> Backfill:
        """Delete what the backfill brought into the target's staging table, as long as no merge has taken it.

        Raises:
            JobStateError: it has not ended, so more could land.
            StagingUnknownError: no staging table is known for its target.
            AlreadyMergedError: some of it is merged.
            RevertIncompleteError: some of it is deleted, the rest is not yet; a second call goes on.
        """
        job = self._steerable(backfill_id, principal, versions)
        if not job.state.is_final:
            first = "Wait until it is CANCELLED." if job.state is JobState.CANCELLING else "Cancel it first."
            raise JobStateError(f"{job.id} is {job.state}. {first}", state=job.state.value)
        try:
            rows = self._verifier.delete_rows(job)
        except (AlreadyMergedError, RevertIncompleteError) as exc:
            if exc.details.get("deleted"):
                self._store.change(job.id, actor=principal.name, what="reverted in part", why=exc.message)
            raise
        # The history first: what is deleted is in it, whatever comes of counting what is left.
        reverted = {"by": principal.name, "at": render_moment(datetime.now(UTC)), "rows": rows}
        job = self._store.change(
            job.id,
            actor=principal.name,
            what="reverted",
            why=f"{rows} rows deleted from staging",
            options={"reverted": reverted},
        )
        verification = self._verifier.verify(job)
        again = verify_again_seconds(job, verification)
        self._store.set_verification(
            job.id, verification, actor=principal.name, epoch=job.epoch, again_seconds=again
        )
        return self._show(self._store.get(job.id))

    def check_readiness(self) -> dict[str, str]:
        """Return what is not ready, by name, with the reason; empty when a backfill could start now."""
        problems: dict[str, str] = {}
        checks: dict[str, Callable[[], object]] = {
            "job_store": lambda: self._store.list_jobs(limit=1),
            "pubsub": lambda: self._pubsub.topic_exists("refeed-readiness"),
        }
        for name, check in checks.items():
            try:
                check()
            except RefeedError as exc:
                problems[name] = exc.message
        return problems

    def _write(self, wanted: BackfillRequest) -> BackfillRequest:
        """Return the request with its query, which is written here unless it was given.

        Raises:
            RequestInvalidError: there is no query, and none can be written.
        """
        table = self._settings.warehouse.archive_table
        return wanted.write(table) if isinstance(wanted, BackfillCreate) else wanted

    def _validate(self, request: BackfillRequest, wanted: BackfillRequest) -> ValidRequest:
        """Return the validated request; what the gate refuses of a written query is a fault of a field."""
        try:
            tables = self._letters.staging_of(request.query, request.parameters)
            return self._planner.validate(request, tables=tables)
        except QueryRefusedError as exc:
            if isinstance(wanted, BackfillCreate) and wanted.has_range:
                raise wanted.explain(request.query, exc) from exc
            raise

    def _create(
        self,
        request: BackfillRequest,
        wanted: BackfillRequest,
        principal: Principal,
        idempotency: Idempotency | None,
    ) -> Backfill:
        valid = self._validate(request, wanted)
        planned = self._planner.quoted(request)
        rows = None if planned is None else planned.rows
        check_rows(rows, request, self._settings.bounds)
        source = self._planner.source(request, valid, planned)
        check_topic(self._pubsub, request, principal)
        warnings = check_subscriptions(self._pubsub, request, self._settings)
        if rows == 0:
            warnings.append(render_nothing_warning())
        sources = None if planned is None else planned.source_topics
        if request.create_topic:
            self._pubsub.create_topic(request.topic)
        return self._insert(
            {
                **request.to_json(),
                **_times(valid),
                "source_topics": sources,
                "warnings": warnings,
            },
            lambda job_id: render_specification(job_id, request, source, self._settings, self._pubsub),
            principal=principal,
            idempotency=idempotency,
            state=JobState.PAUSED if request.start_paused else JobState.PENDING,
            options=_options(request),
            approval=approval_of(rows, self._settings.approval_rows),
            guard=overlap_guard(request, _times(valid), sources, self._folder_of),
        )

    def _require(self, principal: Principal, job: Job | None) -> None:
        principal.require(RUN)
        if job is not None:
            principal.require_topic(job.request["topic"])

    def _steer(self, job: Job) -> None:
        self._steering.steer(job)

    def _write_run(self, job: Job, **changes: Any) -> None:
        """Change how the job's next attempt runs; the rows that are approved wait for no approval any more."""
        folder = self._folder_of(job.id)
        specification = folder.read_specification()
        run = {**specification.get("run", {}), **changes}
        if is_approved(job):
            run["approval_rows"] = allowed_rows(job)
        folder.write_specification({**specification, "run": run})

    def _find_missing(self, job: Job) -> list[int]:
        # Before the rows: what lands in between is not taken to be missing.
        waits = self._verifier.find_waiting(job)
        found = self._verifier.missing_rows(job)
        if not found:
            raise JobStateError(
                f"All messages of {job.id} are in the staging table. Nothing is missing.", state=job.state.value
            )
        if waits is not None:
            message = (
                f"{counted(len(found), 'message')} of {job.id} may not be delivered yet. A retry now could send "
                f"them twice. {waits.advice}"
            )
            raise JobStateError(message, state=job.state.value)
        return found

    def _find_letters(self, job: Job, rows: Collection[int], code: str | None) -> list[int]:
        found = find_dead_letters(self._folder_of(job.id), rows=frozenset(rows), code=code)
        if not found:
            raise JobStateError(f"{job.id} has no such dead letters.", state=job.state.value)
        return found

    def _check_retry(self, job: Job, only: str) -> None:
        check_ended(job)
        if only == "all" and job.state is JobState.SUCCEEDED:
            raise JobStateError(f"{job.id} has published everything.", state=job.state.value)
        if only == "failed" and Progress.of(job).failed == 0:
            raise JobStateError(f"{job.id} has no dead letters.", state=job.state.value)


def _times(valid: ValidRequest) -> dict[str, Any]:
    """Return the partitions that a query may read, and the times of the messages that it lets through."""
    return {"window": render_window(valid.window), "replays": render_replays(valid)}


def _options(request: BackfillRequest) -> dict[str, Any]:
    """Return what may change while the backfill lives."""
    wanted = {name: getattr(request, name) for name in LIVE}
    return {name: value for name, value in wanted.items() if value is not None}
