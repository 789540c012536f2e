"""What webhooks are told of: not ends alone, and nothing from before a webhook was set."""

import sqlalchemy as sa
from alembic import op

from jobs.store.tables import TEXT, Moment

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the column and the table; what has ended so far is news as it was."""
    op.add_column("jobs", sa.Column("news_at", Moment))
    op.create_index("jobs_by_news", "jobs", ["kind", "news_at"])
    op.create_table(
        "webhooks",
        sa.Column("digest", TEXT, primary_key=True),
        sa.Column("since", Moment, nullable=False),
    )
    jobs = sa.table("jobs", sa.column("finished_at", Moment), sa.column("news_at", Moment))
    op.get_bind().execute(
        sa.update(jobs).where(jobs.c.finished_at.is_not(None)).values(news_at=jobs.c.finished_at)
    )
