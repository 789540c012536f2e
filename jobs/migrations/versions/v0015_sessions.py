"""Sessions of people who signed in with a key."""

import sqlalchemy as sa
from alembic import op

from jobs.store.tables import TEXT, Moment

revision = "0015"
down_revision = "0011"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "sessions",
        sa.Column("digest", TEXT, primary_key=True),
        sa.Column("key_id", TEXT, sa.ForeignKey("keys.id"), nullable=False),
        sa.Column("created_at", Moment, nullable=False),
        sa.Column("expires_at", Moment, nullable=False, index=True),
    )
