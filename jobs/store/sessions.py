"""Sessions, as digests of their tokens; each is of a key."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from jobs.store.database import Database
from jobs.store.keys import read_key
from jobs.store.records import ApiKey, KeySession
from jobs.store.tables import KEYS, SESSIONS


class Sessions:
    """Keeps sessions until they expire; the key itself is in none of them."""

    _database: Database

    def insert_session(self, session: KeySession) -> None:
        """Keep a new session, and forget those that had expired when it was created."""
        with self._database.write() as connection:
            connection.execute(SESSIONS.delete().where(SESSIONS.c.expires_at < session.created_at))
            connection.execute(
                SESSIONS.insert().values(
                    digest=session.digest,
                    key_id=session.key_id,
                    created_at=session.created_at,
                    expires_at=session.expires_at,
                )
            )

    def find_session(self, digest: str) -> tuple[KeySession, ApiKey] | None:
        """Return the session with this digest and its key, also where either has ended, or None."""
        wanted = sa.select(
            SESSIONS.c.digest.label("session_digest"),
            SESSIONS.c.key_id.label("session_key_id"),
            SESSIONS.c.created_at.label("session_created_at"),
            SESSIONS.c.expires_at.label("session_expires_at"),
            KEYS,
        ).join_from(SESSIONS, KEYS, SESSIONS.c.key_id == KEYS.c.id)
        with self._database.read() as connection:
            row = connection.execute(wanted.where(SESSIONS.c.digest == digest)).first()
        return None if row is None else (_session(row), read_key(row))

    def delete_session(self, digest: str) -> bool:
        """Forget a session, and return whether there was one."""
        with self._database.write() as connection:
            return connection.execute(SESSIONS.delete().where(SESSIONS.c.digest == digest)).rowcount > 0


def _session(row: Row[Any]) -> KeySession:
    return KeySession(row.session_digest, row.session_key_id, row.session_created_at, row.session_expires_at)
