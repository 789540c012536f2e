"""Who calls: a key, a token of the issuer, a session, or, while there are none, every program on this machine."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from typing import Any, Final

from anyio import CapacityLimiter, to_thread
from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from api.errors import answer_error
from api.sign_in import CompleteSignInIn, SignInDesk, StartedSignInOut
from api.swagger import PUBLIC_PATHS as _PAGE_PATHS
from connectors.oidc.tokens import TokenVerifier
from jobs.keys import KEY_MARK, Keyring
from jobs.sessions import SESSION_MARK, SessionDesk
from jobs.store import KeySession, UserSession
from jobs.user_sessions import USER_SESSION_MARK, UserSessionDesk
from model.errors import (
    ForbiddenError,
    IdentityUnavailableError,
    ProxyWithoutKeyError,
    RateLimitedError,
    RefeedError,
    SignInRefusedError,
    UnauthenticatedError,
)
from model.limits import TokenBuckets
from model.origin import find_foreign, find_proxy
from model.principal import LOCAL, SCOPES, Grant, Principal

_NAME_CHARS: Final = 200
_PUBLIC_PATHS: Final = frozenset({"/", "/healthz", "/readyz", "/metrics", "/openapi.json"}) | _PAGE_PATHS
# People sign in there, so nobody is known yet.
_SIGN_IN_PATHS: Final = frozenset({"/sign-ins", "/sign-ins:complete"})
_NO_SIGN_IN: Final = "This deployment has no sign-in with an identity provider (REFEED_OIDC_CLIENT_ID)."
_MAX_THREADS: Final = 8
# A key that is revoked, or has expired, goes on reading an open stream for this time at most.
_RECHECK_SECONDS: Final = 5.0


class Gatekeeper:
    """Identifies the caller of each request, and limits how often they may call.

    A deployment is open to this machine alone until it has a key or an issuer; once it had a key it stays closed.
    """

    def __init__(
        self,
        keyring: Keyring,
        *,
        sessions: SessionDesk,
        verifier: TokenVerifier | None,
        claims: "ClaimReader",
        per_minute: int,
        user_sessions: UserSessionDesk | None = None,
        sign_ins: SignInDesk | None = None,
    ) -> None:
        self._keyring = keyring
        self._sessions = sessions
        self._verifier = verifier
        self._claims = claims
        self._user_sessions = user_sessions
        self._sign_ins = sign_ins
        self._callers = TokenBuckets(per_minute)
        self._strangers = TokenBuckets(per_minute)
        self._is_closed = verifier is not None

    def is_open(self) -> bool:
        """Whether there is neither a key nor an issuer, so that only this machine may call."""
        self._is_closed = self._is_closed or not self._keyring.is_empty()
        return not self._is_closed

    def admit(self, request: Request) -> None:
        """Note who calls in the request's state, for routes and the audit log; a public page needs nobody.

        Raises:
            ForbiddenError: there are no keys, and it is not this machine's own program that calls.
            ProxyWithoutKeyError: there are no keys, and a proxy passed the call on, so its sender is unknown.
            UnauthenticatedError: nobody that is known.
            RateLimitedError: they called too often, or failed too often to say who they are.
            IdentityUnavailableError: the issuer's keys can't be had, so a token can't be judged.
        """
        if self.is_open():
            refusal = _refuse_stranger(request.scope)
            if refusal is not None:
                # A page that calls again and again must not fill the audit log.
                _take(self._strangers, address_of(request.scope))
                raise refusal
            request.state.principal = LOCAL
        elif not is_public(request.scope["path"]):
            request.state.principal = self._authenticate(request)
            _take(self._callers, request.state.principal.name)

    def recheck(self, request: Request) -> Principal:
        """Return who a request that was admitted is from by now; no further call, so nothing is counted.

        Raises:
            UnauthenticatedError: nobody any more: the key was revoked, key or token has expired, or the deployment
                was open to this machine and has got a key.
            IdentityUnavailableError: as :meth:`admit`.
        """
        return LOCAL if self.is_open() else self._identify(_bearer(request))

    def open_session(self, request: Request) -> tuple[KeySession, str]:
        """Open a session for a request that came with a key, and return it with its token.

        Raises:
            UnauthenticatedError: it came with no key that counts.
            ForbiddenError: it came with something else, whose revocation nobody would notice.
        """
        token = _bearer(request)
        if not token.startswith(KEY_MARK):
            raise ForbiddenError(
                "To open a session, send a key. The API does not accept a token or another session."
            )
        return self._sessions.open(token)

    @property
    def sign_in_issuer(self) -> str | None:
        """The issuer that people sign in with, None where they can't."""
        return None if self._sign_ins is None else self._sign_ins.issuer

    def start_sign_in(self) -> StartedSignInOut:
        """Start a sign-in with the identity provider.

        Raises:
            SignInRefusedError: the deployment has none.
            IdentityUnavailableError: the provider does not answer.
        """
        if self._sign_ins is None:
            raise SignInRefusedError(_NO_SIGN_IN)
        return self._sign_ins.start()

    def complete_sign_in(self, request: Request, answer: CompleteSignInIn) -> tuple[UserSession, Principal, str]:
        """Open a session for who comes back from the provider; return it, whose it is, and its token.

        Raises:
            SignInRefusedError: the sign-in does not count; those who fail are slowed down by address.
            RateLimitedError: too many of that address did not count.
            IdentityUnavailableError: the provider does not answer.
        """
        try:
            if self._sign_ins is None:
                raise SignInRefusedError(_NO_SIGN_IN)  # noqa: TRY301  it is slowed down like every other refusal
            session, claims, token = self._sign_ins.complete(answer)
        except SignInRefusedError:
            _take(self._strangers, address_of(request.scope))
            raise
        request.state.principal = self._claims.principal_of(claims)
        return session, request.state.principal, token

    def find_session(self, request: Request) -> KeySession | UserSession | None:
        """Return the session that a request came with, None when it came with something else."""
        if self.is_open():
            return None
        token = _bearer(request)
        if token.startswith(USER_SESSION_MARK) and self._user_sessions is not None:
            return self._user_sessions.authenticate(token)[0]
        return self._sessions.authenticate(token)[0] if token.startswith(SESSION_MARK) else None

    def end_session(self, request: Request) -> str | None:
        """End the session that a request came with; a key stays as it is.

        Returns where the browser signs out at the identity provider too, or None.
        """
        found = self.find_session(request)
        if isinstance(found, KeySession):
            self._sessions.end(_bearer(request))
        if not isinstance(found, UserSession) or self._user_sessions is None or self._sign_ins is None:
            return None
        id_token = self._user_sessions.end(_bearer(request))
        # The session is over in any case.
        with suppress(IdentityUnavailableError):
            return None if id_token is None else self._sign_ins.sign_out_url(id_token)
        return None

    def _authenticate(self, request: Request) -> Principal:
        try:
            return self._identify(_bearer(request))
        except UnauthenticatedError:
            # Only those who fail are slowed down by address: a good key is never locked out by its neighbours.
            _take(self._strangers, address_of(request.scope))
            raise

    def _identify(self, token: str) -> Principal:
        if token.startswith(KEY_MARK):
            return self._keyring.authenticate(token)
        if token.startswith(SESSION_MARK):
            return self._sessions.authenticate(token)[1]
        if token.startswith(USER_SESSION_MARK) and self._user_sessions is not None:
            return self._claims.principal_of(self._user_sessions.authenticate(token)[1])
        if self._verifier is None:
            raise UnauthenticatedError(was_given=True, why="it is no key, and there is no issuer of tokens")
        return self._claims.principal_of(self._verifier.read_claims(token))


