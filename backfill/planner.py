"""Makes plans, keeps them until they expire, and finds the one that a create quotes."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from backfill.chores import KIND
from backfill.creation import (
    check_backups,
    check_bytes,
    check_plan,
    overlapping_ids,
    read_lake_snapshot,
    render_lake_source,
    target_of,
)
from backfill.deployment import Deployment
from backfill.plan import Plan, PlanTarget, make_plan
from backfill.policy import GatePolicy
from backfill.request import BackfillRequest, ValidRequest, validate_request
from connectors.lake.query import QueryLimits, read_snapshot
from connectors.lake.query_process import QueryProcesses, Statement
from connectors.pubsub.client import PubSub
from jobs.store import JobStore
from model.job import new_job_id
from model.message import replay_token
from model.moment import render_moment
from sql.dialect import render_lake_query
from sql.validate import Policy, parse_parameters, validate_query
from sql.worker import GATE

if TYPE_CHECKING:
    from backfill.bigquery_plan import BigQueryPlanner

_QUERY_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class QuotedPlan:
    """What a create takes from the plan that it quotes; None is what the plan does not know.

    ``materialised`` is its id when its rows are kept in BigQuery.
    """

    rows: int | None
    source_topics: list[str] | None
    materialised: str | None = None


class Planner:
    """Plans of one deployment; each is kept for as long as the deployment says."""

    def __init__(self, deployment: Deployment, store: JobStore, pubsub: PubSub) -> None:
        self._deployment = deployment
        self._store = store
        self._pubsub = pubsub
        self._processes = QueryProcesses(keep_spare=True)
        self._gate = GatePolicy(
            archive_table=deployment.archive_table,
            project=deployment.project,
            query_tables=deployment.query_tables,
            lake=deployment.lake if deployment.bigquery is None else None,
            max_window_days=deployment.max_window_days,
            write_buffer=deployment.archive_partitioning if deployment.bigquery is not None else None,
        )
        self._bigquery = _open_bigquery(deployment)

    def warm(self) -> None:
        """Start what a first plan would wait for: the gate's process and the one for queries."""
        GATE.warm()
        if self._bigquery is None:
            self._processes.warm()

    def close(self) -> None:
        """End the process that waits for a query, and connections to BigQuery."""
        self._processes.close()
        if self._bigquery is not None:
            self._bigquery.close()

    @property
    def processes(self) -> QueryProcesses:
        """What runs queries over the lake."""
        return self._processes

    def policy(self) -> Policy:
        """Return what the gate lets through now.

        Raises:
            WarehouseError: the lake does not answer.
        """
        return self._gate.make()

    def answer(self, query: str, parameters: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows of a SELECT of our own over dead letters and tables that queries may read; it is billed.

        There are none where the table of dead letters is not there.

        Raises:
            WarehouseError, QueryError: it fails.
        """
        policy = self._gate.make(replay=False)
        if self._deployment.dead_letter_table in policy.missing_tables:
            return []
        if self._bigquery is not None and not self._bigquery.has_table(self._deployment.dead_letter_table):
            return []
        valid = validate_query(query, parse_parameters(parameters), policy)
        if self._bigquery is not None:
            return self._bigquery.answer(valid)
        place, lake = self._deployment, render_lake_query(valid)
        snapshot = read_snapshot(
            place.lake,
            place.archive_table,
            place.archive_partitioning,
            window=valid.window,
            reads_archive=lake.reads_archive,
            extra_reads=lake.extra_reads,
        )
        (table,) = self._processes.run(snapshot, [Statement(lake.sql, lake.parameters)], self._limits())
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows

    def validate(self, request: BackfillRequest) -> ValidRequest:
        """Return what the request comes to, if it may run in this deployment.

        Raises:
            QueryRefusedError, RequestInvalidError: it may not.
        """
        return validate_request(request, self.policy(), for_lake=self._bigquery is None)

    def plan(self, request: BackfillRequest, valid: ValidRequest, *, exact: bool = False) -> dict[str, Any]:
        """Run the query, and return and keep what a backfill of it would do.

        BigQuery is only asked what it would do, unless ``exact``; a lake's plans are exact all the same.

        Raises:
            ReplayArchivedError: a backup subscription of the target would archive the replay.
            QueryError: the query fails, or needs more than it may use.
        """
        place = self._deployment
        plan_id = new_job_id("pl")
        token = replay_token(place.replay_secret, request.topic)
        subscriptions = self._pubsub.list_subscriptions(request.topic)
        check_backups(subscriptions, token)
        target = target_of(request, subscriptions, token, place)
        overlapping = overlapping_ids(self._store.list_active(KIND), request.topic, valid.window)
        if self._bigquery is None:
            plan = self._plan_lake(valid, target, overlapping)
        else:
            plan = self._bigquery.plan(plan_id, request, valid, target, overlapping=overlapping, exact=exact)
        now = datetime.now(UTC)
        expires_at = now + timedelta(seconds=place.plan_seconds)
        document = {"plan_id": plan_id, "expires_at": render_moment(expires_at), **plan.to_json()}
        self._store.purge_plans(now)
        is_kept = exact and self._bigquery is not None
        kept = {**document, "materialised": plan_id if is_kept else None}
        self._store.put_plan(plan_id, fingerprint_of(request), kept, expires_at)
        return document

    def quoted(self, request: BackfillRequest) -> QuotedPlan | None:
        """Return the plan that the request quotes, if it quotes one.

        Raises:
            PlanExpiredError: it has expired, or there is none.
            PlanMismatchError: it is of another query, other parameters or another topic.
        """
        if request.plan_id is None:
            return None
        plan = check_plan(self._store.get_plan(request.plan_id), fingerprint_of(request), request)
        rows: int | None = plan.document["rows"]
        by_topic: Mapping[str, int] = plan.document["rows_by_topic"] or {}
        is_whole = rows is not None and sum(by_topic.values()) == rows
        return QuotedPlan(rows, sorted(by_topic) if is_whole else None, plan.document.get("materialised"))

    def source(self, request: BackfillRequest, valid: ValidRequest, planned: QuotedPlan | None) -> dict[str, Any]:
        """Return the query and the archive as a backfill's driver needs to know them.

        Raises:
            RequestInvalidError: the query may read more than ``max_bytes_billed``.
            QueryError: BigQuery refuses the query, or understands it otherwise than the gate.
            WarehouseError: there is no archive.
        """
        if self._bigquery is not None:
            return self._bigquery.source(request, valid, None if planned is None else planned.materialised)
        if request.max_bytes_billed is not None:
            check_bytes(read_lake_snapshot(valid, self._deployment).size_bytes, request)
        return render_lake_source(valid, self._deployment)

    def _plan_lake(self, valid: ValidRequest, target: PlanTarget, overlapping: list[str]) -> Plan:
        place = self._deployment
        snapshot = read_lake_snapshot(valid, place)
        return make_plan(
            valid, snapshot, target, self._processes, self._limits(), overlapping=overlapping, bounds=place.bounds
        )

    def _limits(self) -> QueryLimits:
        place = self._deployment
        return QueryLimits(
            place.query_memory,
            place.home / "run" / "spill",
            seconds=_QUERY_SECONDS,
            min_free_bytes=place.bounds.min_free_bytes,
        )


def _open_bigquery(deployment: Deployment) -> "BigQueryPlanner | None":
    if deployment.bigquery is None:
        return None
    # Google's clients are slow to load, and a lake needs none of them.
    from backfill.bigquery import BigQueryPlace
    from backfill.bigquery_plan import BigQueryPlanner

    return BigQueryPlanner(
        BigQueryPlace(deployment.bigquery, deployment.archive_table),
        memory=deployment.query_memory,
        bounds=deployment.bounds,
        price_usd_per_tib=deployment.price_usd_per_tib,
    )


def fingerprint_of(request: BackfillRequest) -> str:
    """Return a digest of what a plan is about: the query, its parameters and the topic."""
    about = [request.query, request.parameters, request.topic]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
