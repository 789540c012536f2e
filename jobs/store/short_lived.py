"""Records that end by themselves: plans, sessions, sign-ins that were used, and keys of creates under way."""

from dataclasses import asdict, fields
from datetime import datetime
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from jobs.store.database import Database
from jobs.store.records import ApiKey, Idempotency, KeySession, StoredPlan, UserSession
from jobs.store.rows import read_row, scoped_key
from jobs.store.tables import KEYS, SHORT_LIVED
from jobs.store.waits import has_passed, is_over
from model.errors import IdempotencyInProgressError, IdempotencyKeyReusedError
from model.typed import read_fields, to_plain

Kept = TypeVar("Kept", StoredPlan, KeySession, UserSession)

_COLUMNS: Final = SHORT_LIVED.c
_KINDS: Final = {StoredPlan: "plan", KeySession: "session", UserSession: "user_session"}
_SIGN_IN: Final = "sign_in"
_CREATE: Final = "create"


class ShortLived:
    """Keeps each record until it is deleted, or was purged after its end: who reads one looks at its end.

    A session is known by the digest of its token, and the provider's tokens in it are encrypted.
    """

    _database: Database

    def put_short_lived(self, record: StoredPlan | KeySession | UserSession) -> None:
        """Keep a new record."""
        with self._database.write() as connection:
            connection.execute(SHORT_LIVED.insert().values(kind=_KINDS[type(record)], **_values_of(record)))

    def find_short_lived(self, kind: type[Kept], key: str) -> Kept | None:
        """Return the record of this kind with this id or digest, also one that has ended, or None."""
        with self._database.read() as connection:
            document = connection.scalar(sa.select(_COLUMNS.document).where(_is(_KINDS[kind], key)))
        return None if document is None else read_fields(kind, document)

    def find_session(self, digest: str) -> tuple[KeySession, ApiKey] | None:
        """Return the session with this digest and its key, also where either has ended, or None."""
        session = self.find_short_lived(KeySession, digest)
        if session is None:
            return None
        with self._database.read() as connection:
            row = connection.execute(sa.select(KEYS).where(KEYS.c.id == session.key_id)).one()
        return session, read_row(ApiKey, row)

    def delete_short_lived(self, kind: type[Kept], key: str) -> bool:
        """Forget a record, and return whether there was one."""
        with self._database.write() as connection:
            return connection.execute(SHORT_LIVED.delete().where(_is(_KINDS[kind], key))).rowcount > 0

    def purge_short_lived(self, before: datetime) -> int:
        """Forget what has ended before then, and return how many records that were."""
        with self._database.write() as connection:
            return connection.execute(SHORT_LIVED.delete().where(_COLUMNS.expires_at < before)).rowcount

    def claim_renewal(self, session: UserSession, *, now: datetime, until: datetime) -> bool:
        """Return whether the caller alone may renew this revision of a session, until then."""
        is_free = sa.or_(_COLUMNS.held_until.is_(None), has_passed(_COLUMNS.held_until, now))
        return self._change(session, session.revision, is_free, {"held_until": until})

    def renew_user_session(self, session: UserSession) -> bool:
        """Replace the revision before this one, and return whether that was still the newest."""
        changes = {**_values_of(session), "held_until": None}
        return self._change(session, session.revision - 1, sa.true(), changes)

    def use_sign_in(self, digest: str, *, expires_at: datetime) -> bool:
        """Return whether the sign-in with this digest is used for the first time, and note that it was used."""
        # One writer at a time on both databases, so that of two that come together one is second.
        with self._database.write(_SIGN_IN) as connection:
            if connection.execute(sa.select(_COLUMNS.key).where(_is(_SIGN_IN, digest))).first() is not None:
                return False
            _insert(connection, _SIGN_IN, digest, {}, expires_at)
            return True

    def abandon_create(self, idempotency: Idempotency, *, actor: str) -> None:
        """Let go of a key whose create failed, so that the caller may try again at once."""
        is_it = _is(_CREATE, scoped_key(idempotency, actor))
        with self._database.write() as connection:
            held = connection.scalar(sa.select(_COLUMNS.document).where(is_it).with_for_update())
            if held is not None and held["attempt"] == idempotency.attempt:
                connection.execute(SHORT_LIVED.delete().where(is_it))

    def _change(
        self, session: UserSession, revision: int, where: sa.ColumnElement[bool], changes: dict[str, Any]
    ) -> bool:
        is_it = _is(_KINDS[UserSession], session.digest)
        changed = SHORT_LIVED.update().where(is_it, _COLUMNS.revision == revision, where).values(**changes)
        with self._database.write() as connection:
            return connection.execute(changed).rowcount > 0


def hold_create(connection: Connection, idempotency: Idempotency, actor: str, until: datetime) -> None:
    """Take a key for one create that is under way."""
    release_create(connection, idempotency, actor)
    document = {"fingerprint": idempotency.fingerprint, "attempt": idempotency.attempt}
    _insert(connection, _CREATE, scoped_key(idempotency, actor), document, until)


def release_create(connection: Connection, idempotency: Idempotency, actor: str) -> None:
    """Free a key, even if another create holds it."""
    connection.execute(SHORT_LIVED.delete().where(_is(_CREATE, scoped_key(idempotency, actor))))


def check_create(connection: Connection, idempotency: Idempotency, actor: str, now: datetime) -> None:
    """Check that no other create holds the key.

    Raises:
        IdempotencyKeyReusedError: one does, with another fingerprint.
        IdempotencyInProgressError: one does, with the same.
    """
    key = scoped_key(idempotency, actor)
    held = connection.execute(sa.select(SHORT_LIVED).where(_is(_CREATE, key))).first()
    if held is None or held.document["attempt"] == idempotency.attempt or is_over(held.expires_at, now):
        return
    if held.document["fingerprint"] != idempotency.fingerprint:
        raise IdempotencyKeyReusedError
    raise IdempotencyInProgressError


def _is(kind: str, key: str) -> sa.ColumnElement[bool]:
    return sa.and_(_COLUMNS.kind == kind, _COLUMNS.key == key)


def _values_of(record: StoredPlan | KeySession | UserSession) -> dict[str, Any]:
    """Return the columns of a record; its first field is its key."""
    revision = record.revision if isinstance(record, UserSession) else 0
    key = getattr(record, fields(record)[0].name)
    document = {name: _plain(value) for name, value in asdict(record).items()}
    return {"key": key, "document": document, "expires_at": record.expires_at, "revision": revision}


def _plain(value: Any) -> Any:
    return to_plain(value) if isinstance(value, datetime) else value


def _insert(connection: Connection, kind: str, key: str, document: dict[str, Any], expires_at: datetime) -> None:
    values = {"kind": kind, "key": key, "document": document, "expires_at": expires_at, "revision": 0}
    connection.execute(SHORT_LIVED.insert().values(**values))
