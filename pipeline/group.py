"""The sources of one group: which run, with which schema, and the faults that keep others from running."""

import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import structlog

from connectors.pubsub.client import PubSub
from model.errors import (
    DescriptorError,
    EvolutionRefusedError,
    RefeedError,
    RegistryError,
    SchemaFullError,
    StorageFullError,
    SubscriptionNotFoundError,
    TableNotReadyError,
    TopicNotFoundError,
)
from model.message import backup_subscription_id, replay_token
from model.schema import RowSchema
from pipeline.dead_letters import DEAD_LETTER_SCHEMA
from pipeline.inferred import MAX_TYPES, EventType, Variation, learn
from pipeline.plan import GroupPlan, PlanFile, SourcePlan
from pipeline.registry import Registry, RegistrySnapshot, Source
from pipeline.repository import SchemaRepository, repository_table
from streams.status import StatusFile
from streams.targets import TableKeeper
from warehouse.rows import RowTables

_log = structlog.get_logger(__name__)

# What an alert is about where the plan can't be written; no source has this name.
_PLAN: Final = "plan.json"
# They go along with every batch.
_MAX_REFUSED: Final = 1000


class Group:
    """Keeps a group's plan in step with the registry: tables first, then the plan that tasks follow.

    A source whose new schema is refused, or whose entry has a fault, goes on with what it had, and keeps no other
    from going on; a registry that can't be read changes nothing. All are alerts: they stand in the status file
    until they are mended, and are logged once. ``mapping`` leads from the old names of sources to those that the
    registry has now; it may be given at every start. replays are recognised by ``secret``.
    """

    def __init__(
        self,
        name: str,
        *,
        registry: Registry,
        plan_file: PlanFile,
        tables: RowTables,
        pubsub: PubSub,
        is_embedded: bool,
        ack_deadline_seconds: int,
        dead_letter_table: str,
        max_bytes: int,
        status: StatusFile,
        secret: str,
        mapping: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._secret = secret
        self._mapping = mapping or {}
        self._registry = registry
        self._plan_file = plan_file
        self._tables = tables
        self._pubsub = pubsub
        self._is_embedded = is_embedded
        self._ack_deadline_seconds = ack_deadline_seconds
        self._dead_letters = tables.open(dead_letter_table)
        self._max_bytes = max_bytes
        self._status = status
        self._alerts: dict[str, dict[str, Any]] = {}
        self._fingerprint = ""
        self._accepted: dict[str, SourcePlan] = {}
        # The sources of every group.
        self._listed: tuple[Source, ...] = ()
        # What of it the plan's file has: on a full disk it lags behind.
        self._planned: dict[str, SourcePlan] = {}
        # The registry is followed by one thread, variations come from the one that takes batches.
        self._lock = threading.RLock()
        # A commit that keeps the tables as they are refuses messages: it must not wait for the lock above, whose
        # owner may wait for the tables.
        self._plan_lock = threading.Lock()
        self._repository: SchemaRepository | None = None
        self._refused: dict[str, dict[str, str]] = {}

    def start(self) -> list[str]:
        """Create the table of dead letters, take up the plan of the last run, and return the tables that it names.

        Raises:
            CheckpointCorruptError: the plan can't be read.
        """
        self._tables.create()
        self._dead_letters.evolve(DEAD_LETTER_SCHEMA)
        plan = self._plan_file.read()
        if plan is not None:
            self._accepted = {found.source.name: found for found in plan.sources if self._is_usable(found)}
            self._rename()
        self._write_plan()
        tables = [found.source.staging for found in self._accepted.values()]
        return [self._dead_letters.name, *(name for name in tables if self._tables.open(name).exists())]

    def _rename(self) -> None:
        """Let the plans of sources go on under their new names, unless those have plans of their own."""
        for old, new in self._mapping.items():
            if old in self._accepted and new not in self._accepted:
                plan = self._accepted.pop(old)
                self._accepted[new] = replace(plan, source=replace(plan.source, name=new))
                _log.info("source_renamed", source=new, before=old)

    def known_sources(self) -> list[Source]:
        """Return the sources of the plan and those that the registry has for the group now, each once.

        Raises:
            RegistryError: the registry can't be read.
        """
        accepted = {found.source.name: found.source for found in self._accepted.values()}
        listed = {source.name: source for source in self._registry.read_valid().of_group(self.name)}
        return list({**accepted, **listed}.values())

    def _is_usable(self, plan: SourcePlan) -> bool:
        """Whether tasks can use a plan of the last run, which another release may have written."""
        try:
            if not plan.source.is_inferred:
                plan.open_decoder("", self._max_bytes)
        except DescriptorError as exc:
            self._alert(plan.source.name, exc)
            return False
        return True

    def follow(self, keeper: TableKeeper) -> None:
        """Look at the registry, and where it changed, or a fault stands, bring tables and plan in step with it."""
        with self._lock:
            self._follow(keeper)

    def learn(self, keeper: TableKeeper, variations: Sequence[Variation]) -> bool:
        """Make tables wide enough for ``variations`` and note them; return whether messages may come again.

        The repository has them first: a crash before the tables are changed is mended at the next start.

        Raises:
            WarehouseError: the lake failed; what is noted is done at the next start.
            StorageFullError: the plan can't be written; it is at the next call.
        """
        with self._lock:
            by_source: dict[str, list[Variation]] = defaultdict(list)
            for variation in variations:
                by_source[variation.source].append(variation)
            learned = [self._learn_source(name, found, keeper) for name, found in by_source.items()]
            if self._accepted != self._planned:
                self._write_plan()
            return all(learned)

    def refuse(self, table: str, reasons: Mapping[str, str]) -> None:
        """Make messages dead letters when they come again, because Pub/Sub does not take their rows of ``table``.

        The newest thousand are enough. One that is forgotten, or was before a restart, is refused once more.
        """
        with self._plan_lock:
            known = {**self._refused.get(table, {}), **reasons}
            self._refused[table] = dict(list(known.items())[-_MAX_REFUSED:])
        try:
            self._write_plan()
        except StorageFullError as exc:
            # They come again and are refused again; the rest of their commit is made.
            _log.warning("plan_not_written", group=self.name, error=exc.message)

    def _learn_source(self, name: str, variations: list[Variation], keeper: TableKeeper) -> bool:
        plan = self._accepted.get(name)
        if plan is None or self._repository is None:
            return True
        types = learn(plan.source, plan.types, variations, taken=self._tables_beside(name))
        changed = [found for found in types if found not in plan.types]
        if not changed:
            self._repository.note(types, variations)
            return True
        try:
            self._repository.append(types, variations)
        except TableNotReadyError as exc:
            # The repository itself is new: the messages come again, and are learned then.
            _log.warning("repository_not_ready", source=name, error=exc.message)
            return False
        refused = self._widen(plan.source, changed, keeper)
        self._check_room(plan.source, types)
        fine = {found.name: found for found in (*plan.types, *changed) if found not in refused}
        self._accepted[name] = self._inferred_plan(plan.source, list(fine.values()), plan.attached_at)
        _log.info("types_learned", source=name, types={found.name: found.number for found in changed})
        return not refused

    def _tables_beside(self, name: str) -> set[str]:
        """Return the tables that are not those of the source ``name``: no type of its events may get one."""
        letters = self._dead_letters.name
        found = {letters, repository_table(letters)}
        for source in (source for source in self._listed if source.name != name):
            found |= {source.staging, source.reporting}
        for plan in (plan for other, plan in self._accepted.items() if other != name):
            found |= {plan.source.staging, *(kind.table for kind in plan.types)}
        return found

    def _check_room(self, source: Source, types: Sequence[EventType]) -> None:
        """Alert when a source has no room for more types of event, or one of its tables none for more fields."""
        about = f"{source.name} schemas"
        closed = [found.table for found in types if found.shape.is_closed]
        if len(types) >= MAX_TYPES:
            self._alert(about, SchemaFullError(f"{source.name} has reached the limit of {MAX_TYPES} event types."))
        elif closed:
            self._alert(
                about,
                SchemaFullError(
                    f"{', '.join(closed[:10])}: the table is full, so Refeed adds no more fields.", tables=closed
                ),
            )
        else:
            self._mend(about)

    def _widen(self, source: Source, types: Sequence[EventType], keeper: TableKeeper) -> list[EventType]:
        """Make tables wide enough for ``types``, and return those whose table can't be: each is an alert."""
        refused = []
        for found in types:
            about = f"{source.name} {found.table}"
            try:
                with keeper.lock:
                    self._tables.open(found.table).widen(found.schema)
            except EvolutionRefusedError as exc:
                self._alert(about, exc)
                refused.append(found)
            else:
                keeper.take(found.table)
                self._mend(about)
        return refused

    def _inferred_plan(self, source: Source, types: Sequence[EventType], attached_at: float | None) -> SourcePlan:
        writers = tuple(self._tables.open(found.table).writer(found.schema) for found in types)
        # Its own table has no rows: those of its types do.
        own = self._tables.open(source.staging).writer(RowSchema(()))
        return SourcePlan(source, own, tuple(types), writers, attached_at)

    def _accept_inferred(
        self, source: Source, before: SourcePlan | None, attached_at: float | None, keeper: TableKeeper
    ) -> SourcePlan:
        if self._repository is None:
            self._repository = SchemaRepository(self._tables, repository_table(self._dead_letters.name))
        for old in (old for old, new in self._mapping.items() if new == source.name):
            self._repository.adopt(old, source)
        types = self._repository.read(source.name, source.staging)
        self._check_room(source, types)
        refused = {found.name for found in self._widen(source, types, keeper)}
        # A type whose table can't be widened yet goes on as it was.
        older = [] if before is None else [found for found in before.types if found.name in refused]
        fine = [found for found in types if found.name not in refused]
        return self._inferred_plan(source, [*fine, *older], attached_at)

    def _read_registry(self) -> tuple[str, RegistrySnapshot] | None:
        """Return the registry's fingerprint and sources; None without a reason to look, or with a fault."""
        try:
            fingerprint = self._registry.fingerprint()
            is_planned = self._accepted == self._planned
            if fingerprint == self._fingerprint and is_planned and not self._alerts:
                return None
            snapshot = self._registry.read_valid()
        except RefeedError as exc:
            self._alert("registry", exc)
            return None
        if snapshot.error is None:
            self._mend("registry")
        else:
            self._alert("registry", snapshot.error)
        return fingerprint, snapshot

    def _follow(self, keeper: TableKeeper) -> None:
        found = self._read_registry()
        if found is None:
            return
        fingerprint, snapshot = found
        is_first = self._fingerprint == ""
        self._listed = snapshot.sources
        sources = snapshot.of_group(self.name)
        before = dict(self._accepted)
        accepted = self._keep_broken(snapshot, before)
        if not sources and not accepted:
            _log.warning("group_without_sources", group=self.name)
        for source in sources:
            plan = self._accept(source, before.get(source.name), keeper, accepted, is_first=is_first)
            if plan is not None:
                accepted[source.name] = plan
        for name in before.keys() - accepted.keys():
            _log.info("source_removed", source=name)
        listed = {source.name for source in sources} | {broken.name for broken in snapshot.broken}
        listed |= {"registry", _PLAN}
        for about in [about for about in self._alerts if about.split(" ")[0] not in listed]:
            self._mend(about)
        self._accepted = accepted
        self._fingerprint = fingerprint
        if accepted != self._planned or is_first:
            try:
                self._write_plan()
            except StorageFullError as exc:
                self._alert(_PLAN, exc)
                return
            self._mend(_PLAN)
            _log.info("plan_changed", group=self.name, sources=len(accepted))
        self._report()

    def _keep_broken(self, snapshot: RegistrySnapshot, before: Mapping[str, SourcePlan]) -> dict[str, SourcePlan]:
        """Return the plans of sources whose entries have faults now: they go on as before."""
        kept = {}
        for broken in snapshot.broken:
            if broken.name in before:
                kept[broken.name] = before[broken.name]
            if broken.name in before or broken.group in (self.name, None):
                self._alert(broken.name, broken.error)
        return kept

    def _accept(
        self,
        source: Source,
        before: SourcePlan | None,
        keeper: TableKeeper,
        accepted: Mapping[str, SourcePlan],
        *,
        is_first: bool,
    ) -> SourcePlan | None:
        """Return how the source runs from now on beside those ``accepted`` already, None when it can't yet."""
        if before is not None and before.source == source and not is_first and source.name not in self._alerts:
            return before
        try:
            _check_apart(source, accepted)
            _check_types_apart(source, {**self._accepted, **accepted})
            attached_at = self._attach(source) or (None if before is None else before.attached_at)
            if source.is_inferred:
                found = self._accept_inferred(source, before, attached_at, keeper)
                self._mend(source.name)
                return found
            table = self._tables.open(source.staging)
            with keeper.lock:
                evolution = table.evolve(source.row_schema)
            keeper.take(source.staging)
        except RefeedError as exc:
            self._alert(source.name, exc)
            # What it had may be another's by now: then it waits for its own.
            return None if before is None or _neighbour(before.source, accepted) else before
        self._mend(source.name)
        if evolution.changes:
            changes = [f"{change.path} {change.text}" for change in evolution.changes]
            _log.info("table_changed", source=source.name, table=source.staging, changes=changes)
        return SourcePlan(source, table.writer(source.row_schema), attached_at=attached_at)

    def _attach(self, source: Source) -> float | None:
        """Create the source's subscription where there is none, and return when; one that is there stays as it is.

        A source without one is new: its topic gets a backup too, so that what becomes no row can be replayed.

        Raises:
            TopicNotFoundError: the topic that the rows are published to does not exist.
        """
        attached_at = None
        try:
            self._pubsub.get_subscription(source.subscription)
        except SubscriptionNotFoundError:
            if self._is_embedded:
                self._pubsub.create_topic(source.topic)
            self._back_up(source.topic)
            self._pubsub.create_subscription(
                source.subscription, source.topic, ack_deadline_seconds=self._ack_deadline_seconds
            )
            attached_at = time.time()
        if source.publish and not self._pubsub.topic_exists(source.publish):
            if not self._is_embedded:
                message = (
                    f"{source.name} publishes its rows to the topic {source.publish}, which does not "
                    "exist. Create the topic."
                )
                raise TopicNotFoundError(message)
            self._pubsub.create_topic(source.publish)
        return attached_at

    def _back_up(self, topic: str) -> None:
        """Create the backup subscription of ``topic`` where there is none."""
        try:
            self._pubsub.get_subscription(backup_subscription_id(topic))
        except SubscriptionNotFoundError:
            token = replay_token(self._secret, topic)
            self._pubsub.attach_backup(topic, token=token, ack_deadline_seconds=self._ack_deadline_seconds)
            _log.info("topic_attached", topic=topic)
            self._status.note_attached(topic)

    def _write_plan(self) -> None:
        with self._plan_lock:
            accepted = dict(self._accepted)
            plans = tuple(accepted[name] for name in sorted(accepted))
            letters = self._dead_letters
            writer = letters.writer(DEAD_LETTER_SCHEMA)
            self._plan_file.write(GroupPlan(plans, letters.name, writer, self._max_bytes, self._refused))
            self._planned = accepted

    def _alert(self, name: str, exc: RefeedError) -> None:
        """Log a fault once, and keep it in the status."""
        known = self._alerts.get(name, {})
        if (known.get("message"), known.get("details", {})) != (exc.message, exc.details):
            self._alerts[name] = {"about": name, "code": exc.code, "message": exc.message}
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
        alerts = list(self._alerts.values())
        self._status.write(
            alerts=alerts,
            running=sorted(self._accepted),
            # By them its lag and its backlog are found.
            subscriptions=sorted(plan.source.subscription for plan in self._accepted.values()),
        )


def _check_apart(source: Source, accepted: Mapping[str, SourcePlan]) -> None:
    """Raise when another source, which goes on with what it had, has the source's subscription or table still."""
    other = _neighbour(source, accepted)
    if other is not None:
        raise RegistryError(
            f"{source.name} waits: the source {other} has a fault and uses the same subscription or table."
        )


def _check_types_apart(source: Source, plans: Mapping[str, SourcePlan]) -> None:
    """Raise when a table of the source is that of a type of event of another one."""
    own = {source.staging.lower(), source.reporting.lower()}
    for plan in plans.values():
        shared = [kind.table for kind in plan.types if kind.table.lower() in own]
        if shared and plan.source.name != source.name:
            raise RegistryError(
                f"{source.name} waits, because the table {shared[0]} already has the rows of "
                f"{plan.source.name}. Give the source another table."
            )


def _neighbour(source: Source, accepted: Mapping[str, SourcePlan]) -> str | None:
    """Return the name of another source with the subscription or the table of ``source``, None without one."""
    for other in (plan.source for plan in accepted.values()):
        if source.subscription == other.subscription or source.staging.lower() == other.staging.lower():
            return other.name
    return None
