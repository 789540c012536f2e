"""API keys, stored as digests."""

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from jobs.store.database import Database
from jobs.store.events import KEY, append_event
from jobs.store.records import ApiKey
from jobs.store.rows import read_row
from jobs.store.tables import KEYS
from model.event import HistoryEventType

# A key's last use is written once in this many seconds, however often it is used.
_TOUCH_SECONDS: Final = 60


class Keys:
    """Keeps keys; a revoked key stays, so that its last use can still be seen."""

    _database: Database

    def insert_key(self, key: ApiKey, *, actor: str | None = None) -> None:
        """Store a new key, whose prefix must be unique; ``actor`` created it."""
        with self._database.write() as connection:
            connection.execute(KEYS.insert().values(**asdict(key)))
            _append(connection, key.name, HistoryEventType.CREATED, key.created_at, actor)

    def list_keys(self) -> list[ApiKey]:
        """Return every key, oldest first."""
        with self._database.read() as connection:
            rows = connection.execute(sa.select(KEYS).order_by(KEYS.c.created_at, KEYS.c.id)).all()
        return [read_row(ApiKey, row) for row in rows]

    def find_key(self, prefix: str) -> ApiKey | None:
        """Return the key with this prefix, also one that was revoked or has expired, or None."""
        with self._database.read() as connection:
            row = connection.execute(sa.select(KEYS).where(KEYS.c.prefix == prefix)).first()
        return None if row is None else read_row(ApiKey, row)

    def revoke_key(self, key_id: str, at: datetime, *, actor: str | None = None) -> bool:
        """Revoke a key, and return whether it exists; a repeated call changes nothing."""
        with self._database.write() as connection:
            found = connection.execute(sa.select(KEYS).where(KEYS.c.id == key_id).with_for_update()).first()
            if found is not None and found.revoked_at is None:
                connection.execute(KEYS.update().where(KEYS.c.id == key_id).values(revoked_at=at))
                _append(connection, found.name, HistoryEventType.REVOKED, at, actor)
            return found is not None

    def touch_key(self, key_id: str, at: datetime) -> None:
        """Record that a key was used, to the minute."""
        stale = sa.or_(KEYS.c.last_used_at.is_(None), KEYS.c.last_used_at < at - timedelta(seconds=_TOUCH_SECONDS))
        with self._database.read() as connection:
            is_stale = connection.scalar(sa.select(KEYS.c.id).where(KEYS.c.id == key_id, stale)) is not None
        if is_stale:
            with self._database.write() as connection:
                connection.execute(KEYS.update().where(KEYS.c.id == key_id, stale).values(last_used_at=at))


def _append(connection: Connection, name: str, kind: HistoryEventType, at: datetime, actor: str | None) -> None:
    append_event(connection, KEY, name, kind, at, actor=actor, what=kind.value)
