"""Sessions of people who signed in with an identity provider, whose tokens are stored encrypted and renewed."""

import base64
import hashlib
import hmac
import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from connectors.oidc.provider import IssuedTokens, Provider
from connectors.oidc.tokens import IdTokenVerifier, TokenVerifier
from jobs.keys import token_digest
from jobs.store import JobStore, UserSession
from model.errors import (
    IdentityUnavailableError,
    RefeedError,
    SignInRefusedError,
    UnauthenticatedError,
)

USER_SESSION_MARK: Final = "ru_"
_TOKEN: Final = re.compile(r"ru_[A-Za-z0-9_-]{43}")
_SECRET_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_LIFE: Final = timedelta(hours=12)
# Tokens are renewed this long before they expire, so that no call waits for the provider; short-lived tokens are
# renewed in the last quarter of their life.
_RENEW_AHEAD: Final = timedelta(seconds=60)
_RENEW_SHARE: Final = 4
# 2100-01-01: the latest expiry; a later one in a token counts as this.
_LATEST_END: Final = 4_102_444_800
# Longer than the provider may take to answer; afterwards another replica tries.
_CLAIM: Final = timedelta(seconds=15)
_WAIT_SECONDS: Final = 6.0
_LOOK_SECONDS: Final = 0.1

BearerKind = Literal["access_token", "id_token"]


@dataclass(frozen=True, slots=True)
class SessionTokens:
    """The provider's tokens of a session; ``subject`` is the ID token's subject at the sign-in."""

    subject: str
    bearer: str
    id_token: str
    refresh_token: str | None


