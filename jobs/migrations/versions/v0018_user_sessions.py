"""Sessions of people who signed in with an identity provider, and the sign-ins that were used."""

import sqlalchemy as sa
from alembic import op

from jobs.store.tables import NUMBER, TEXT, Moment

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "user_sessions",
        sa.Column("digest", TEXT, primary_key=True),
        sa.Column("created_at", Moment, nullable=False),
        sa.Column("expires_at", Moment, nullable=False, index=True),
        sa.Column("sealed", TEXT, nullable=False),
        sa.Column("renew_at", Moment, nullable=False),
        sa.Column("token_expires_at", Moment, nullable=False),
        sa.Column("revision", NUMBER, nullable=False),
        sa.Column("renewing_until", Moment),
    )
    op.create_table(
        "used_sign_ins",
        sa.Column("digest", TEXT, primary_key=True),
        sa.Column("expires_at", Moment, nullable=False, index=True),
    )
