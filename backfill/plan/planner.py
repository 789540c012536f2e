"""Makes plans, keeps them until they expire, and finds the one that a create quotes."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from backfill.plan.checking import check_replay_query
from backfill.plan.creation import check_backups, check_bytes, check_lives, check_plan, target_of
from backfill.plan.originals import MAX_BYTES, compare_samples
from backfill.plan.plan import IdleOf, make_plan
from backfill.plan.request import BackfillRequest
from backfill.plan.settings import BackfillSettings
from backfill.plan.validation import ValidRequest, validate_request
from connectors.pubsub.client import PubSub
from jobs.store import JobStore, StoredPlan
from model.errors import QueryTooLargeError
from model.job import new_job_id
from model.message import replay_token
from model.moment import render_moment
from model.principal import Principal
from model.query_parameter import QueryParameter
from sql.validate import Policy, parse_parameters, validate_query
from sql.worker import GATE
from warehouse.figures import QueryFigures
from warehouse.queries import Queries, ReplayQuery

# Somebody waits for the answer.
_ANSWER_SECONDS: Final = 60.0
_ANSWER_ROWS: Final = 10_000
# Somebody types: the tables' columns are not read again with each letter.
_POLICY_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class QuotedPlan:
    """What a create takes from the plan that it quotes; None is what the plan does not know.

    ``materialised`` is its id when the warehouse keeps its rows.
    """

    rows: int | None
    source_topics: list[str] | None
    materialised: str | None = None


class Planner:
    """Plans of one deployment; each is kept for ``plan_seconds`` of the settings."""

    def __init__(
        self,
        settings: BackfillSettings,
        store: JobStore,
        pubsub: PubSub,
        queries: Queries,
        idle_of: IdleOf = lambda _topic, _receives: (),
    ) -> None:
        self._settings = settings
        self._store = store
        self._pubsub = pubsub
        self._queries = queries
        self._idle_of = idle_of
        self._known: tuple[float, Policy] | None = None

    def warm(self) -> None:
        """Start what a first plan would wait for: the gate's process and those of the warehouse."""
        GATE.warm()
        self._queries.warm()

    def policy(self, *, replay: bool = True, tables: Sequence[str] = ()) -> Policy:
        """Return what the gate lets through now, reads of ``tables`` too.

        Only a replay needs a window and the columns of a message.

        Raises:
            WarehouseError: the warehouse does not answer.
        """
        return policy_of(self._settings, self._queries, replay=replay, tables=tables)

    def check(self, query: str, parameters: Mapping[str, QueryParameter]) -> dict[str, Any]:
        """Return the verdict on a replay's query, with edits; what is known of the tables is seconds old at most.

        Raises:
            RequestInvalidError: the query is no text.
            WarehouseError: the warehouse does not answer.
        """
        known = self._known
        if known is None or time.monotonic() - known[0] > _POLICY_SECONDS:
            known = self._known = (time.monotonic(), self.policy())
        policy = replace(known[1], now=datetime.now(UTC))
        return check_replay_query(query, parameters, policy, self._queries.check)

    def find_staging(self, tables: Sequence[str]) -> list[str] | None:
        """Return those of a source's staging tables that exist, None where not all of them may be read.

        Where queries are billed, only tables of REFEED_QUERY_TABLES may.

        Raises:
            WarehouseError: the warehouse does not answer.
        """
        if not tables or (self._queries.is_billed and not set(self._settings.query_tables).issuperset(tables)):
            return None
        return [table for table in tables if self._queries.has_table(table)]

    def answer(
        self, query: str, parameters: Mapping[str, QueryParameter], tables: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """Return the rows of a SELECT of our own over ``tables`` and the tables that queries may read.

        There are none where the table of dead letters is not there. Where queries are billed, it is.

        Raises:
            WarehouseError, QueryError: it fails.
        """
        if not self._queries.has_table(self._settings.dead_letter_table):
            return []
        valid = validate_query(query, parse_parameters(parameters), self.policy(replay=False, tables=tables))
        found = self._queries.answer(valid, max_rows=_ANSWER_ROWS, seconds=_ANSWER_SECONDS)
        rows: list[dict[str, Any]] = found.rows.to_pylist()
        return rows

    def validate(self, request: BackfillRequest, *, tables: Sequence[str] = ()) -> ValidRequest:
        """Return the request with its validated query, which may read ``tables``, if it may run here.

        Raises:
            QueryRefusedError, RequestInvalidError: it may not.
        """
        return validate_request(request, self.policy(tables=tables), check=self._queries.check)

    def plan(
        self,
        request: BackfillRequest,
        valid: ValidRequest,
        *,
        overlapping: Sequence[str],
        exact: bool = False,
        reader: Principal | None = None,
    ) -> dict[str, Any]:
        """Look into the query, and return and keep what a backfill of it would do.

        ``overlapping`` are the backfills to warn of. Where queries are billed, the warehouse is only asked what
        it would do, unless ``exact``. With ``reader``, whose messages they are to read, samples are compared with
        the archived messages; what is kept has none of that.

        Raises:
            ForbiddenError: ``reader`` may not read messages of one of the samples' topics.
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
            idle_of=self._idle_of,
            bounds=settings.bounds,
            billing=settings.billing,
        )
        now = datetime.now(UTC)
        expires_at = now + timedelta(seconds=settings.plan_seconds)
        document = {"plan_id": plan_id, "expires_at": render_moment(expires_at), **plan}
        document["query"] = request.query
        # Whoever opens the plan sees what it is of; a create quotes it.
        own = {
            "request": request.to_json(),
            "materialised": plan_id if figures.is_kept else None,
            "is_as_archived": valid.query.is_as_archived,
            "rewrites_topic": valid.query.rewrites_topic,
        }
        kept = {**document, **own}
        self._store.put_short_lived(StoredPlan(plan_id, fingerprint_of(request), kept, expires_at))
        if reader is None:
            return document
        return {**document, **self._compare(request, valid, figures, document, reader)}

    def _compare(
        self,
        request: BackfillRequest,
        valid: ValidRequest,
        figures: QueryFigures,
        document: Mapping[str, Any],
        reader: Principal,
    ) -> dict[str, Any]:
        """Return a plan's samples with their originals; where those would cost too much, a warning instead."""
        most = min(MAX_BYTES, request.max_bytes_billed or MAX_BYTES)
        if figures.samples and figures.bytes_scanned > most:
            too_many = f"the query reads {figures.bytes_scanned:,} bytes, but only {most:,} are allowed."
            return _without_originals(document, too_many)
        try:
            compared = compare_samples(
                figures.samples,
                self._queries.messages,
                valid.window,
                added=request.added_attributes(),
                reader=reader,
                max_bytes=most,
            )
        except QueryTooLargeError as exc:
            return _without_originals(document, exc.message)
        both = zip(document["samples"], compared, strict=True)
        return {"samples": [{**sample, "comparison": comparison} for sample, comparison in both]}

    def read(self, plan_id: str) -> dict[str, Any]:
        """Return a plan that was made, with its ``request``.

        Raises:
            PlanExpiredError: it has expired, or there is none.
        """
        kept = check_lives(self._store.find_short_lived(StoredPlan, plan_id), plan_id).document
        return {name: value for name, value in kept.items() if name != "materialised"}

    def quoted(self, request: BackfillRequest) -> QuotedPlan | None:
        """Return the plan that the request quotes, if it quotes one.

        Raises:
            PlanExpiredError: it has expired, or there is none.
            PlanMismatchError: it is of another query, other parameters or another topic.
        """
        if request.plan_id is None:
            return None
        found = self._store.find_short_lived(StoredPlan, request.plan_id)
        plan = check_plan(found, fingerprint_of(request), request)
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


def _without_originals(document: Mapping[str, Any], why: str) -> dict[str, Any]:
    message = f"The archived messages of the samples are not shown: {why}"
    return {"warnings": [*document["warnings"], {"code": "originals_not_read", "message": message}]}


def policy_of(settings: BackfillSettings, queries: Queries, *, replay: bool, tables: Sequence[str] = ()) -> Policy:
    """Return what the gate lets through now; only a replay needs a window and the columns of a message.

    Raises:
        WarehouseError: the warehouse does not answer.
    """
    archive = settings.warehouse.archive_table
    return queries.policy(
        Policy(
            archive,
            settings.project,
            datetime.now(UTC),
            extra_tables=tuple(
                name for name in dict.fromkeys((*settings.query_tables, *tables)) if name != archive
            ),
            max_window_days=settings.max_window_days,
            replay=replay,
        )
    )


def fingerprint_of(request: BackfillRequest) -> str:
    """Return a digest of what a plan is about: the query, its parameters and the topic."""
    about = [request.query, request.parameters, request.topic]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
