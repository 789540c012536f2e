"""Updates of streams."""

import sqlalchemy as sa
from alembic import op

from jobs.store.tables import DOCUMENT, TEXT, Moment

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "stream_updates",
        sa.Column("id", TEXT, primary_key=True),
        sa.Column("stream", TEXT, sa.ForeignKey("managed_streams.name"), nullable=False, index=True),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("request", DOCUMENT, nullable=False),
        sa.Column("from_release", TEXT),
        sa.Column("from_options", DOCUMENT, nullable=False),
        sa.Column("checked", DOCUMENT),
        sa.Column("snapshot_id", TEXT),
        sa.Column("instance_id", TEXT),
        sa.Column("outgoing_id", TEXT),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("handed_over_at", Moment),
        sa.Column("paused_seconds", sa.Float),
        sa.Column("figures", DOCUMENT),
        sa.Column("replay", DOCUMENT),
        sa.Column("error", DOCUMENT),
        sa.Column("created_by", TEXT, nullable=False),
        sa.Column("created_at", Moment, nullable=False),
        sa.Column("changed_at", Moment, nullable=False),
        sa.Column("finished_at", Moment),
        sa.Column("idempotency_key", TEXT, unique=True),
        sa.Column("fingerprint", TEXT),
    )
