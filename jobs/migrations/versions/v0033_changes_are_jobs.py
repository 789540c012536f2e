"""A change that waits for a second person is a job."""

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"

_STATES = {"WAITING": "PENDING", "APPROVED": "SUCCEEDED", "REJECTED": "CANCELLED", "EXPIRED": "FAILED"}
_NEW = {"kind": "change", "step": "decide", "progress": {}, "options": {}, "labels": {}, "epoch": 0, "version": 1}


def upgrade() -> None:
    """Make a job of every approval; the id of each stays."""
    connection, tables = op.get_bind(), sa.MetaData()
    tables.reflect(connection, only=("approvals", "jobs", "events"))
    old, jobs, events = (tables.tables[name] for name in ("approvals", "jobs", "events"))
    # There may be years of them.
    for row in connection.execute(sa.select(old).order_by(old.c.id).execution_options(yield_per=500)):
        connection.execute(jobs.insert().values(**_NEW, **_job_of(row)))
        for line in _lines_of(row):
            connection.execute(events.insert().values(resource="change", id=row.id, **line))
    op.drop_table("approvals")


def _job_of(row: sa.Row[Any]) -> dict[str, Any]:
    requester = {"name": row.requested_by, "scopes": row.scopes, "topics": row.topics}
    asked = {"resource": row.kind, "name": row.name, "verb": row.action, "body": row.request, "what": row.what}
    memory = {"decided_by": row.decided_by, "reason": row.reason, "result": row.outcome}
    moved = {} if row.state == "WAITING" else {"finished_at": row.decided_at or row.expires_at}
    moved |= {"started_at": row.decided_at} if row.state == "APPROVED" else {}
    moved |= {} if row.error is None else {"error": row.error}
    return {
        "id": row.id,
        "state": _STATES[row.state],
        "subject": f"{row.kind}/{row.name}",
        "request": {**asked, "version": row.version, "scope": row.scope, "requester": requester},
        "memory": {name: value for name, value in memory.items() if value is not None},
        "created_by": row.requested_by,
        "created_at": row.requested_at,
        **moved,
    }


def _lines_of(row: sa.Row[Any]) -> Iterator[dict[str, Any]]:
    """Yield the history of the job, which an approval did not have."""
    asked = {"at": row.requested_at, "actor": row.requested_by}
    yield {**asked, "type": "created", "what": "created", "fields": {}}
    if row.state == "WAITING":
        return
    why = row.reason or (row.error and f"{row.error['code']}: {row.error['message']}")
    to = _STATES[row.state]
    decided = {"at": row.decided_at or row.expires_at, "actor": row.decided_by or "refeed", "why": why}
    yield {**decided, "type": "moved", "what": f"PENDING -> {to}", "fields": {"from": "PENDING", "to": to}}
