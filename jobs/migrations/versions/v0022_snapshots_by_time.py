"""Indexes by which a schedule finds its own snapshots, and a young one, among all that people keep."""

from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    """Add the indexes; they find all snapshots of a stream too."""
    op.create_index("stream_snapshots_by_time", "stream_snapshots", ["stream", "created_at"])
    op.create_index("stream_snapshots_by_reason", "stream_snapshots", ["stream", "reason"])
    op.drop_index("ix_stream_snapshots_stream", "stream_snapshots")
