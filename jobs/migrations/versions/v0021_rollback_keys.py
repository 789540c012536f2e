"""Rollbacks that are known by their caller's key when the call comes again."""

import sqlalchemy as sa
from alembic import op

from jobs.store.tables import TEXT

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    """Add the key, which no rollback so far has."""
    op.add_column("stream_restores", sa.Column("idempotency_key", TEXT))
    op.add_column("stream_restores", sa.Column("fingerprint", TEXT))
    op.create_index("ix_stream_restores_idempotency_key", "stream_restores", ["idempotency_key"], unique=True)
