"""What nobody reads goes: a job's plan, why its webhook failed last, and when plans and sessions began."""

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"


def upgrade() -> None:
    """Drop both columns, and take the time out of each document: a reader refuses unknown fields."""
    # Without a copy of the table: SQLite drops a column that has no index.
    op.drop_column("jobs", "plan_id")
    op.drop_column("jobs", "notify_error")
    connection = op.get_bind()
    table = sa.Table("short_lived", sa.MetaData(), autoload_with=connection)
    of_records = table.c.kind.in_(("plan", "session", "user_session"))
    for row in connection.execute(sa.select(table.c.kind, table.c.key, table.c.document).where(of_records)).all():
        kept = {name: value for name, value in row.document.items() if name != "created_at"}
        is_it = (table.c.kind == row.kind, table.c.key == row.key)
        connection.execute(table.update().where(*is_it).values(document=kept))
