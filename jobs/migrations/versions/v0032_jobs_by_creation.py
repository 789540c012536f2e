"""The newest jobs of all kinds are found without a look at the others."""

from alembic import op

revision = "0032"
down_revision = "0031"


def upgrade() -> None:
    """Add the index."""
    op.create_index("jobs_by_creation", "jobs", ["created_at", "id"])
