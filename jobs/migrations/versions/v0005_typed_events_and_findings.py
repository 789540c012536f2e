"""Types and fields of histories' lines, and one place for what is found out of a job of any kind."""

import sqlalchemy as sa
from alembic import op

from jobs.store.events import JobEventType, parse_words
from jobs.store.tables import DOCUMENT, TEXT

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the columns and read every earlier line once; verdicts and merges' findings move together."""
    op.add_column("events", sa.Column("type", TEXT, nullable=False, server_default=JobEventType.CHANGED.value))
    op.add_column("events", sa.Column("fields", DOCUMENT, nullable=False, server_default="{}"))
    # Merges kept their findings in a column that was named for backfills.
    op.execute("ALTER TABLE jobs RENAME COLUMN verification TO findings")
    _type_events()


def _type_events() -> None:
    connection = op.get_bind()
    names = ("actor", "what", "type")
    events = sa.table("events", *(sa.column(name) for name in names), sa.column("fields", DOCUMENT))
    # By text, not by line: a history of years has few texts.
    for what in connection.scalars(sa.select(events.c.what).distinct()).all():
        if (parsed := parse_words(what)) is not None:
            kind, fields = parsed
            written = sa.update(events).where(events.c.what == what).values(type=kind.value, fields=fields)
            connection.execute(written)
    # Whatever else a driver's look wrote is what a merge had found out.
    found = sa.update(events).where(events.c.actor == "driver", events.c.type == JobEventType.CHANGED.value)
    connection.execute(found.values(type=JobEventType.FOUND.value))
