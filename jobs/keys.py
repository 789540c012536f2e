"""API keys: created, shown once, stored as digests, compared in constant time."""

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from jobs.store import ApiKey, JobStore
from model.errors import InvalidNameError, KeyNotFoundError, RequestInvalidError, UnauthenticatedError, fault_at
from model.job import new_job_id
from model.message import parse_resource_id
from model.principal import SCOPES, Principal

KEY_MARK: Final = "rf_"
_PREFIX_CHARS: Final = 10
_SECRET_BYTES: Final = 32
_TOKEN: Final = re.compile(r"rf_(?P<prefix>[a-z2-7]{10})_[a-z2-7]{52}")
_NAME: Final = re.compile(r"[\w@.\-][\w@.\- ]{0,99}")
_TOUCH_EVERY: Final = timedelta(minutes=1)
# Compared with a token whose prefix is unknown: takes the same time, and is never equal.
_NOBODYS_DIGEST: Final = "-" * 64


class Keyring:
    """The keys of one deployment.

    A token is ``rf_<prefix>_<secret>``. Only the token's SHA-256 is stored. The secret has 256 random bits and
    can't be guessed, so a slow digest would add nothing.
    """

    def __init__(self, store: JobStore) -> None:
        self._store = store

    def create(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        topics: Sequence[str] | None = None,
        expires_at: datetime | None = None,
        actor: str | None = None,
    ) -> tuple[ApiKey, str]:
        """Create a key and return it with its token, which can't be shown again; its history names ``actor``.

        Raises:
            RequestInvalidError: the name, a scope, a topic or the expiry is invalid; the details list every fault.
        """
        now = datetime.now(UTC)
        check_key(name, scopes, topics, expires_at, now)
        prefix, secret = _random_text(8)[:_PREFIX_CHARS], _random_text(_SECRET_BYTES)
        token = f"{KEY_MARK}{prefix}_{secret}"
        key = ApiKey(
            id=new_job_id("ky"),
            prefix=prefix,
            digest=token_digest(token),
            name=name,
            scopes=tuple(scope for scope in SCOPES if scope in scopes),
            topics=None if topics is None else tuple(topics),
            created_at=now,
            expires_at=expires_at,
        )
        self._store.insert_key(key, actor=actor)
        return key, token

    def list_keys(self) -> list[ApiKey]:
        """Return every key, also revoked and expired ones."""
        return self._store.list_keys()

    def is_empty(self) -> bool:
        """Whether no key was ever created; ended keys count, so their end does not open the deployment again."""
        return not self._store.list_keys()

    def revoke(self, key_id: str, *, actor: str | None = None) -> ApiKey:
        """Revoke a key, named by its id, prefix or name; revoking it again changes nothing.

        The key's history names ``actor``.

        Raises:
            KeyNotFoundError: there is none, or several that have not ended have this name.
        """
        keys = self._store.list_keys()
        found = [key for key in keys if key_id in (key.id, key.prefix, KEY_MARK + key.prefix)]
        if not found:
            now = datetime.now(UTC)
            found = [key for key in keys if key.name == key_id and key.find_end(now) is None]
        if not found:
            raise KeyNotFoundError(
                f"There is no key {key_id[:80]!r}. 'refeed key list' shows the ids and names.", id=key_id[:80]
            )
        if len(found) > 1:
            ids = ", ".join(key.id for key in found)
            raise KeyNotFoundError(f"Several keys have the name {key_id!r}. Name one by its id: {ids}.", id=key_id)
        (key,) = found
        if key.revoked_at is None:
            self._store.revoke_key(key.id, datetime.now(UTC), actor=actor)
        return next(after for after in self._store.list_keys() if after.id == key.id)

    def authenticate(self, token: str) -> Principal:
        """Return the principal of a token; its ``name`` is ``key:`` and the key's name.

        Raises:
            UnauthenticatedError: as :meth:`find`.
        """
        return self.find(token)[1]

    def find(self, token: str) -> tuple[ApiKey, Principal]:
        """Return the key of a token, and its principal.

        The digests are compared whether or not the prefix is known.

        Raises:
            UnauthenticatedError: no valid key has this token; ``why`` in the details is for the log only.
        """
        match = _TOKEN.fullmatch(token)
        key = None if match is None else self._store.find_key(match["prefix"])
        is_same = is_same_digest(token_digest(token), _NOBODYS_DIGEST if key is None else key.digest)
        if match is None:
            raise UnauthenticatedError(was_given=True, why="it does not look like a key")
        shown = KEY_MARK + match["prefix"]
        if key is None or not is_same:
            reason = "is not known" if key is None else "came with a wrong secret"
            raise UnauthenticatedError(was_given=True, why=f"{shown} {reason}")
        return key, self.use(key)

    def use(self, key: ApiKey) -> Principal:
        """Return the key's principal, and note the use at most once a minute.

        Raises:
            UnauthenticatedError: the key was revoked or has expired.
        """
        now, shown = datetime.now(UTC), KEY_MARK + key.prefix
        if (end := key.find_end(now)) is not None:
            raise UnauthenticatedError(was_given=True, why=f"{shown} {'was' if end == 'revoked' else 'has'} {end}")
        if key.last_used_at is None or now - key.last_used_at >= _TOUCH_EVERY:
            self._store.touch_key(key.id, now)
        return Principal(f"key:{key.name}", frozenset(key.scopes), key.topics)


def is_same_digest(left: str, right: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(left.encode(), right.encode())


def token_digest(token: str) -> str:
    """Return the digest by which the store keeps and finds a token of 256 random bits."""
    # A header may not be UTF-8. Such a token is wrong, but must not raise here.
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


def _random_text(size: int) -> str:
    """Return ``size`` random bytes as lower-case base32, which needs no quoting in a shell."""
    return base64.b32encode(secrets.token_bytes(size)).decode().rstrip("=").lower()


def check_key(
    name: str,
    scopes: Sequence[str],
    topics: Sequence[str] | None,
    expires_at: datetime | None,
    now: datetime,
) -> None:
    """Raise the RequestInvalidError of :meth:`Keyring.create`."""
    faults = []
    if not _NAME.fullmatch(name):
        said = "A key's name must have 1 to 100 characters: letters, digits, spaces and . _ - @"
        faults.append(fault_at("/name", "name_invalid", said))
    if not scopes:
        said = f"A key needs at least one scope. The scopes are {', '.join(SCOPES)}."
        faults.append(fault_at("/scopes", "scope_missing", said))
    for scope in scopes:
        if scope not in SCOPES:
            said = f"There is no scope {scope!r}. The scopes are {', '.join(SCOPES)}."
            faults.append(fault_at("/scopes", "scope_unknown", said))
    for topic in topics or ():
        try:
            # Any prefix of an id may stand before the star.
            parse_resource_id(topic[:-1].ljust(3, "x") if topic.endswith("*") else topic)
        except InvalidNameError as exc:
            faults.append(fault_at("/topics", "topic_invalid", exc.message))
    if expires_at is not None and expires_at <= now:
        faults.append(fault_at("/expires_at", "expiry_invalid", "The expiry is in the past."))
    if faults:
        raise RequestInvalidError("The key can't be created.", errors=faults)
