"""Sessions, as digests of their tokens: of keys, and of people who signed in with an identity provider."""

from dataclasses import asdict
from datetime import datetime

import sqlalchemy as sa

from jobs.store.database import Database
from jobs.store.records import ApiKey, KeySession, UserSession
from jobs.store.rows import read_row
from jobs.store.tables import KEYS, SESSIONS, USED_SIGN_INS, USER_SESSIONS
from jobs.store.waits import has_passed


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


class UserSessions:
    """Keeps sessions until they expire, with the provider's tokens encrypted; the key is not in the store."""

    _database: Database

    def insert_user_session(self, session: UserSession) -> None:
        """Keep a new session, and forget those that had expired when it was created."""
        with self._database.write() as connection:
            connection.execute(USER_SESSIONS.delete().where(USER_SESSIONS.c.expires_at < session.created_at))
            connection.execute(USER_SESSIONS.insert().values(**asdict(session)))

    def find_user_session(self, digest: str) -> UserSession | None:
        """Return the session with this digest, also where it has ended, or None."""
        with self._database.read() as connection:
            row = connection.execute(USER_SESSIONS.select().where(USER_SESSIONS.c.digest == digest)).first()
        return None if row is None else read_row(UserSession, row)

    def claim_renewal(self, session: UserSession, *, now: datetime, until: datetime) -> bool:
        """Return whether the caller alone may renew this revision, until then."""
        columns = USER_SESSIONS.c
        is_free = sa.or_(columns.renewing_until.is_(None), has_passed(columns.renewing_until, now))
        wanted = sa.and_(columns.digest == session.digest, columns.revision == session.revision, is_free)
        with self._database.write() as connection:
            return (
                connection.execute(USER_SESSIONS.update().where(wanted).values(renewing_until=until)).rowcount > 0
            )

    def renew_user_session(self, session: UserSession) -> bool:
        """Replace the revision before this one, and return whether that was still the newest."""
        columns = USER_SESSIONS.c
        wanted = sa.and_(columns.digest == session.digest, columns.revision == session.revision - 1)
        changed = USER_SESSIONS.update().where(wanted).values(renewing_until=None, **asdict(session))
        with self._database.write() as connection:
            return connection.execute(changed).rowcount > 0

    def delete_user_session(self, digest: str) -> bool:
        """Forget a session, and return whether there was one."""
        with self._database.write() as connection:
            return connection.execute(USER_SESSIONS.delete().where(USER_SESSIONS.c.digest == digest)).rowcount > 0

    def use_sign_in(self, digest: str, *, now: datetime, expires_at: datetime) -> bool:
        """Return whether the sign-in with this digest is used for the first time, and note that it was used."""
        # One writer at a time on both databases, so that of two that come together one is second.
        with self._database.write("used_sign_ins") as connection:
            connection.execute(USED_SIGN_INS.delete().where(USED_SIGN_INS.c.expires_at < now))
            known = sa.select(USED_SIGN_INS.c.digest).where(USED_SIGN_INS.c.digest == digest)
            if connection.execute(known).first() is not None:
                return False
            connection.execute(USED_SIGN_INS.insert().values(digest=digest, expires_at=expires_at))
            return True
