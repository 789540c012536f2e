"""A job store of plain dicts: what the state machine holds every real one against.

It has the calls of :class:`jobs.store.JobStore` that it covers, under their names, written from their docstrings.
It knows no threads, no transactions and no SQL.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any

from jobs.store import EVERY_JOB, Idempotency, Job, JobCount, JobFilter, SortOrder
from model.change import EXPIRES_AFTER, ChangeRequest
from model.errors import (
    IdempotencyInProgressError,
    IdempotencyKeyReusedError,
    JobChangedError,
    JobNotFoundError,
    JobStateError,
    LeaseLostError,
    RequestInvalidError,
)
from model.event import HistoryEvent, HistoryEventType, render_changes
from model.job import JobState
from tests.years.clock import Clock

_DAY = timedelta(days=1)
_TWO_HOURS = timedelta(hours=2)
_ACTIVE = {JobState.PENDING, JobState.RUNNING, JobState.PAUSED, JobState.CANCELLING}
_BUSY = {JobState.RUNNING, JobState.CANCELLING}
_FINAL = {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}
# Written out: the table of the product may be wrong.
_MOVES = {
    JobState.PENDING: {
        JobState.RUNNING,
        JobState.PAUSED,
        JobState.CANCELLING,
        JobState.CANCELLED,
        JobState.FAILED,
    },
    JobState.RUNNING: (_ACTIVE | _FINAL) - {JobState.RUNNING},
    JobState.PAUSED: (_ACTIVE | _FINAL) - {JobState.PAUSED},
    JobState.CANCELLING: _FINAL,
    **{state: {JobState.PENDING} for state in _FINAL},
}


@dataclass
class KeptJob:
    """A job with the times that its callers do not see, and its history."""

    job: Job
    key: tuple[str, str] | None = None
    fingerprint: str | None = None
    lease_until: datetime | None = None
    not_before: datetime | None = None
    verify_after: datetime | None = None
    notify_after: datetime | None = None
    notify_attempts: int = 0
    events: list[HistoryEvent] = field(default_factory=list)

    def set(self, **changes: Any) -> Job:
        """Change the job's fields, and those of this record."""
        own = {each.name for each in fields(self)}
        for name in own & changes.keys():
            setattr(self, name, changes[name])
        self.job = replace(self.job, **{name: value for name, value in changes.items() if name not in own})
        return self.job

    @property
    def awaits_approval(self) -> bool:
        return _awaits(self.job.approval)


