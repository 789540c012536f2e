"""The sources of one group: which run, with which schema, and what keeps another from running."""

import time
from collections.abc import Callable
from typing import Any, Protocol

import structlog

from connectors.lake.rows import RowTable
from connectors.pubsub.client import PubSub
from jobs.stream.status import StatusFile
from model.errors import EvolutionRefusedError, RefeedError, SubscriptionNotFoundError
from pipeline.dead_letters import DEAD_LETTER_SCHEMA
from pipeline.plan import GroupPlan, PlanFile, SourcePlan
from pipeline.registry import Registry, Source

_log = structlog.get_logger(__name__)


class Committer(Protocol):
    """Who commits to the tables meanwhile: it is asked before one is changed, and told of a new one."""

    lock: Any

    def take(self, name: str) -> None:
        """Take the lease on a table."""


class Group:
    """Keeps a group's plan in step with the registry: tables first, then the plan that tasks follow.

    A source whose new schema is refused goes on with the one it had; a registry that can't be read changes
    nothing. Both are alerts: they stand in the status file until they are mended, and are logged once.
    """

    def __init__(
        self,
        name: str,
        *,
        registry: Registry,
        plan_file: PlanFile,
        open_table: Callable[[str], RowTable],
        pubsub: PubSub,
        is_embedded: bool,
        ack_deadline_seconds: int,
        dead_letter_table: str,
        max_bytes: int,
        status: StatusFile,
    ) -> None:
        self.name = name
        self._registry = registry
        self._plan_file = plan_file
        self._open = open_table
        self._pubsub = pubsub
        self._is_embedded = is_embedded
        self._ack_deadline_seconds = ack_deadline_seconds
        self._dead_letters = open_table(dead_letter_table)
        self._max_bytes = max_bytes
        self._status = status
        self._alerts: dict[str, dict[str, Any]] = {}
        self._fingerprint = ""
        self._accepted: dict[str, SourcePlan] = {}

    def start(self) -> list[str]:
        """Create the table of dead letters, take up the plan of the last run, and return the tables that it names.

        Raises:
            CheckpointCorruptError: the plan can't be read.
        """
        self._dead_letters.evolve(DEAD_LETTER_SCHEMA)
        plan = self._plan_file.read()
        if plan is not None:
            self._accepted = {found.source.name: found for found in plan.sources}
        self._write_plan()
        tables = [found.source.staging for found in self._accepted.values()]
        return [self._dead_letters.name, *(name for name in tables if self._open(name).exists())]

    def follow(self, committer: Committer) -> None:
        """Look at the registry, and where it changed, or a fault stands, bring tables and plan in step with it."""
        try:
            fingerprint = self._registry.fingerprint()
            if fingerprint == self._fingerprint and not self._alerts:
                return
            sources = self._registry.read().of_group(self.name)
        except RefeedError as exc:
            self._alert("registry", exc)
            return
        self._mend("registry")
        is_first = self._fingerprint == ""
        before = dict(self._accepted)
        accepted = {}
        for source in sources:
            found = self._accept(source, before.get(source.name), committer, is_first=is_first)
            if found is not None:
                accepted[source.name] = found
        for name in before.keys() - {source.name for source in sources}:
            _log.info("source_removed", source=name)
            self._mend(name)
        self._accepted = accepted
        self._fingerprint = fingerprint
        if accepted != before or is_first:
            self._write_plan()
            _log.info("plan_changed", group=self.name, sources=len(accepted))
        self._report()

    def _accept(
        self, source: Source, before: SourcePlan | None, committer: Committer, *, is_first: bool
    ) -> SourcePlan | None:
        """Return how the source runs from now on, None when it can't yet."""
        if before is not None and before.source == source and not is_first and source.name not in self._alerts:
            return before
        try:
            self._attach(source)
            table = self._open(source.staging)
            with committer.lock:
                evolution = table.evolve(source.row_schema)
            committer.take(source.staging)
        except RefeedError as exc:
            self._alert(source.name, exc)
            return before
        self._mend(source.name)
        if evolution.changes:
            changes = [f"{change.path} {change.text}" for change in evolution.changes]
            _log.info("table_changed", source=source.name, table=source.staging, changes=changes)
        return SourcePlan(source, table.writer())

    def _attach(self, source: Source) -> None:
        """Create the source's subscription where there is none; what somebody made by hand is left as it is."""
        try:
            self._pubsub.get_subscription(source.subscription)
        except SubscriptionNotFoundError:
            if self._is_embedded:
                self._pubsub.create_topic(source.topic)
            self._pubsub.create_subscription(
                source.subscription, source.topic, ack_deadline_seconds=self._ack_deadline_seconds
            )

    def _write_plan(self) -> None:
        plans = tuple(self._accepted[name] for name in sorted(self._accepted))
        letters = self._dead_letters
        self._plan_file.write(GroupPlan(plans, letters.name, letters.writer(), self._max_bytes))

    def _alert(self, name: str, exc: RefeedError) -> None:
        """Say once what is wrong, and keep saying so in the status."""
        known = self._alerts.get(name)
        if known is None or known["message"] != exc.message:
            self._alerts[name] = {"about": name, "code": exc.code, "message": exc.message, "since": time.time()}
            self._alerts[name] |= {"details": exc.details} if exc.details else {}
            goes_on = isinstance(exc, EvolutionRefusedError) and name in self._accepted
            _log.error(
                "alert", about=name, code=exc.code, error=exc.message, old_schema_used=goes_on, **exc.details
            )
            self._report()

    def _mend(self, name: str) -> None:
        if self._alerts.pop(name, None) is not None:
            _log.info("alert_over", about=name)

    def _report(self) -> None:
        self._status.write(alerts=list(self._alerts.values()), running=sorted(self._accepted))
