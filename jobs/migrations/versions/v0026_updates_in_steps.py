"""Updates of streams are jobs in steps: what is under way and what has ended moves to the table of jobs."""

from typing import Any

import sqlalchemy as sa
from alembic import op

from jobs.store.tables import DOCUMENT, LABELS, TEXT, Moment

revision = "0026"
down_revision = "0025"

_UPDATES = sa.table(
    "stream_updates",
    *(sa.column(name, TEXT) for name in ("id", "stream", "state", "from_release", "created_by")),
    *(sa.column(name, TEXT) for name in ("snapshot_id", "instance_id", "outgoing_id")),
    *(sa.column(name, TEXT) for name in ("idempotency_key", "fingerprint")),
    *(sa.column(name, DOCUMENT) for name in ("request", "from_options", "checked", "figures", "replay", "error")),
    *(sa.column(name, Moment) for name in ("created_at", "changed_at", "handed_over_at", "finished_at")),
    *(sa.column(name, sa.Integer) for name in ("generation", "attempts")),
    sa.column("paused_seconds", sa.Float),
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
# The former state of an update, the state of its job, and the step that this is at.
_STATES = {
    "CHECKING": ("RUNNING", "check"),
    "SHADOWING": ("RUNNING", "shadow"),
    "SNAPSHOTTING": ("RUNNING", "snapshot"),
    "STARTING": ("RUNNING", "stand_by"),
    "HANDING_OVER": ("RUNNING", "hand_over"),
    "WATCHING": ("RUNNING", "watch"),
    "ROLLING_BACK": ("RUNNING", "back_stand_by"),
    "HANDING_BACK": ("RUNNING", "hand_back"),
    "STABLE": ("SUCCEEDED", "watch"),
    "REFUSED": ("FAILED", "check"),
    "ROLLED_BACK": ("FAILED", None),
    "FAILED": ("FAILED", None),
}


def upgrade() -> None:
    """Move the updates, each with the key that made it."""
    connection = op.get_bind()
    for row in connection.execute(sa.select(_UPDATES)).all():
        connection.execute(_JOBS.insert().values(**_job(row)))
    op.drop_table("stream_updates")


def _job(row: sa.Row[Any]) -> dict[str, Any]:
    state, step = _STATES[row.state]
    error = row.error and {"code": row.error["code"], "message": row.error["message"]}
    attempt = max(1, row.attempts)
    stood_by = "back_stand_by" if row.state in {"ROLLING_BACK", "HANDING_BACK"} else "stand_by"
    memory = {
        "checked": row.checked,
        "snapshot_id": row.snapshot_id,
        "instance_id": row.instance_id,
        "outgoing_id": row.outgoing_id,
        "handed_over_at": row.handed_over_at and row.handed_over_at.isoformat(),
        "paused_seconds": row.paused_seconds,
        "figures": row.figures,
        "replay": row.replay,
        "error": row.error,
        "standby": f"{stood_by}/{attempt}" if row.attempts else None,
        "outcome": row.state if row.finished_at else None,
    }
    return {
        "id": row.id,
        "kind": "update",
        "state": "CANCELLED" if error and error["code"] == "update_unwanted" and row.finished_at else state,
        "subject": f"stream/{row.stream}",
        "step": step,
        "step_began_at": row.changed_at,
        "attempt": attempt,
        "request": {
            "stream": row.stream,
            "generation": row.generation,
            "update": row.request,
            "from_release": row.from_release,
            "from_options": row.from_options,
        },
        "memory": {name: value for name, value in memory.items() if value is not None},
        "error": error if row.finished_at and state != "SUCCEEDED" else None,
        "created_by": row.created_by,
        "created_at": row.created_at,
        "started_at": row.created_at,
        "finished_at": row.finished_at,
        # A key was unique among updates alone.
        "idempotency_key": row.idempotency_key and f"{row.idempotency_key}\nupdate",
        "fingerprint": row.fingerprint,
        "progress": {},
        "labels": {},
        "epoch": 0,
        "version": 1,
    }
