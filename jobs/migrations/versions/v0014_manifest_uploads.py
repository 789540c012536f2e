"""Manifests that come by upload, and who watches for them."""

import sqlalchemy as sa
from alembic import op

from jobs.store.tables import TEXT, Moment

revision = "0014"
down_revision = "0012"


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "upload_sources",
        sa.Column("source", TEXT, primary_key=True),
        sa.Column("lease_owner", TEXT),
        sa.Column("lease_until", Moment),
        sa.Column("problem", TEXT),
        sa.Column("problem_at", Moment),
    )
    op.create_table(
        "manifest_uploads",
        sa.Column("source", TEXT, sa.ForeignKey("upload_sources.source"), primary_key=True),
        sa.Column("file", TEXT, primary_key=True),
        sa.Column("generation", TEXT, nullable=False),
        sa.Column("noted_at", Moment, nullable=False),
        sa.Column("fault", TEXT),
        sa.Column("applied_generation", TEXT),
        sa.Column("gone_at", Moment),
        sa.Column("waits", TEXT),
        sa.Column("approval_id", TEXT),
        sa.Column("removed_at", Moment),
    )
