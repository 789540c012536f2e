"""A short history of the figures of streams and jobs."""

import sqlalchemy as sa
from alembic import op

from jobs.store.tables import DOCUMENT, TEXT, Moment

revision = "0016"
down_revision = "0014"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "figures",
        sa.Column("subject", TEXT, primary_key=True),
        sa.Column("at", Moment, primary_key=True),
        sa.Column("is_hourly", sa.Boolean, nullable=False),
        sa.Column("figures", DOCUMENT, nullable=False),
    )
    op.create_index("figures_by_age", "figures", ["at"])
