"""Types and fields of histories' lines, and one place for what is found out of a job of any kind."""

import re
from typing import Any

import sqlalchemy as sa
from alembic import op

from jobs.store.tables import DOCUMENT, TEXT

revision = "0005"
down_revision = "0004"

_STATES = "PENDING|RUNNING|PAUSED|CANCELLING|SUCCEEDED|FAILED|CANCELLED"
_MOVE = re.compile(rf"({_STATES}) -> ({_STATES})")
_VERDICT = re.compile(r"verification (\w+)")
_CHANGE = re.compile(r"changed (\w+(?:, \w+)*)")


def upgrade() -> None:
    """Add the columns and read every earlier line once; verdicts and merges' findings move together."""
    op.add_column("events", sa.Column("type", TEXT, nullable=False, server_default="changed"))
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
        if (parsed := _parse_words(what)) is not None:
            kind, fields = parsed
            written = sa.update(events).where(events.c.what == what).values(type=kind, fields=fields)
            connection.execute(written)
    # Whatever else a driver's look wrote is what a merge had found out.
    found = sa.update(events).where(events.c.actor == "driver", events.c.type == "changed")
    connection.execute(found.values(type="found"))


def _parse_words(what: str) -> tuple[str, dict[str, Any]] | None:
    """Return the type and the fields of a line that was written before lines had any; None where nobody knows."""
    if move := _MOVE.fullmatch(what):
        return "moved", {"from": move[1], "to": move[2]}
    if verdict := _VERDICT.fullmatch(what):
        return "found", {"state": verdict[1]}
    if change := _CHANGE.fullmatch(what):
        return "changed", {"options": change[1].split(", ")}
    known: dict[str, tuple[str, dict[str, Any]]] = {
        "created": ("created", {}),
        "approved": ("approved", {}),
        "driver ended": ("driver_ended", {}),
        "reverted": ("changed", {"options": ["reverted"]}),
    }
    return known.get(what)
