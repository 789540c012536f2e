"""An index by which the living runs of a schedule are found among all that it ever had."""

from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    """Add the index."""
    op.create_index("schedule_runs_by_state", "schedule_runs", ["schedule", "state"])
