"""Keeps jobs, their states and history, in SQLite or PostgreSQL; every change of state is one transaction."""

from jobs.store.changes import CHANGE, change_of
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
from jobs.store.step_jobs import DELETION, RESTORE, SNAPSHOT, UPDATE
from jobs.store.store import JobStore, open_store
from jobs.store.stream_snapshots import restore_of
from jobs.store.stream_updates import first_step_back, standby_name, update_of

__all__ = [
    "CHANGE",
    "DELETION",
    "EVERY_JOB",
    "ORDER_FIELDS",
    "RESTORE",
    "SNAPSHOT",
    "UPDATE",
    "ApiKey",
    "AuditEntry",
    "Idempotency",
    "Job",
    "JobCount",
    "JobFilter",
    "JobStore",
    "KeySession",
    "SortOrder",
    "StoredPlan",
    "UserSession",
    "change_of",
    "first_step_back",
    "open_store",
    "restore_of",
    "sort_key",
    "standby_name",
    "update_of",
]
