"""The last report of each stream, for an API that shares no home with it."""

import sqlalchemy as sa
from alembic import op

from jobs.store.tables import DOCUMENT, TEXT, Moment

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "streams",
        sa.Column("name", TEXT, primary_key=True),
        sa.Column("instance", TEXT, primary_key=True),
        sa.Column("host", TEXT, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("reported_at", Moment, nullable=False),
        sa.Column("status", DOCUMENT, nullable=False),
    )
