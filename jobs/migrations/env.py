"""Runs the migrations on the connection that the store hands over, inside of its transaction."""

from typing import Final

from alembic import context
from sqlalchemy.engine import Connection

from jobs.store.tables import METADATA

_CONNECTION: Final[Connection] = context.config.attributes["connection"]

context.configure(connection=_CONNECTION, target_metadata=METADATA)
context.run_migrations()
