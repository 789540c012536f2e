"""Manifests that were applied, and the runs of schedules."""

import sqlalchemy as sa
from alembic import op

from jobs.store.tables import DOCUMENT, TEXT, Moment

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "manifests",
        sa.Column("name", TEXT, primary_key=True),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("document", DOCUMENT, nullable=False),
        sa.Column("digest", TEXT, nullable=False),
        sa.Column("source", TEXT, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("applied_by", TEXT, nullable=False),
        sa.Column("scopes", DOCUMENT, nullable=False),
        sa.Column("topics", DOCUMENT),
        sa.Column("settled_until", Moment, nullable=False),
        sa.Column("paused", TEXT),
        sa.Column("created_at", Moment, nullable=False),
        sa.Column("changed_at", Moment, nullable=False),
        sa.Column("removed_at", Moment),
    )
    op.create_table(
        "schedule_runs",
        sa.Column("schedule", TEXT, sa.ForeignKey("manifests.name"), primary_key=True),
        sa.Column("slot", Moment, primary_key=True),
        sa.Column("slot_start", Moment, nullable=False),
        sa.Column("state", TEXT, nullable=False, index=True),
        sa.Column("request", DOCUMENT, nullable=False),
        sa.Column("job_kind", TEXT),
        sa.Column("job_id", TEXT),
        sa.Column("is_unwanted", sa.Boolean, nullable=False),
        sa.Column("why", TEXT),
        sa.Column("created_at", Moment, nullable=False),
        sa.Column("finished_at", Moment),
    )
