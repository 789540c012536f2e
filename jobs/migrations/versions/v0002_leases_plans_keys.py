"""What several replicas and several callers need: leases, options, plans, keys, the audit log, the outbox."""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

from jobs.store.tables import DOCUMENT, LABELS, NUMBER, TEXT, Moment

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add columns and tables; what earlier jobs say in their requests moves to where it is looked up now."""
    _add_columns()
    _make_tables()
    _fill()


def _add_columns() -> None:
    for column in (
        sa.Column("topic", TEXT, nullable=False, server_default=""),
        sa.Column("labels", LABELS, nullable=False, server_default="{}"),
        sa.Column("options", DOCUMENT, nullable=False, server_default="{}"),
        sa.Column("restarts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("plan_id", TEXT),
        sa.Column("verification", DOCUMENT),
        sa.Column("verify_after", Moment),
        sa.Column("approval", DOCUMENT),
        sa.Column("awaits_approval", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("not_before", Moment),
        sa.Column("lease_owner", TEXT),
        sa.Column("lease_until", Moment),
        sa.Column("notified_at", Moment),
        sa.Column("notify_after", Moment),
        sa.Column("notify_attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("notify_error", TEXT),
    ):
        op.add_column("jobs", column)
    op.create_index("jobs_by_end", "jobs", ["kind", "finished_at"])
    op.create_index("jobs_by_owner", "jobs", ["lease_owner"])
    op.create_index("jobs_to_verify", "jobs", ["kind", "verify_after"])
    op.create_index("jobs_by_age", "jobs", ["kind", "id"])


def _make_tables() -> None:
    op.create_table(
        "creates",
        sa.Column("key", TEXT, primary_key=True),
        sa.Column("fingerprint", TEXT, nullable=False),
        sa.Column("attempt", TEXT, nullable=False),
        sa.Column("held_until", Moment, nullable=False),
    )
    op.create_table(
        "plans",
        sa.Column("id", TEXT, primary_key=True),
        sa.Column("fingerprint", TEXT, nullable=False),
        sa.Column("document", DOCUMENT, nullable=False),
        sa.Column("created_at", Moment, nullable=False),
        sa.Column("expires_at", Moment, nullable=False),
    )
    op.create_index("ix_plans_expires_at", "plans", ["expires_at"])
    op.create_table(
        "keys",
        sa.Column("id", TEXT, primary_key=True),
        sa.Column("prefix", TEXT, nullable=False, unique=True),
        sa.Column("digest", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("scopes", DOCUMENT, nullable=False),
        sa.Column("topics", DOCUMENT),
        sa.Column("created_at", Moment, nullable=False),
        sa.Column("expires_at", Moment),
        sa.Column("revoked_at", Moment),
        sa.Column("last_used_at", Moment),
    )
    op.create_table(
        "audit",
        sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
        sa.Column("at", Moment, nullable=False),
        sa.Column("actor", TEXT, nullable=False),
        sa.Column("action", TEXT, nullable=False),
        sa.Column("target", TEXT, nullable=False),
        sa.Column("outcome", TEXT, nullable=False),
        sa.Column("why", TEXT),
    )


def _fill() -> None:
    connection = op.get_bind()
    jobs = sa.table("jobs", *(sa.column(n) for n in ("id", "request", "topic", "created_by", "idempotency_key")))
    jobs.append_column(sa.column("labels", LABELS))
    jobs.append_column(sa.column("finished_at", Moment))
    jobs.append_column(sa.column("notified_at", Moment))
    for job in connection.execute(sa.select(jobs.c.id, jobs.c.request)).all():
        request: dict[str, Any] = job.request if isinstance(job.request, dict) else json.loads(job.request)
        values = {"topic": str(request.get("topic") or ""), "labels": request.get("labels") or {}}
        connection.execute(sa.update(jobs).where(jobs.c.id == job.id).values(**values))
    # A key is its caller's own from now on, and nobody is told of what ended long ago.
    scoped = jobs.c.created_by.op("||")("\n").op("||")(jobs.c.idempotency_key)
    connection.execute(sa.update(jobs).where(jobs.c.idempotency_key.is_not(None)).values(idempotency_key=scoped))
    connection.execute(
        sa.update(jobs).where(jobs.c.finished_at.is_not(None)).values(notified_at=jobs.c.finished_at)
    )
