"""What the store keeps, as its callers see it: jobs, history, plans, keys, the audit log."""

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, Self

from model.fault import FaultRecord
from model.job import JobState
from model.process import Driver


@dataclass(frozen=True, slots=True)
class Job:
    """One job as the store has it.

    ``epoch`` counts its attempts, ``version`` every change but progress and leases; ``request`` is what was asked
    for, in the words of its kind, and never changes; ``options`` are what may change while the job lives;
    ``progress`` are its latest figures and ``findings`` what is found out of it, in the words of its kind again.
    ``restarts`` counts the drivers that died and were replaced since a person last started the job;
    ``lease_owner`` is the replica that looks after it, if any. ``news_at`` is when it ended or began to wait for a
    person, None while neither is so.

    A job that is carried out in steps has a ``subject``, such as stream/orders. It is at the ``attempt`` of its
    ``step`` that began at ``step_began_at``, by the store's clock. ``memory`` is what its steps know of each
    other.
    """

    id: str
    kind: str
    state: JobState
    request: dict[str, Any]
    created_by: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    progress: dict[str, Any]
    error: FaultRecord | None
    epoch: int
    driver: Driver | None
    version: int
    options: dict[str, Any] = field(default_factory=dict)
    restarts: int = 0
    findings: dict[str, Any] | None = None
    approval: dict[str, Any] | None = None
    news_at: datetime | None = None
    notified_at: datetime | None = None
    lease_owner: str | None = None
    subject: str | None = None
    step: str | None = None
    step_began_at: datetime | None = None
    attempt: int = 0
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def labels(self) -> dict[str, str]:
        """The labels that it has now: those of the options, else those that it was made with."""
        labels: dict[str, str] = self.options.get("labels", self.request.get("labels") or {})
        return labels


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A caller's key for a create, and a digest of what was asked with it.

    ``attempt`` tells one call from another that came with the same key: make one object a call.
    """

    key: str
    fingerprint: str
    attempt: str = field(default_factory=lambda: secrets.token_hex(8), compare=False)

    @classmethod
    def of(cls, key: str | None, request: Any) -> Self | None:
        """Return the key with a digest of the request in JSON; None without a key."""
        if key is None:
            return None
        return cls(key, hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest())


@dataclass(frozen=True, slots=True)
class JobCount:
    """How many jobs of a kind are in a state, and the sums of some of their figures."""

    kind: str
    state: JobState
    jobs: int
    sums: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Jobs that a list shows: of any of ``kinds``, in any of ``states``, with all labels, not older than a time.

    Without kinds those of every kind; ``id_prefix`` is what the id begins with, ``subject`` what
    a job in steps is about.
    """

    states: tuple[JobState, ...] = ()
    topic: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    created_since: datetime | None = None
    ended_since: datetime | None = None
    kinds: tuple[str, ...] = ()
    created_by: str | None = None
    id_prefix: str = ""
    subject: str | None = None


EVERY_JOB: Final = JobFilter()


@dataclass(frozen=True, slots=True)
class SortOrder:
    """A field that a list is sorted by: id, state, topic, created_by or created_at."""

    field: str
    descending: bool = False


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A plan that a create may quote until it expires; ``fingerprint`` is of what was planned."""

    id: str
    fingerprint: str
    document: dict[str, Any]
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A caller's key without its secret: ``digest`` is all that is kept of that.

    ``topics`` are what it may publish to; None means every topic.
    """

    id: str
    prefix: str
    digest: str
    name: str
    scopes: tuple[str, ...]
    topics: tuple[str, ...] | None
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None

    def find_end(self, now: datetime) -> Literal["revoked", "expired"] | None:
        """Return how the key has ended, None for one that counts."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else None


@dataclass(frozen=True, slots=True)
class KeySession:
    """A session of somebody who signed in with a key; ``digest`` is all that is kept of its token."""

    digest: str
    key_id: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class UserSession:
    """A session of somebody who signed in with an identity provider; ``digest`` is all that is kept of its token.

    ``sealed`` holds the provider's tokens, encrypted. The one that is used ends at ``token_expires_at`` and is
    renewed from ``renew_at`` on, where the provider gave a refresh token. Each renewal counts ``revision`` up.
    """

    digest: str
    expires_at: datetime
    sealed: str
    renew_at: datetime
    token_expires_at: datetime
    revision: int


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One line of the audit log: who asked for what, and what came of it."""

    number: int
    at: datetime
    actor: str
    action: str
    target: str
    outcome: str
    why: str | None
