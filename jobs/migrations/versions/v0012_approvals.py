"""Actions that wait for a second person."""

import sqlalchemy as sa
from alembic import op

from jobs.store.tables import DOCUMENT, TEXT, Moment

revision = "0012"
down_revision = "0015"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "approvals",
        sa.Column("id", TEXT, primary_key=True),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("action", TEXT, nullable=False),
        sa.Column("request", DOCUMENT, nullable=False),
        sa.Column("what", TEXT, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("scope", TEXT, nullable=False),
        sa.Column("requested_by", TEXT, nullable=False),
        sa.Column("scopes", DOCUMENT, nullable=False),
        sa.Column("topics", DOCUMENT),
        sa.Column("requested_at", Moment, nullable=False),
        sa.Column("expires_at", Moment, nullable=False),
        sa.Column("state", TEXT, nullable=False, index=True),
        sa.Column("decided_by", TEXT),
        sa.Column("decided_at", Moment),
        sa.Column("reason", TEXT),
        sa.Column("outcome", DOCUMENT),
        sa.Column("error", DOCUMENT),
    )
