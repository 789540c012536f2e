"""Browser sessions that stand for an API key; they end by time, at sign-out, or with the key."""

import re
import secrets
from datetime import UTC, datetime, timedelta
from typing import Final

from jobs.keys import Keyring, token_digest
from jobs.store import JobStore, KeySession
from model.errors import UnauthenticatedError
from model.principal import Principal

SESSION_MARK: Final = "rs_"
_TOKEN: Final = re.compile(r"rs_[A-Za-z0-9_-]{43}")
_SECRET_BYTES: Final = 32
# A working day, or until the key expires.
_LIFE: Final = timedelta(hours=12)


class SessionDesk:
    """Opens and ends sessions of the deployment's keys.

    A session's token is random, and only its digest is stored; the key's token is not stored at all. Each use
    looks the key up again, so a session never has more rights than its key, and none after the key is revoked.
    """

    def __init__(self, store: JobStore, keyring: Keyring) -> None:
        self._store = store
        self._keyring = keyring

    def open(self, key_token: str) -> tuple[KeySession, str]:
        """Open a session for a key's token; return it with its own token, which can't be shown again.

        Raises:
            UnauthenticatedError: no valid key has this token.
        """
        key, _ = self._keyring.find(key_token)
        now = datetime.now(UTC)
        token = SESSION_MARK + secrets.token_urlsafe(_SECRET_BYTES)
        ends = now + _LIFE if key.expires_at is None else min(now + _LIFE, key.expires_at)
        session = KeySession(token_digest(token), key.id, ends)
        self._store.put_short_lived(session)
        return session, token

    def authenticate(self, token: str) -> tuple[KeySession, Principal]:
        """Return the session of a token, and its principal.

        Raises:
            UnauthenticatedError: there is no such session, or it or its key has ended.
        """
        # The lookup is by a digest of 256 random bits, so its duration reveals nothing of the token.
        found = self._store.find_session(token_digest(token)) if _TOKEN.fullmatch(token) else None
        if found is None:
            raise UnauthenticatedError(was_given=True, why="there is no such session")
        session, key = found
        if session.expires_at <= datetime.now(UTC):
            raise UnauthenticatedError(was_given=True, why="the session has expired")
        return session, self._keyring.use(key)

    def end(self, token: str) -> None:
        """End a session; ending one that has ended changes nothing."""
        self._store.delete_short_lived(KeySession, token_digest(token))
