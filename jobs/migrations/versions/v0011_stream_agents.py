"""Agents that live, and their releases."""

import sqlalchemy as sa
from alembic import op

from jobs.store.tables import DOCUMENT, TEXT, Moment

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "stream_agents",
        sa.Column("agent", TEXT, primary_key=True),
        sa.Column("host", TEXT, nullable=False),
        sa.Column("home", TEXT, nullable=False),
        sa.Column("version", TEXT, nullable=False),
        sa.Column("releases", DOCUMENT, nullable=False),
        sa.Column("reported_at", Moment, nullable=False),
    )
