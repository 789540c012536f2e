"""Indexes by which what goes on is found among all that has ended, and a launch among a stream's lines."""

from alembic import op

revision = "0020"
down_revision = "0019"

_STATES = (
    ("stream_snapshots", "state"),
    ("stream_restores", "state"),
    ("stream_updates", "state"),
    ("rollouts", "finished_at"),
)


def upgrade() -> None:
    """Add the indexes."""
    for table, column in _STATES:
        op.create_index(f"ix_{table}_{column}", table, [column])
    op.create_index("stream_events_by_stream", "stream_events", ["stream", "number"])
    op.create_index("stream_events_by_type", "stream_events", ["stream", "generation", "type"])
    op.drop_index("ix_stream_events_stream", "stream_events")
