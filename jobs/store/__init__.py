"""Keeps jobs, their states and history, in SQLite or PostgreSQL; every change of state is one transaction."""

from jobs.store.lists import sort_key
from jobs.store.records import (
    ApiKey,
    AuditEntry,
    Condition,
    Event,
    Idempotency,
    Job,
    JobCount,
    JobError,
    SortOrder,
    StoredPlan,
)
from jobs.store.store import JobStore, open_store

__all__ = [
    "ApiKey",
    "AuditEntry",
    "Condition",
    "Event",
    "Idempotency",
    "Job",
    "JobCount",
    "JobError",
    "JobStore",
    "SortOrder",
    "StoredPlan",
    "open_store",
    "sort_key",
]
