"""An index by which the figures that are too old are found, and the hours that are kept are not walked through."""

from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    """Add the index; it replaces the one by time alone."""
    op.create_index("figures_by_kind_and_age", "figures", ["is_hourly", "at"])
    op.drop_index("figures_by_age", "figures")
