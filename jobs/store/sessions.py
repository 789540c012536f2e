"""Sessions, as digests of their tokens; each is of a key."""

from dataclasses import asdict

import sqlalchemy as sa

from jobs.store.database import Database
from jobs.store.records import ApiKey, KeySession
from jobs.store.rows import read_row
from jobs.store.tables import KEYS, SESSIONS


class Sessions:
    """Keeps sessions until they expire; the key itself is in none of them."""

    _database: Database

    def insert_session(self, session: KeySession) -> None:
        """Keep a new session, and forget those that had expired when it was created."""
        with self._database.write() as connection:
            connection.execute(SESSIONS.delete().where(SESSIONS.c.expires_at < session.created_at))
            connection.execute(SESSIONS.insert().values(**asdict(session)))

    def find_session(self, digest: str) -> tuple[KeySession, ApiKey] | None:
        """Return the session with this digest and its key, also where either has ended, or None."""
        life = (SESSIONS.c.created_at.label("opened_at"), SESSIONS.c.expires_at.label("ends_at"))
        wanted = sa.select(*life, KEYS).join_from(SESSIONS, KEYS, SESSIONS.c.key_id == KEYS.c.id)
        with self._database.read() as connection:
            row = connection.execute(wanted.where(SESSIONS.c.digest == digest)).first()
        return (
            None
            if row is None
            else (KeySession(digest, row.id, row.opened_at, row.ends_at), read_row(ApiKey, row))
        )

    def delete_session(self, digest: str) -> bool:
        """Forget a session, and return whether there was one."""
        with self._database.write() as connection:
            return connection.execute(SESSIONS.delete().where(SESSIONS.c.digest == digest)).rowcount > 0
