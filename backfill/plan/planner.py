"""Makes plans, keeps them until they expire, and finds the one that a create quotes."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from backfill.plan.creation import check_backups, check_bytes, check_plan, target_of
from backfill.plan.plan import make_plan
from backfill.plan.request import BackfillRequest
from backfill.plan.settings import BackfillSettings
from backfill.plan.validation import ValidRequest, validate_request
from connectors.pubsub.client import PubSub
from jobs.store import JobStore
from model.job import new_job_id
from model.message import replay_token
from model.moment import render_moment
from sql.parameters import QueryParameter
from sql.validate import Policy, parse_parameters, validate_query
from sql.worker import GATE
from warehouse.queries import Queries, ReplayQuery

# Somebody waits for the answer.
_ANSWER_SECONDS: Final = 60.0
_ANSWER_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True)
class QuotedPlan:
    """What a create takes from the plan that it quotes; None is what the plan does not know.

    ``materialised`` is its id when the warehouse keeps its rows.
    """

    rows: int | None
    source_topics: list[str] | None
    materialised: str | None = None


class Planner:
    """Plans of one deployment; each is kept for as long as the deployment says."""

    def __init__(self, settings: BackfillSettings, store: JobStore, pubsub: PubSub, queries: Queries) -> None:
        self._settings = settings
        self._store = store
        self._pubsub = pubsub
        self._queries = queries

    def warm(self) -> None:
        """Start what a first plan would wait for: the gate's process and those of the warehouse."""
        GATE.warm()
        self._queries.warm()

    def policy(self, *, replay: bool = True) -> Policy:
        """Return what the gate lets through now; only a replay needs a window and the columns of a message.

        Raises:
            WarehouseError: the warehouse does not answer.
        """
        settings = self._settings
        archive = settings.warehouse.archive_table
        return self._queries.policy(
            Policy(
                archive,
                settings.project,
                datetime.now(UTC),
                extra_tables=tuple(name for name in settings.query_tables if name != archive),
                max_window_days=settings.max_window_days,
                replay=replay,
            )
        )

    def answer(self, query: str, parameters: Mapping[str, QueryParameter]) -> list[dict[str, Any]]:
        """Return the rows of a SELECT of our own over dead letters and tables that queries may read.

        There are none where the table of dead letters is not there. Where queries are billed, it is.

        Raises:
            WarehouseError, QueryError: it fails.
        """
        if not self._queries.has_table(self._settings.dead_letter_table):
            return []
        valid = validate_query(query, parse_parameters(parameters), self.policy(replay=False))
        found = self._queries.answer(valid, max_rows=_ANSWER_ROWS, seconds=_ANSWER_SECONDS)
        rows: list[dict[str, Any]] = found.rows.to_pylist()
        return rows

    def validate(self, request: BackfillRequest) -> ValidRequest:
        """Return the request with its validated query, if it may run in this deployment.

        Raises:
            QueryRefusedError, RequestInvalidError: it may not.
        """
        return validate_request(request, self.policy(), check=self._queries.check)

    def plan(
        self, request: BackfillRequest, valid: ValidRequest, *, overlapping: Sequence[str], exact: bool = False
    ) -> dict[str, Any]:
        """Look into the query, and return and keep what a backfill of it would do.

        ``overlapping`` are the backfills to warn of. Where queries are billed, the warehouse is only asked what
        it would do, unless ``exact``.

        Raises:
            ReplayArchivedError: a backup subscription of the target would archive the replay.
            QueryError: the query fails, or needs more than it may use.
        """
        settings = self._settings
        plan_id = new_job_id("pl")
        token = replay_token(settings.replay_secret, request.topic)
        subscriptions = self._pubsub.list_subscriptions(request.topic)
        check_backups(subscriptions, token)
        target = target_of(request, subscriptions, token, settings)
        figures = self._queries.examine(self._replay_query(request, valid), keep_as=plan_id if exact else None)
        plan = make_plan(
            valid,
            figures,
            target,
            overlapping=overlapping,
            bounds=settings.bounds,
            billing=settings.billing,
        )
        now = datetime.now(UTC)
        expires_at = now + timedelta(seconds=settings.plan_seconds)
        document = {"plan_id": plan_id, "expires_at": render_moment(expires_at), **plan.to_json()}
        self._store.purge_plans(now)
        kept = {**document, "materialised": plan_id if figures.is_kept else None}
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
        """Return the query and the warehouse as a backfill's driver needs to know them.

        Raises:
            RequestInvalidError: the query may read more than ``max_bytes_billed``.
            QueryError: the warehouse refuses the query, or understands it otherwise than the gate.
            WarehouseError: there is no archive.
        """
        settings = self._settings
        kept = None if planned is None else planned.materialised
        source = self._queries.source(self._replay_query(request, valid), kept=kept)
        return {"query": {**source, "memory": settings.query_memory}, "warehouse": settings.warehouse.to_json()}

    def _replay_query(self, request: BackfillRequest, valid: ValidRequest) -> ReplayQuery:
        return ReplayQuery(
            valid.query,
            request.parameters,
            request.added_attributes(),
            request.max_bytes_billed,
            check_bill=lambda size_bytes: check_bytes(size_bytes, request),
            is_allowed=self._settings.bounds.allows,
        )


def fingerprint_of(request: BackfillRequest) -> str:
    """Return a digest of what a plan is about: the query, its parameters and the topic."""
    about = [request.query, request.parameters, request.topic]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
