"""Indexes for what is asked each minute: the figures that are too old, and the jobs that have not ended."""

from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    """Add the indexes; they replace those that were read from one end to the other."""
    op.create_index("figures_by_kind_and_age", "figures", ["is_hourly", "at"])
    op.drop_index("figures_by_age", "figures")
    op.drop_index("jobs_by_state", "jobs")
    op.create_index("jobs_by_state", "jobs", ["state", "kind"])
