"""The audit log: who requested what, and its outcome; lines are only appended."""

from datetime import UTC, datetime

import sqlalchemy as sa

from jobs.store.database import Database
from jobs.store.records import AuditEntry
from jobs.store.rows import read_row
from jobs.store.tables import AUDIT


class AuditLog:
    """Keeps the audit log."""

    _database: Database

    def append_audit(self, actor: str, action: str, target: str, outcome: str, why: str | None = None) -> None:
        """Add a line."""
        with self._database.write() as connection:
            connection.execute(
                AUDIT.insert().values(
                    at=datetime.now(UTC), actor=actor, action=action, target=target, outcome=outcome, why=why
                )
            )

    def list_audit(self, limit: int, before: int | None = None) -> list[AuditEntry]:
        """Return up to ``limit`` lines, newest first, of those with a number below ``before``."""
        query = sa.select(AUDIT).order_by(AUDIT.c.number.desc()).limit(limit)
        if before is not None:
            query = query.where(AUDIT.c.number < before)
        with self._database.read() as connection:
            return [read_row(AuditEntry, row) for row in connection.execute(query)]
