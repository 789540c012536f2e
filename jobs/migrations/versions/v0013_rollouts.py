"""Rollouts of streams."""

import sqlalchemy as sa
from alembic import op

from jobs.store.tables import DOCUMENT, TEXT, Moment

revision = "0013"
down_revision = "0016"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "rollouts",
        sa.Column("id", TEXT, primary_key=True),
        sa.Column("manifest", TEXT, sa.ForeignKey("manifests.name"), nullable=False, index=True),
        sa.Column("digest", TEXT, nullable=False),
        sa.Column("document", DOCUMENT, nullable=False),
        sa.Column("stream", TEXT, sa.ForeignKey("managed_streams.name"), nullable=False, index=True),
        sa.Column("strategy", TEXT, nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("from_side", DOCUMENT, nullable=False),
        sa.Column("to_side", DOCUMENT, nullable=False),
        sa.Column("steps", DOCUMENT, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("is_trusted", sa.Boolean, nullable=False),
        sa.Column("reverses", TEXT),
        sa.Column("unwanted_by", TEXT),
        sa.Column("generation", sa.Integer),
        sa.Column("update_id", TEXT),
        sa.Column("compared", DOCUMENT),
        sa.Column("error", DOCUMENT),
        sa.Column("created_by", TEXT, nullable=False),
        sa.Column("created_at", Moment, nullable=False),
        sa.Column("changed_at", Moment, nullable=False),
        sa.Column("finished_at", Moment),
    )
