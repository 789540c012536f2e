"""Streams as records: what people want of each, which agent keeps it in step, and its history."""

import sqlalchemy as sa
from alembic import op

from jobs.store.tables import DOCUMENT, NUMBER, TEXT, Moment

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "managed_streams",
        sa.Column("name", TEXT, primary_key=True),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("release", TEXT),
        sa.Column("options", DOCUMENT, nullable=False),
        sa.Column("wanted", TEXT, nullable=False),
        sa.Column("drain_timeout_seconds", sa.Float, nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("instance_id", TEXT),
        sa.Column("agent", TEXT),
        sa.Column("agent_until", Moment),
        sa.Column("home", DOCUMENT),
        sa.Column("snapshot_id", TEXT),
        sa.Column("error", DOCUMENT),
        sa.Column("created_by", TEXT, nullable=False),
        sa.Column("created_at", Moment, nullable=False),
        sa.Column("changed_at", Moment, nullable=False),
        sa.Column("idempotency_key", TEXT),
        sa.Column("fingerprint", TEXT),
    )
    op.create_table(
        "stream_events",
        sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
        sa.Column("stream", TEXT, sa.ForeignKey("managed_streams.name"), nullable=False, index=True),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("at", Moment, nullable=False),
        sa.Column("actor", TEXT, nullable=False),
        sa.Column("type", TEXT, nullable=False),
        sa.Column("what", TEXT, nullable=False),
        sa.Column("why", TEXT),
        sa.Column("fields", DOCUMENT, nullable=False),
    )
