"""Snapshots of streams, and streams that are put back to one."""

import sqlalchemy as sa
from alembic import op

from jobs.store.tables import DOCUMENT, TEXT, Moment

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "stream_snapshots",
        sa.Column("id", TEXT, primary_key=True),
        sa.Column("stream", TEXT, sa.ForeignKey("managed_streams.name"), nullable=False, index=True),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("with_source", sa.Boolean, nullable=False),
        sa.Column("reason", TEXT, nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("release", TEXT),
        sa.Column("format_version", sa.Integer),
        sa.Column("sources", DOCUMENT, nullable=False),
        sa.Column("taken_at", Moment),
        sa.Column("size_bytes", sa.BigInteger),
        sa.Column("seconds_paused", sa.Float),
        sa.Column("known_messages", sa.BigInteger),
        sa.Column("place", DOCUMENT),
        sa.Column("error", DOCUMENT),
        sa.Column("created_by", TEXT, nullable=False),
        sa.Column("created_at", Moment, nullable=False),
        sa.Column("finished_at", Moment),
        sa.Column("idempotency_key", TEXT, unique=True),
        sa.Column("fingerprint", TEXT),
    )
    op.create_table(
        "stream_restores",
        sa.Column("id", TEXT, primary_key=True),
        sa.Column("stream", TEXT, sa.ForeignKey("managed_streams.name"), nullable=False, index=True),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("snapshot_id", TEXT, nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("step", TEXT, nullable=False),
        sa.Column("not_reverted", DOCUMENT, nullable=False),
        sa.Column("error", DOCUMENT),
        sa.Column("created_by", TEXT, nullable=False),
        sa.Column("created_at", Moment, nullable=False),
        sa.Column("finished_at", Moment),
    )