class UserSessionDesk:
    """Opens, renews and ends sessions that stand for a person's tokens.

    Only the digest of a session's own token is stored. The provider's tokens are encrypted with a key that is
    derived from the session's token, so the job store alone does not reveal them. Each use verifies the bearer
    token again, as if the caller had sent it.
    """

    def __init__(
        self,
        store: JobStore,
        provider: Provider,
        *,
        verifier: TokenVerifier,
        id_verifier: IdTokenVerifier,
        bearer: BearerKind,
    ) -> None:
        self._store = store
        self._provider = provider
        self._verifier = verifier
        self._id_verifier = id_verifier
        self._bearer: BearerKind = bearer

    def open(self, issued: IssuedTokens, *, nonce: str) -> tuple[UserSession, Mapping[str, Any], str]:
        """Open a session for the tokens of a sign-in; return it, the bearer token's claims, and its own token.

        Raises:
            SignInRefusedError: a token is missing or invalid; ``why`` has the reason, for the log.
            IdentityUnavailableError: the issuer's keys are not available now.
        """
        if issued.id_token is None:
            raise SignInRefusedError(
                "The identity provider's answer has no ID token. Check that the scopes contain openid."
            )
        try:
            identity = self._id_verifier.read_claims(issued.id_token, nonce=nonce)
        except UnauthenticatedError as exc:
            raise _refusal("The identity provider's ID token is not valid for this sign-in.", exc) from exc
        kept = SessionTokens(identity["sub"], self._bearer_of(issued), issued.id_token, issued.refresh_token)
        try:
            claims = self._verifier.read_claims(kept.bearer)
        except UnauthenticatedError as exc:
            named = "access token" if self._bearer == "access_token" else "ID token"
            said = f"The API does not accept the identity provider's {named}: see REFEED_OIDC_AUDIENCE."
            raise _refusal(said, exc) from exc
        now, token = datetime.now(UTC), USER_SESSION_MARK + secrets.token_urlsafe(_SECRET_BYTES)
        ends = _end_of(claims)
        digest = token_digest(token)
        session = UserSession(
            digest=digest,
            expires_at=min(now + _LIFE, ends) if kept.refresh_token is None else now + _LIFE,
            sealed=_seal(token, digest, kept),
            renew_at=_renewal_of(ends, now),
            token_expires_at=ends,
            revision=1,
        )
        self._store.put_short_lived(session)
        return session, claims, token

    def authenticate(self, token: str) -> tuple[UserSession, Mapping[str, Any]]:
        """Return the session of a token and the claims of its bearer token, which is renewed if due.

        Raises:
            UnauthenticatedError: there is no such session, it has ended, or its bearer token is invalid.
            IdentityUnavailableError: the issuer's keys, or new tokens, are not available now.
        """
        session = self._find(token)
        kept = _unseal(token, session)
        if kept.refresh_token is not None and datetime.now(UTC) >= session.renew_at:
            session, kept = self._renew(token, session, kept)
        try:
            return session, self._verifier.read_claims(kept.bearer)
        except UnauthenticatedError:
            self._store.delete_short_lived(UserSession, session.digest)
            raise

    def end(self, token: str) -> str | None:
        """End a session and return its ID token, for the sign-out at the provider; None without a session."""
        try:
            kept = _unseal(token, self._find(token))
        except UnauthenticatedError:
            return None
        self._store.delete_short_lived(UserSession, token_digest(token))
        return kept.id_token

    def _find(self, token: str) -> UserSession:
        session = (
            self._store.find_short_lived(UserSession, token_digest(token)) if _TOKEN.fullmatch(token) else None
        )
        if session is None:
            raise UnauthenticatedError(was_given=True, why="there is no such session")
        if session.expires_at <= datetime.now(UTC):
            raise UnauthenticatedError(was_given=True, why="the session has expired")
        return session

    def _renew(self, token: str, session: UserSession, kept: SessionTokens) -> tuple[UserSession, SessionTokens]:
        """Return the session with new tokens, or unchanged while its bearer token is still valid.

        Only one replica asks the provider, since a refresh token may be valid for one use only.
        """
        now = datetime.now(UTC)
        if not self._store.claim_renewal(session, now=now, until=now + _CLAIM):
            return self._await_renewal(token, session, kept)
        try:
            renewed = self._ask_tokens(kept)
        except IdentityUnavailableError:
            # The claim stays, so that not every call asks the provider again.
            if now < session.token_expires_at:
                return session, kept
            raise
        except (SignInRefusedError, UnauthenticatedError) as exc:
            self._store.delete_short_lived(UserSession, session.digest)
            raise UnauthenticatedError(was_given=True, why=f"not renewed: {_why(exc)}") from exc
        ends = _end_of(self._verified(session, renewed))
        after = replace(
            session,
            expires_at=min(session.expires_at, ends) if renewed.refresh_token is None else session.expires_at,
            sealed=_seal(token, session.digest, renewed),
            renew_at=_renewal_of(ends, datetime.now(UTC)),
            token_expires_at=ends,
            revision=session.revision + 1,
        )
        if not self._store.renew_user_session(after):
            # The session was ended meanwhile, or another replica renewed it after the claim's end.
            found = self._find(token)
            return found, _unseal(token, found)
        return after, renewed

    def _ask_tokens(self, kept: SessionTokens) -> SessionTokens:
        assert kept.refresh_token is not None, "a session without one is never renewed"
        issued = self._provider.refresh(kept.refresh_token)
        if self._bearer == "id_token" and issued.id_token is None:
            # OpenID Connect Core 1.0, 12.2: it "might not contain an id_token"; then the session can't be renewed.
            return replace(kept, refresh_token=None)
        id_token = kept.id_token
        if issued.id_token is not None:
            # OpenID Connect Core 1.0, 12.2: the subject must be the same; no nonce is needed.
            if self._id_verifier.read_claims(issued.id_token, nonce=None)["sub"] != kept.subject:
                raise SignInRefusedError("The identity provider returned the tokens of another person.")
            id_token = issued.id_token
        return SessionTokens(
            kept.subject, self._bearer_of(issued), id_token, issued.refresh_token or kept.refresh_token
        )

    def _verified(self, session: UserSession, renewed: SessionTokens) -> Mapping[str, Any]:
        try:
            return self._verifier.read_claims(renewed.bearer)
        except UnauthenticatedError:
            self._store.delete_short_lived(UserSession, session.digest)
            raise

    def _await_renewal(
        self, token: str, session: UserSession, kept: SessionTokens
    ) -> tuple[UserSession, SessionTokens]:
        deadline = time.monotonic() + _WAIT_SECONDS
        while datetime.now(UTC) >= session.token_expires_at:
            if time.monotonic() > deadline:
                raise IdentityUnavailableError("The identity provider did not renew this session. Try again.")
            time.sleep(_LOOK_SECONDS)
            session = self._find(token)
            kept = _unseal(token, session)
        return session, kept

    def _bearer_of(self, issued: IssuedTokens) -> str:
        if self._bearer == "access_token":
            return issued.access_token
        if issued.id_token is None:
            raise SignInRefusedError("The identity provider's answer has no ID token.")
        return issued.id_token


def _seal(token: str, digest: str, kept: SessionTokens) -> str:
    content = json.dumps([kept.subject, kept.bearer, kept.id_token, kept.refresh_token]).encode()
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return base64.b64encode(nonce + AESGCM(_key(token)).encrypt(nonce, content, digest.encode())).decode()


def _unseal(token: str, session: UserSession) -> SessionTokens:
    sealed = base64.b64decode(session.sealed)
    try:
        content = AESGCM(_key(token)).decrypt(
            sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], session.digest.encode()
        )
    except InvalidTag as exc:
        raise UnauthenticatedError(was_given=True, why="the session's tokens can't be decrypted") from exc
    return SessionTokens(*json.loads(content))


def _key(token: str) -> bytes:
    # The token has 256 random bits, so one HMAC with a label gives a key that the stored digest does not reveal.
    return hmac.new(token.encode(), b"refeed user session", hashlib.sha256).digest()


def _end_of(claims: Mapping[str, Any]) -> datetime:
    return datetime.fromtimestamp(min(int(claims["exp"]), _LATEST_END), UTC)


def _renewal_of(ends: datetime, now: datetime) -> datetime:
    return ends - min(_RENEW_AHEAD, max(ends - now, timedelta(0)) / _RENEW_SHARE)


def _refusal(said: str, exc: UnauthenticatedError) -> SignInRefusedError:
    return SignInRefusedError(said, why=_why(exc))


def _why(exc: RefeedError) -> str:
    return str(exc.details.get("why") or exc.message)
