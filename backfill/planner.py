"""Makes plans, keeps them until they expire, and finds the one that a create quotes."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from backfill.chores import KIND
from backfill.creation import check_backups, check_plan, overlapping_ids, read_lake_snapshot
from backfill.deployment import Deployment
from backfill.plan import PlanTarget, make_plan
from backfill.policy import GatePolicy
from backfill.request import BackfillRequest, ValidRequest
from backfill.resource import render_moment
from connectors.lake.query import QueryLimits
from connectors.lake.query_process import QueryProcesses
from connectors.pubsub.client import PubSub
from jobs.store import JobStore
from model.job import new_job_id
from model.message import replay_token
from sql.validate import Policy
from sql.worker import GATE

_QUERY_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class QuotedPlan:
    """What a create takes from the plan that it quotes; None is what the plan does not know."""

    rows: int | None
    source_topics: list[str] | None


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
            lake=deployment.lake,
            max_window_days=deployment.max_window_days,
        )

    def warm(self) -> None:
        """Start what a first plan would wait for: the gate's process and the one for queries."""
        GATE.warm()
        self._processes.warm()

    def close(self) -> None:
        """End the process that waits for a query."""
        self._processes.close()

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

    def plan(self, request: BackfillRequest, valid: ValidRequest) -> dict[str, Any]:
        """Run the query, and return and keep what a backfill of it would do.

        Raises:
            ReplayArchivedError: a backup subscription of the target would archive the replay.
            QueryError: the query fails, or needs more than it may use.
        """
        place = self._deployment
        plan_id = new_job_id("pl")
        token = replay_token(place.replay_secret, request.topic)
        subscriptions = self._pubsub.list_subscriptions(request.topic)
        check_backups(subscriptions, token)
        target = PlanTarget(request.topic, token, subscriptions, request.added_attributes())
        overlapping = overlapping_ids(self._store.list_active(KIND), request.topic, valid.window)
        snapshot = read_lake_snapshot(valid, place)
        limits = QueryLimits(place.query_memory, place.home / "run" / "spill", seconds=_QUERY_SECONDS)
        plan = make_plan(valid, snapshot, target, self._processes, limits, overlapping=overlapping)
        now = datetime.now(UTC)
        expires_at = now + timedelta(seconds=place.plan_seconds)
        document = {"plan_id": plan_id, "expires_at": render_moment(expires_at), **plan.to_json()}
        self._store.purge_plans(now)
        self._store.put_plan(plan_id, fingerprint_of(request), document, expires_at)
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
        return QuotedPlan(rows, sorted(by_topic) if is_whole else None)


def fingerprint_of(request: BackfillRequest) -> str:
    """Return a digest of what a plan is about: the query, its parameters and the topic."""
    about = [request.query, request.parameters, request.topic]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
