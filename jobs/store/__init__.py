"""Keeps jobs, their states and history, in SQLite or PostgreSQL; every change of state is one transaction."""

from jobs.store.events import JobEvent, JobEventType
from jobs.store.lists import ORDER_FIELDS, sort_key
from jobs.store.records import (
    EVERY_JOB,
    ApiKey,
    AuditEntry,
    Idempotency,
    Job,
    JobCount,
    JobFilter,
    KeySession,
    SortOrder,
    StoredPlan,
    UserSession,
)
from jobs.store.store import JobStore, open_store

__all__ = [
    "EVERY_JOB",
    "ORDER_FIELDS",
    "ApiKey",
    "AuditEntry",
    "Idempotency",
    "Job",
    "JobCount",
    "JobEvent",
    "JobEventType",
    "JobFilter",
    "JobStore",
    "KeySession",
    "SortOrder",
    "StoredPlan",
    "UserSession",
    "open_store",
    "sort_key",
]
