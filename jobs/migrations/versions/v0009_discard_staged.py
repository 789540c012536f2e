"""Rollbacks that discard what was staged since the snapshot."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add the choice, which no rollback so far has made."""
    op.add_column(
        "stream_restores",
        sa.Column("discard_staged", sa.Boolean, nullable=False, server_default=sa.false()),
    )
