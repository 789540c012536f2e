"""Jobs and their history, as Refeed 0.1.0 made them before it had migrations."""

import sqlalchemy as sa
from alembic import op

from jobs.store.tables import DOCUMENT, NUMBER, TEXT, Moment

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make both tables."""
    op.create_table(
        "jobs",
        sa.Column("id", TEXT, primary_key=True),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("request", DOCUMENT, nullable=False),
        sa.Column("created_by", TEXT, nullable=False),
        sa.Column("created_at", Moment, nullable=False),
        sa.Column("started_at", Moment),
        sa.Column("finished_at", Moment),
        sa.Column("progress", DOCUMENT, nullable=False),
        sa.Column("error", DOCUMENT),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("driver", DOCUMENT),
        sa.Column("idempotency_key", TEXT, unique=True),
        sa.Column("fingerprint", TEXT),
        sa.Column("version", sa.Integer, nullable=False),
    )
    op.create_index("jobs_by_state", "jobs", ["kind", "state"])
    op.create_table(
        "events",
        sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
        sa.Column("job_id", TEXT, sa.ForeignKey("jobs.id"), nullable=False),
        sa.Column("at", Moment, nullable=False),
        sa.Column("actor", TEXT, nullable=False),
        sa.Column("what", TEXT, nullable=False),
        sa.Column("why", TEXT),
    )
    op.create_index("ix_events_job_id", "events", ["job_id"])
