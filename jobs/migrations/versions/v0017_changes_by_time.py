"""What changed lately, found by its time."""

from alembic import op

revision = "0017"
down_revision = "0013"


def upgrade() -> None:
    """Add the indexes."""
    op.create_index("events_by_time", "events", ["at", "number"])
    op.create_index("stream_events_by_time", "stream_events", ["at", "number"])