class JobsModel:
    """The contract of jobs, their leases and histories, keys of creates, and the outbox."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.jobs: dict[str, KeptJob] = {}
        self.asked: dict[str, ChangeRequest] = {}
        # The id that a real store has given to a new record. A caller can't choose such an id.
        self.made_id = ""
        self.creates: dict[tuple[str, str], tuple[str, str, datetime]] = {}
        self.webhooks: dict[str, datetime] = {}

    @property
    def now(self) -> datetime:
        return self.clock.now

    def is_over(self, until: datetime) -> bool:
        return not self.now < until <= self.now + _TWO_HOURS

    # -- jobs

    def _get(self, job_id: str) -> KeptJob:
        if job_id not in self.jobs:
            raise JobNotFoundError
        return self.jobs[job_id]

    def _of(self, kind: str | None) -> list[KeptJob]:
        return [kept for _, kept in sorted(self.jobs.items()) if kind in {None, kept.job.kind}]

    def _active(self, kind: str | None) -> list[Job]:
        active = [kept.job for kept in self._of(kind) if kept.job.state in _ACTIVE]
        return active if kind is not None else [job for job in active if job.subject is None]

    def _without_subject(self) -> list[KeptJob]:
        return [kept for kept in self.jobs.values() if kept.job.subject is None]

    def _is_free(self, kept: KeptJob) -> bool:
        return kept.job.lease_owner is None or kept.lease_until is None or self.is_over(kept.lease_until)

    def _busy(self, kind: str) -> Counter[str]:
        return Counter(
            kept.job.created_by
            for kept in self._of(kind)
            if kept.job.state in _BUSY or (kept.job.state is JobState.PENDING and not self._is_free(kept))
        )

    def _line(self, kept: KeptJob, kind: str, actor: str, what: str, why: str | None = None, **given: Any) -> None:
        told = {name: value for name, value in given.items() if value}
        kept.events.append(
            HistoryEvent(
                0, kept.job.kind, kept.job.id, self.now, actor, HistoryEventType(kind), what, why, fields=told
            )
        )

    def _created(self, kind: str, idempotency: Idempotency, actor: str) -> Job | None:
        key = (actor, idempotency.key)
        for kept in self.jobs.values():
            if kept.key == key:
                if (kept.fingerprint, kept.job.kind) != (idempotency.fingerprint, kind):
                    raise IdempotencyKeyReusedError
                return kept.job
        if key in self.creates:
            fingerprint, attempt, until = self.creates[key]
            if attempt != idempotency.attempt and not self.is_over(until):
                raise (
                    IdempotencyInProgressError
                    if fingerprint == idempotency.fingerprint
                    else IdempotencyKeyReusedError
                )
        return None

    def begin_create(self, kind: str, idempotency: Idempotency, *, actor: str, seconds: float = 120) -> Job | None:
        made = self._created(kind, idempotency, actor)
        if made is None:
            until = self.now + timedelta(seconds=seconds)
            self.creates[actor, idempotency.key] = (idempotency.fingerprint, idempotency.attempt, until)
        return made

    def abandon_create(self, idempotency: Idempotency, *, actor: str) -> None:
        if self.creates.get((actor, idempotency.key), ("", "", None))[1] == idempotency.attempt:
            del self.creates[actor, idempotency.key]

    def insert(
        self,
        job_id,
        kind,
        request,
        *,
        actor,
        idempotency=None,
        state=JobState.PENDING,
        options=None,
        approval=None,
        guard=None,
    ) -> Job:
        if state not in {JobState.PENDING, JobState.PAUSED}:
            raise JobStateError
        key = None if idempotency is None else (actor, idempotency.key)
        if idempotency is not None and (made := self._created(kind, idempotency, actor)) is not None:
            return made
        if guard is not None:
            guard(self._active(kind))
        if key is not None:
            self.creates.pop(key, None)
        job = Job(
            job_id, kind, state, request, actor, self.now, None, None, {}, None, 0, None, 1,
            options=dict(options or {}), approval=approval,
            news_at=self.now if _awaits(approval) else None,
        )  # fmt: skip
        kept = KeptJob(job, key, None if idempotency is None else idempotency.fingerprint)
        self.jobs[job_id] = kept
        self._line(kept, "created", actor, "created")
        return job

    def create_change(self, asked: ChangeRequest) -> Job:
        by = asked.requester
        for kept in self._of("change"):
            is_same = replace(asked, requester=by) == replace(self.asked[kept.job.id], requester=by)
            is_waiting = kept.job.state in _ACTIVE and self.now < kept.job.created_at + EXPIRES_AFTER
            if is_same and is_waiting and kept.job.created_by == by.name:
                return kept.job
        assert self.made_id not in self.jobs
        wanted = {"name": by.name, "scopes": sorted(by.scopes), "topics": by.topics and [*by.topics]}
        job = Job(
            self.made_id, "change", JobState.PENDING, {**asdict(asked), "requester": wanted}, by.name, self.now,
            None, None, {}, None, 0, None, 1, subject=f"{asked.resource}/{asked.name}", step="decide",
        )  # fmt: skip
        self.jobs[job.id], self.asked[job.id] = KeptJob(job), asked
        self._line(self.jobs[job.id], "created", by.name, "created")
        return job

    def get(self, job_id: str) -> Job:
        return self._get(job_id).job

    def find_ends(self, job_ids: Sequence[str]) -> dict[str, datetime | None]:
        return {job_id: self.jobs[job_id].job.finished_at for job_id in job_ids if job_id in self.jobs}

    def list_jobs(self, where=EVERY_JOB, *, limit, order=(), after=None) -> list[Job]:
        found = [kept.job for kept in self.jobs.values() if _matches(kept.job, where)]
        parts = (
            [*order] if any(part.field == "id" for part in order) else [*order, SortOrder("id", descending=True)]
        )
        for part in reversed(parts):
            found.sort(key=lambda job: _sorted_by(job, part.field), reverse=part.descending)
        if after is not None:
            if len(after) != len(parts):
                raise RequestInvalidError
            places = [tuple(_sorted_by(job, part.field) for part in parts) for job in found]
            # The page before may have ended with a job that has another place now.
            found = [job for job, place in zip(found, places, strict=True) if _comes_after(place, after, parts)]
        return found[:limit]

    def count_jobs(self, figures: Sequence[str] = (), *, of_kind: str = "") -> list[JobCount]:
        counts: dict[tuple[str, JobState], list[Job]] = {}
        for kept in self._without_subject():
            counts.setdefault((kept.job.kind, kept.job.state), []).append(kept.job)
        return [
            JobCount(
                kind,
                state,
                len(jobs),
                {name: sum(job.progress.get(name, 0) for job in jobs if kind == of_kind) for name in figures},
            )
            for (kind, state), jobs in counts.items()
        ]

    def find_last_failures(self) -> dict[str, datetime]:
        ends: dict[str, datetime] = {}
        for kept in self._without_subject():
            if kept.job.state is JobState.FAILED and kept.job.finished_at is not None:
                ends[kept.job.kind] = max(kept.job.finished_at, ends.get(kept.job.kind, kept.job.finished_at))
        return ends

    def list_active(self, kind: str | None = None) -> list[Job]:
        return self._active(kind)

    def list_events(self, job_id: str) -> list[HistoryEvent]:
        return self._get(job_id).events

    def begin_attempt(self, job_id: str, *, owner: str | None = None) -> Job:
        kept = self._get(job_id)
        _check(kept.job, owner=owner, state=JobState.PENDING)
        return kept.set(epoch=kept.job.epoch + 1, driver=None, version=kept.job.version + 1)

    def move(  # noqa: C901 - every column that a move may change
        self,
        job_id,
        state,
        *,
        actor,
        why=None,
        error=None,
        driver=None,
        expected_version=None,
        expected_epoch=None,
        expected_state=None,
        owner=None,
        options=None,
        memory=None,
        guard=None,
        max_running=None,
        awaits_person=False,
    ) -> Job:
        kept = self._get(job_id)
        job = kept.job
        _check(job, version=expected_version, epoch=expected_epoch, owner=owner, state=expected_state)
        if state not in _MOVES[job.state]:
            raise JobStateError
        if guard is not None:
            guard(self._active(job.kind))
        if max_running is not None and sum(self._busy(job.kind).values()) >= max_running:
            raise JobChangedError
        changes: dict[str, Any] = {"state": state, "error": error, "version": job.version + 1}
        changes["finished_at"] = self.now if state in _FINAL else None
        if state is JobState.RUNNING and job.started_at is None:
            changes["started_at"] = self.now
        if driver is not None:
            changes["driver"] = driver
        if state is JobState.PENDING or state in _FINAL:
            changes |= {"lease_owner": None, "lease_until": None, "not_before": None}
        if state is JobState.PENDING:
            changes |= {"findings": None, "verify_after": None}
            changes |= {"restarts": job.restarts if job.state is JobState.RUNNING else 0}
            changes["driver"] = None
        if state in _FINAL and job.epoch > 0:
            changes["verify_after"] = self.now
        is_news = state in _FINAL or awaits_person or (state is JobState.PENDING and kept.awaits_approval)
        if is_news or state is not JobState.PAUSED:
            changes |= {"news_at": self.now if is_news else None, "notified_at": None}
            changes |= {"notify_after": None, "notify_attempts": 0}
        if options is not None:
            changes["options"] = merged(job.options, options)
        if memory is not None:
            changes["memory"] = {**job.memory, **memory}
        kept.set(**changes)
        told = {"from": str(job.state), "to": str(state), "options": sorted(options or ())}
        self._line(kept, "moved", actor, f"{job.state} -> {state}", why, **told)
        return kept.job

    def change(
        self, job_id, *, actor, what, why=None, options=None, findings=None, approval=None, expected_version=None
    ) -> Job:
        kept = self._get(job_id)
        _check(kept.job, version=expected_version)
        changes: dict[str, Any] = {"version": kept.job.version + 1}
        asked = {name: value for name, value in (options or {}).items() if name in kept.job.request}
        known = {**kept.job.request, **kept.job.options}
        told = render_changes({name: known[name] for name in asked}, asked)
        if options is not None:
            changes["options"] = merged(kept.job.options, options)
        if findings is not None:
            changes["findings"] = findings
        if approval is not None:
            changes["approval"] = approval
            if kept.job.state in _ACTIVE and not _awaits(approval):
                changes["news_at"] = None
        kept.set(**changes)
        kind = "approved" if approval is not None else "found" if findings is not None else "changed"
        self._line(kept, kind, actor, what, why, options=sorted(options or ()), changes=told)
        return kept.job

    def forget_driver(self, job_id: str, *, actor: str, why: str, expected_epoch: int) -> Job:
        kept = self._get(job_id)
        if (kept.job.state, kept.job.epoch) != (JobState.PAUSED, expected_epoch):
            raise JobChangedError
        kept.set(driver=None, version=kept.job.version + 1)
        self._line(kept, "driver_ended", actor, "driver ended", why)
        return kept.job

    def set_progress(self, job_id: str, progress: dict[str, Any]) -> None:
        if job_id in self.jobs:
            self.jobs[job_id].set(progress=progress)

    # -- leases

    def _give(self, taken: list[KeptJob], owner: str, seconds: float) -> list[Job]:
        until = self.now + timedelta(seconds=seconds)
        return [kept.set(lease_owner=owner, lease_until=until) for kept in taken]

    def claim(self, kind: str, owner: str, *, limit: int, lease_seconds: float) -> list[Job]:
        free = [
            kept
            for kept in self._of(kind)
            if kept.job.state is JobState.PENDING
            and self._is_free(kept)
            and not kept.awaits_approval
            and (kept.not_before is None or self.is_over(kept.not_before))
        ]
        busy, taken = self._busy(kind), list[KeptJob]()
        while free and sum(busy.values()) < limit:
            kept = min(free, key=lambda each: (busy[each.job.created_by], each.job.id))
            free.remove(kept)
            taken.append(kept)
            busy[kept.job.created_by] += 1
        return self._give(sorted(taken, key=lambda kept: kept.job.id), owner, lease_seconds)

    def has_place(self, kind: str, limit: int) -> bool:
        return sum(self._busy(kind).values()) < limit

    def take_over(self, kind: str, owner: str, *, lease_seconds: float) -> list[Job]:
        started = _ACTIVE - {JobState.PENDING}
        return self._give(
            [kept for kept in self._of(kind) if kept.job.state in started and self._is_free(kept)],
            owner,
            lease_seconds,
        )

    def renew(self, owner: str, lease_seconds: float) -> None:
        self._give([kept for kept in self._of(None) if kept.job.lease_owner == owner], owner, lease_seconds)

    def held(self, kind: str, owner: str) -> list[Job]:
        return [job for job in self._active(kind) if job.lease_owner == owner]

    def owners(self, kind: str) -> list[str]:
        return sorted({job.lease_owner for job in self._active(kind) if job.lease_owner is not None})

    def release_all(self, owner: str) -> None:
        for kept in self.jobs.values():
            if kept.job.lease_owner == owner:
                kept.set(lease_owner=None, lease_until=None)

    def restart(
        self, job_id: str, owner: str, *, actor: str, why: str, epoch: int, wait_seconds: float, counts: bool
    ) -> Job:
        kept = self._get(job_id)
        _check(kept.job, owner=owner)
        _check(kept.job, epoch=epoch, state=JobState.RUNNING)
        kept.set(
            state=JobState.PENDING, restarts=kept.job.restarts + counts, driver=None, lease_owner=None,
            lease_until=None, version=kept.job.version + 1,
            not_before=self.now + timedelta(seconds=wait_seconds),
        )  # fmt: skip
        told = {"from": "RUNNING", "to": "PENDING"}
        self._line(kept, "moved", actor, "RUNNING -> PENDING", why, **told)
        return kept.job

    # -- what is still to be told and to be verified

    def open_webhook(self, digest: str) -> datetime:
        return min(self.webhooks.setdefault(digest, self.now), self.now)

    def list_unnotified(
        self, kind: str, limit: int, *, since: datetime | None = None, hold_seconds: float = 60
    ) -> list[Job]:
        earliest = max(self.now - _DAY, since or self.now - _DAY)
        news = [
            kept
            for kept in self._of(kind)
            if kept.job.news_at is not None
            and kept.job.news_at > earliest
            and kept.job.notified_at is None
            and (kept.notify_after is None or self.is_over(kept.notify_after))
        ]
        news = sorted(news, key=lambda kept: kept.job.news_at or self.now)[:limit]
        until = self.now + timedelta(seconds=hold_seconds)
        return [kept.set(notify_after=until) for kept in news]

    def mark_notified(self, job_id: str, at: datetime, *, news_at: datetime | None, was_told: bool) -> None:
        kept = self._get(job_id)
        if kept.job.news_at != news_at:
            return
        if was_told:
            kept.set(notified_at=at, notify_after=None)
        else:
            wait = min(3600, 10 * 2**kept.notify_attempts)
            kept.set(notify_after=self.now + timedelta(seconds=wait))
        kept.notify_attempts += 1

    def list_unverified(self, kind: str, limit: int, *, hold_seconds: float = 60) -> list[Job]:
        for kept in self._of(kind):
            if kept.verify_after is not None and kept.verify_after > self.now + 2 * _DAY:
                kept.verify_after = self.now
        due = [kept for kept in self._of(kind) if kept.verify_after is not None and kept.verify_after <= self.now]
        assert len(due) <= limit
        return [kept.set(verify_after=self.now + timedelta(seconds=hold_seconds)) for kept in due]

    def set_verification(
        self, job_id: str, verdict: dict[str, Any], *, actor: str, epoch: int, again_seconds: float | None
    ) -> None:
        kept = self._get(job_id)
        if kept.job.epoch != epoch or kept.job.state in _ACTIVE:
            return
        before = kept.job.findings
        kept.verify_after = None if again_seconds is None else self.now + timedelta(seconds=again_seconds)
        kept.set(findings=verdict, version=kept.job.version + (verdict != before))
        if verdict.get("state") != (before or {}).get("state"):
            told = {"state": verdict.get("state")}
            self._line(kept, "found", actor, f"verification {verdict.get('state')}", **told)


def _check(
    job: Job,
    *,
    version: int | None = None,
    epoch: int | None = None,
    owner: str | None = None,
    state: JobState | None = None,
) -> None:
    if version not in {None, job.version} or epoch not in {None, job.epoch}:
        raise JobChangedError
    if owner not in {None, job.lease_owner}:
        raise LeaseLostError
    if state not in {None, job.state}:
        raise JobStateError


def _awaits(approval: Mapping[str, Any] | None) -> bool:
    return bool(approval and approval["required"] and not approval["by"])


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**old, **new}.items() if value is not None}


def _matches(job: Job, where: JobFilter) -> bool:
    return (
        (not where.kinds or job.kind in where.kinds)
        and (not where.states or job.state in where.states)
        and where.created_by in {None, job.created_by}
        and job.id.startswith(where.id_prefix)
        and where.subject in {None, job.subject}
        and where.topic in {None, job.request.get("topic", "")}
        and all(job.labels.get(name) == value for name, value in where.labels)
        and (where.created_since is None or job.created_at >= where.created_since)
        and (where.ended_since is None or (job.finished_at is not None and job.finished_at >= where.ended_since))
    )


def _sorted_by(job: Job, name: str) -> Any:
    return job.request.get("topic", "") if name == "topic" else getattr(job, name)


def _comes_after(place: Sequence[Any], last: Sequence[Any], parts: Sequence[SortOrder]) -> bool:
    for one, other, part in zip(place, last, parts, strict=True):
        if one != other:
            return bool(one < other if part.descending else one > other)
    return False
