"""The rest of the job store of plain dicts: managed streams, keys and the audit log."""

from collections.abc import Collection
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from jobs.store import ApiKey, AuditEntry
from model.errors import (
    IdempotencyKeyReusedError,
    LeaseLostError,
    StoreError,
    StreamChangedError,
    StreamExistsError,
    StreamNotFoundError,
    StreamStateError,
)
from model.event import HistoryEvent, HistoryEventType, render_changes
from model.stream_record import StreamRecord, StreamState, Wanted
from tests.worlds.jobs_model import JobsModel, merged
from tests.years.clock import Clock


@dataclass
class KeptStream:
    """A stream with the lease of its agent, the key that launched it, and its history."""

    record: StreamRecord
    until: datetime | None = None
    key: tuple[str, str] | None = None
    fingerprint: str | None = None
    events: list[HistoryEvent] = field(default_factory=list)


class JobStoreModel(JobsModel):
    """The contract of all that the state machine covers."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.streams: dict[str, KeptStream] = {}
        self.audit: list[AuditEntry] = []
        self.keys: dict[str, ApiKey] = {}

    def copy(self) -> "JobStoreModel":
        """Return another one that has everything that this one has."""
        other = JobStoreModel(self.clock)
        for name, value in vars(self).items():
            if name != "clock":
                setattr(other, name, deepcopy(value))
        return other

    # -- managed streams

    def _stream(self, name: str) -> KeptStream:
        if name not in self.streams:
            raise StreamNotFoundError
        return self.streams[name]

    def _show(self, kept: KeptStream) -> StreamRecord:
        is_held = kept.until is not None and not self.is_over(kept.until)
        return replace(kept.record, is_held=is_held)

    def _note(
        self, kept: KeptStream, kind: str, actor: str, what: str, why: str | None = None, **given: Any
    ) -> None:
        record = kept.record
        told = {name: value for name, value in given.items() if value is not None}
        kept.events.append(
            HistoryEvent(
                0,
                "stream",
                record.name,
                self.now,
                actor,
                HistoryEventType(kind),
                what,
                why,
                record.generation,
                told,
            )
        )

    def launch_stream(
        self, name, kind, *, actor, release=None, options=None, why=None, idempotency=None, guard=None
    ) -> StreamRecord:
        before = self.streams.get(name)
        key = None if idempotency is None else (actor, idempotency.key)
        if before is not None and idempotency is not None and before.key == key:
            if before.fingerprint != idempotency.fingerprint:
                raise IdempotencyKeyReusedError
            return self._show(before)
        if before is not None and (before.record.is_living or before.record.kind is not kind):
            raise StreamExistsError
        if guard is not None:
            guard([each for each in self.list_streams() if each.is_living])
        old = None if before is None else before.record
        record = StreamRecord(
            name, kind, release, dict(options or {}), Wanted.RUNNING, 120.0, StreamState.STARTING,
            1 if old is None else old.generation + 1, 1 if old is None else old.version + 1,
            None, None, False, None if old is None else old.home, None, None,
            actor if old is None else old.created_by, self.now if old is None else old.created_at,
            actor, self.now, self.now,
        )  # fmt: skip
        events = [] if before is None else before.events
        fingerprint = None if idempotency is None else idempotency.fingerprint
        kept = self.streams[name] = KeptStream(record, None, key, fingerprint, events)
        self._note(kept, "launched", actor, "launched", why)
        return self._show(kept)

    def get_stream(self, name: str) -> StreamRecord:
        return self._show(self._stream(name))

    def list_streams(self) -> list[StreamRecord]:
        return [self._show(kept) for _, kept in sorted(self.streams.items())]

    def list_stream_events(self, name: str) -> list[HistoryEvent]:
        return self._stream(name).events

    def end_stream(self, name, wanted, *, actor, timeout_seconds=120.0, why=None, versions=None) -> StreamRecord:
        kept = self._changeable(name, versions)
        record = kept.record
        if (record.wanted, wanted) == (Wanted.CANCELLED, Wanted.DRAINED):
            raise StreamStateError
        is_unborn = record.instance_id is None and not self._show(kept).is_held
        state = StreamState(wanted) if is_unborn else record.state
        kept.record = replace(
            record, wanted=wanted, drain_timeout_seconds=timeout_seconds, state=state, version=record.version + 1,
            changed_at=self.now,
        )  # fmt: skip
        told = {"wanted": str(wanted), "timeout_seconds": timeout_seconds if wanted is Wanted.DRAINED else None}
        self._note(kept, "wanted", actor, f"wanted {wanted}", why, **told)
        if is_unborn:
            self._let_go(kept)
            moved = {"from": str(record.state), "to": str(state)}
            self._note(kept, "moved", actor, f"{record.state} -> {state}", "It was never started.", **moved)
        return self._show(kept)

    def change_stream(self, name, *, actor, options, versions=None) -> StreamRecord:
        kept = self._changeable(name, versions)
        record = kept.record
        if record.wanted is not Wanted.RUNNING:
            raise StreamStateError
        kept.record = replace(
            record, options=merged(record.options, options), version=record.version + 1, changed_at=self.now
        )
        names = sorted(options)
        changes = render_changes(record.options, kept.record.options)
        self._note(kept, "changed", actor, f"changed {', '.join(names)}", options=names, changes=changes)
        return self._show(kept)

    def _changeable(self, name: str, versions: Collection[int] | None) -> KeptStream:
        kept = self._stream(name)
        if versions is not None and kept.record.version not in versions:
            raise StreamChangedError
        if not kept.record.is_living:
            raise StreamStateError
        return kept

    def take_streams(self, agent: str, *, limit: int, lease_seconds: float) -> list[StreamRecord]:
        room = limit - sum(kept.record.agent == agent for kept in self.streams.values())
        free = [
            kept
            for kept in self.streams.values()
            if kept.record.is_living
            and kept.record.agent != agent
            and (kept.record.agent is None or not self._show(kept).is_held)
        ]
        free.sort(key=lambda kept: (kept.record.changed_at, kept.record.name))
        for kept in free[: max(room, 0)]:
            kept.record = replace(kept.record, agent=agent)
            kept.until = self.now + timedelta(seconds=lease_seconds)
        return [self._show(kept) for kept in free[: max(room, 0)]]

    def renew_streams(self, agent: str, lease_seconds: float) -> None:
        for kept in self.streams.values():
            if kept.record.agent == agent:
                kept.until = self.now + timedelta(seconds=lease_seconds)

    def release_streams(self, agent: str, name: str | None = None) -> None:
        for kept in self.streams.values():
            if kept.record.agent == agent and name in {None, kept.record.name}:
                self._let_go(kept)

    def _let_go(self, kept: KeptStream) -> None:
        kept.record, kept.until = replace(kept.record, agent=None), None

    def list_agents(self) -> list[str]:
        return sorted({kept.record.agent for kept in self.streams.values() if kept.record.agent is not None})

    def report_stream(
        self, name, agent, state, *, instance_id=None, home=None, error=None, why=None
    ) -> StreamRecord:
        kept = self._stream(name)
        record = kept.record
        if record.agent != agent:
            raise LeaseLostError
        is_end = state in {StreamState.DRAINED, StreamState.CANCELLED}
        if state is StreamState.NOT_REPORTING or (is_end and str(record.wanted) != str(state)):
            raise StreamStateError
        if instance_id not in {None, record.instance_id}:
            self._note(kept, "started", "agent", f"started {instance_id}", instance_id=instance_id)
        if state is not record.state:
            reason = why or (None if error is None else str(error))
            moved = {"from": str(record.state), "to": str(state)}
            self._note(kept, "moved", "agent", f"{record.state} -> {state}", reason, **moved)
        kept.record = replace(
            record,
            state=state,
            error=error,
            home=home or record.home,
            instance_id=instance_id or record.instance_id,
        )
        if is_end:
            self._let_go(kept)
        return self._show(kept)

    def note_stream(self, name: str, *, actor: str, what: str, why: str | None = None, **given: Any) -> None:
        self._note(self._stream(name), "noted", actor, what, why, **given)

    # -- the audit log and keys

    def append_audit(self, actor: str, action: str, target: str, outcome: str, why: str | None = None) -> None:
        self.audit.insert(0, AuditEntry(0, self.now, actor, action, target, outcome, why))

    def list_audit(self, limit: int) -> list[AuditEntry]:
        return self.audit[:limit]

    def insert_key(self, key: ApiKey) -> None:
        if key.id in self.keys or self.find_key(key.prefix) is not None:
            raise StoreError
        self.keys[key.id] = key

    def list_keys(self) -> list[ApiKey]:
        return sorted(self.keys.values(), key=lambda key: (key.created_at, key.id))

    def find_key(self, prefix: str) -> ApiKey | None:
        return next((key for key in self.keys.values() if key.prefix == prefix), None)

    def revoke_key(self, key_id: str, at: datetime) -> bool:
        if key_id in self.keys and self.keys[key_id].revoked_at is None:
            self.keys[key_id] = replace(self.keys[key_id], revoked_at=at)
        return key_id in self.keys

    def touch_key(self, key_id: str, at: datetime) -> None:
        key = self.keys.get(key_id)
        if key is not None and (key.last_used_at is None or key.last_used_at < at - timedelta(minutes=1)):
            self.keys[key_id] = replace(key, last_used_at=at)