class ClaimReader:
    """Turns a verified token's claims into a principal."""

    def __init__(self, scopes_claim: str, grants: tuple[Grant, ...]) -> None:
        self._scopes_claim = scopes_claim
        self._grants = grants

    def principal_of(self, claims: Mapping[str, Any]) -> Principal:
        """Return the principal that the claims describe.

        Scopes are those that the scopes claim lists by name, and those of every grant whose claim has its value.
        An email counts, as a name and for grants, only when the issuer says that it verified it.

        Example:
            >>> reader = ClaimReader("scope", ())
            >>> reader.principal_of({"sub": "7", "scope": "openid backfills.read"})
            Principal(name='user:7', scopes=frozenset({'backfills.read'}), topics=None)
        """
        known = dict(claims)
        if known.get("email_verified") is not True:
            known.pop("email", None)
        listed = _values(known.get(self._scopes_claim))
        scopes = {word for value in listed for word in value.split() if word in SCOPES}
        for grant in self._grants:
            if grant.value in _values(known.get(grant.claim)):
                scopes |= grant.scopes
        name = known.get("email") or known["sub"]
        return Principal(f"user:{str(name)[:_NAME_CHARS]}", frozenset(scopes))


class Admission:
    """ASGI middleware: nobody gets further whom the gatekeeper does not admit, on any path that is not public."""

    def __init__(self, app: ASGIApp, gatekeeper: Callable[[], Gatekeeper]) -> None:
        self._app = app
        self._gatekeeper = gatekeeper
        # Threads of its own: unknown callers are refused even while all other threads wait for long queries.
        self._threads = CapacityLimiter(_MAX_THREADS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its principal, or answer why not."""
        if scope["type"] == "http":
            request = Request(scope)
            try:
                await to_thread.run_sync(self._gatekeeper().admit, request, limiter=self._threads)
            except RefeedError as error:
                response = answer_error(request, error)
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


def current_principal(request: Request) -> Principal:
    """Return who calls; a FastAPI dependency, and the only way to a principal.

    Raises:
        UnauthenticatedError: nobody was admitted, because the path is a public one or nothing guards it.
    """
    principal: Principal | None = getattr(request.state, "principal", None)
    if principal is None:
        raise UnauthenticatedError(why="nobody was admitted")
    return principal


class StandingCaller:
    """A caller whose answer goes on for hours: checked again every few seconds."""

    def __init__(self, principal: Principal, recheck: Callable[[], Principal]) -> None:
        self._principal = principal
        self._recheck = recheck
        self._checked_at = time.monotonic()

    def principal(self) -> Principal:
        """Return who it is, as of five seconds ago at most.

        Raises:
            UnauthenticatedError: nobody any more.
        """
        if time.monotonic() - self._checked_at >= _RECHECK_SECONDS:
            # An issuer that is away for a moment has revoked nothing; it is asked again.
            with suppress(IdentityUnavailableError):
                self._principal = self._recheck()
            self._checked_at = time.monotonic()
        return self._principal


def is_public(path: str) -> bool:
    """Whether a path is answered to everybody, because it shows nobody's data.

    Example:
        >>> is_public("/healthz"), is_public("/healthz/"), is_public("/backfills")
        (True, False, False)
    """
    return path in _PUBLIC_PATHS or is_sign_in(path) or path.startswith("/problems/")


def is_sign_in(path: str) -> bool:
    """Whether people sign in at a path; it is public, and refuses an attempt that does not count."""
    return path in _SIGN_IN_PATHS


def address_of(scope: Scope) -> str:
    """Return the address that a request came from; one IPv6 network of 64 bits counts as one address."""
    client = scope.get("client")
    try:
        address = ip_address(client[0] if client else "")
    except ValueError:
        return "unknown"
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(IPv6Address(int(address) >> 64 << 64))
    return str(address)


def _refuse_stranger(scope: Scope) -> ForbiddenError | None:
    """Return why an open deployment does not answer the request, None when it does."""
    if (sign := find_proxy(scope)) is not None:
        return ProxyWithoutKeyError(
            f"This call came through a proxy ({sign}). Without keys, the service can't tell the "
            "callers behind a proxy apart. Create a key with 'refeed key create'."
        )
    problem = find_foreign(scope)
    return None if problem is None else ForbiddenError(f"{problem} Create a key with 'refeed key create'.")


def _bearer(request: Request) -> str:
    """Return the token of the one Authorization header; nothing else in a request can hold one."""
    found = request.headers.getlist("authorization")
    if not found:
        raise UnauthenticatedError(why="no Authorization header")
    if len(found) > 1:
        raise UnauthenticatedError(was_given=True, why="more than one Authorization header")
    scheme, _, token = found[0].partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise UnauthenticatedError(was_given=True, why="not a Bearer token")
    return token


def _take(buckets: TokenBuckets, caller: str) -> None:
    wait = buckets.take(caller)
    if wait > 0:
        raise RateLimitedError(f"Too many calls. Try again in {wait:.0f} s.", retry_after_seconds=max(wait, 1.0))


def _values(claim: Any) -> frozenset[str]:
    """Return the strings that a claim is, or lists."""
    found = claim if isinstance(claim, list) else [claim]
    return frozenset(value for value in found if isinstance(value, str))
