"""The snapshots of a stream are found by their state, however many of them have failed."""

from alembic import op

revision = "0036"
down_revision = "0035"


def upgrade() -> None:
    """Replace the index."""
    op.create_index("stream_snapshots_by_state", "stream_snapshots", ["stream", "state", "reason"])
    op.drop_index("stream_snapshots_by_reason", "stream_snapshots")
