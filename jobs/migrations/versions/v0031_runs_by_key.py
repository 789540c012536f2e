"""Runs of schedules that somebody asked for, by the key of the call."""

import sqlalchemy as sa
from alembic import op

from jobs.store.tables import TEXT

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    """Add the column."""
    op.add_column("schedule_runs", sa.Column("idempotency_key", TEXT))
    op.create_index("schedule_runs_by_key", "schedule_runs", ["schedule", "idempotency_key"], unique=True)
