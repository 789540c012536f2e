"""Jobs that are carried out in steps: snapshots are made and deleted, and streams are put back, by such jobs."""

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from alembic import op

from jobs.store.tables import DOCUMENT, LABELS, TEXT, Moment
from model.job import new_job_id

revision = "0024"
down_revision = "0023"

_RESTORES = sa.table(
    "stream_restores",
    *(sa.column(name, TEXT) for name in ("id", "stream", "snapshot_id", "state", "step", "created_by")),
    *(sa.column(name, TEXT) for name in ("idempotency_key", "fingerprint")),
    *(sa.column(name, DOCUMENT) for name in ("not_reverted", "error")),
    *(sa.column(name, Moment) for name in ("created_at", "finished_at")),
    sa.column("generation", sa.Integer),
    sa.column("discard_staged", sa.Boolean),
)
_SNAPSHOTS = sa.table(
    "stream_snapshots",
    *(sa.column(name, TEXT) for name in ("id", "stream", "state", "created_by")),
    sa.column("place", DOCUMENT),
    sa.column("with_source", sa.Boolean),
)
_JOBS = sa.table(
    "jobs",
    *(sa.column(name, TEXT) for name in ("id", "kind", "state", "subject", "step", "created_by")),
    *(sa.column(name, TEXT) for name in ("idempotency_key", "fingerprint")),
    *(sa.column(name, DOCUMENT) for name in ("request", "progress", "memory", "error")),
    *(sa.column(name, Moment) for name in ("created_at", "started_at", "finished_at", "step_began_at")),
    *(sa.column(name, sa.Integer) for name in ("epoch", "version", "attempt")),
    sa.column("labels", LABELS),
)

_STEP_JOB: dict[str, Any] = {"progress": {}, "labels": {}, "epoch": 0, "version": 1}


def upgrade() -> None:
    """Add the columns, and move what is under way and what has ended."""
    for name, kind in (("subject", TEXT), ("step", TEXT), ("step_began_at", Moment())):
        op.add_column("jobs", sa.Column(name, kind))
    op.add_column("jobs", sa.Column("attempt", sa.Integer, nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("memory", DOCUMENT, nullable=False, server_default="{}"))
    op.create_index("jobs_by_subject", "jobs", ["subject", "id"])
    connection, now = op.get_bind(), datetime.now(UTC)
    for row in connection.execute(sa.select(_RESTORES)).all():
        connection.execute(_JOBS.insert().values(**_restore(row, now)))
    for row in connection.execute(sa.select(_SNAPSHOTS).where(_SNAPSHOTS.c.state != "COMPLETED")).all():
        if row.state == "PENDING":
            connection.execute(_JOBS.insert().values(**_making(row, now)))
        elif row.state == "DELETING" or row.place is not None:
            connection.execute(_JOBS.insert().values(**_deletion(row, now)))
    op.drop_table("stream_restores")


def _restore(row: sa.Row[Any], now: datetime) -> dict[str, Any]:
    is_open = row.state == "RUNNING"
    # A key was unique among restores alone.
    key = None if row.idempotency_key is None else f"{row.idempotency_key}\nrestore"
    return {
        **_STEP_JOB,
        "id": row.id,
        "kind": "restore",
        "state": row.state,
        "subject": f"stream/{row.stream}",
        "step": "stop" if row.step == "waiting" else "put_back",
        "step_began_at": now if is_open else row.finished_at,
        "attempt": 1,
        "request": {
            "stream": row.stream,
            "generation": row.generation,
            "snapshot_id": row.snapshot_id,
            "discard_staged": bool(row.discard_staged),
        },
        "memory": {"done": row.step, "not_reverted": row.not_reverted or []},
        "error": row.error,
        "created_by": row.created_by,
        "created_at": row.created_at,
        "started_at": row.created_at,
        "finished_at": row.finished_at,
        "idempotency_key": key,
        "fingerprint": row.fingerprint,
    }


def _making(row: sa.Row[Any], now: datetime) -> dict[str, Any]:
    return {
        **_STEP_JOB,
        "id": new_job_id("sj"),
        "kind": "snapshot",
        "state": "PENDING",
        "subject": f"stream/{row.stream}",
        "step": "make",
        "attempt": 0,
        "request": {"stream": row.stream, "snapshot_id": row.id, "with_source": bool(row.with_source)},
        "memory": {} if row.place is None else {"place": row.place},
        "created_by": row.created_by,
        "created_at": now,
    }


def _deletion(row: sa.Row[Any], now: datetime) -> dict[str, Any]:
    return {
        **_STEP_JOB,
        "id": new_job_id("dl"),
        "kind": "deletion",
        "state": "PENDING",
        "subject": f"snapshot/{row.id}",
        "step": "delete",
        "attempt": 0,
        "request": {"stream": row.stream, "snapshot_id": row.id, "place": row.place},
        "memory": {},
        "created_by": "agent",
        "created_at": now,
    }
