"""An identity provider as its client sees it: the address of a sign-in, and codes exchanged for tokens."""

import base64
import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, quote_plus, urlencode, urlsplit, urlunsplit

import httpx
import structlog

from connectors.oidc.documents import FETCH_SECONDS, endpoint_of, parse_json, read_discovery
from model.errors import IdentityUnavailableError, SignInRefusedError

_LOG: Final = structlog.get_logger()
_FRESH_SECONDS: Final = 600.0
# A provider that does not answer is called again after this long, however many people try to sign in.
_PAUSE_SECONDS: Final = 5.0
_OK: Final = 200
_BAD_REQUEST: Final = 400
_SERVER_ERROR: Final = 500
_SAID_CHARS: Final = 200
_AWAY: Final = (
    "The identity provider does not answer, or its answer is not valid OpenID Connect. API keys still work."
)


@dataclass(frozen=True, slots=True)
class IssuedTokens:
    """What the provider gives for a code or a refresh token; nothing of it is verified yet."""

    access_token: str
    id_token: str | None
    refresh_token: str | None


@dataclass(frozen=True, slots=True)
class ProviderClient:
    """This service as the provider has registered it; without a ``secret`` it is a public client.

    ``parameters`` are further ones of the authorization request, such as ``audience``.
    """

    id: str
    secret: str | None
    redirect_uri: str
    scopes: str
    parameters: tuple[tuple[str, str], ...] = ()


class Provider:
    """The provider of one issuer, for several threads; its discovery document is kept for ten minutes."""

    def __init__(
        self, issuer: str, client: ProviderClient, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.issuer = issuer
        self._client = client
        self._clock = clock
        self._lock = threading.Lock()
        self._document: Mapping[str, Any] | None = None
        self._read_at: float | None = None
        self._failed_at: float | None = None

    def authorization_url(self, *, state: str, nonce: str, verifier: str) -> str:
        """Return where a browser goes to sign in; ``verifier`` stays here and only its digest goes along.

        Raises:
            IdentityUnavailableError: the provider's discovery document can't be had.
        """
        digest = hashlib.sha256(verifier.encode()).digest()
        wanted = {
            **dict(self._client.parameters),
            "response_type": "code",
            "client_id": self._client.id,
            "redirect_uri": self._client.redirect_uri,
            "scope": self._client.scopes,
            "state": state,
            "nonce": nonce,
            # RFC 7636, 4.2: base64url without padding.
            "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
            "code_challenge_method": "S256",
        }
        return _with_query(self._endpoint("authorization_endpoint"), wanted)

    def end_session_url(self, id_token: str, *, return_to: str) -> str | None:
        """Return where a browser goes to sign out at the provider too, None where the provider has no such page.

        Raises:
            IdentityUnavailableError: as :meth:`authorization_url`.
        """
        if "end_session_endpoint" not in self._discover():
            return None
        wanted = {
            "id_token_hint": id_token,
            "client_id": self._client.id,
            "post_logout_redirect_uri": return_to,
        }
        return _with_query(self._endpoint("end_session_endpoint"), wanted)

    def names_issuer(self) -> bool:
        """Whether the provider says that each of its callbacks names the issuer (RFC 9207).

        Raises:
            IdentityUnavailableError: as :meth:`authorization_url`.
        """
        return self._discover().get("authorization_response_iss_parameter_supported") is True

    def redeem(self, code: str, verifier: str) -> IssuedTokens:
        """Return the tokens that a code stands for.

        Raises:
            SignInRefusedError: the provider refuses the code, the verifier or this client.
            IdentityUnavailableError: it does not answer.
        """
        return self._ask_tokens(
            {
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": self._client.redirect_uri,
                "code_verifier": verifier,
            }
        )

    def refresh(self, refresh_token: str) -> IssuedTokens:
        """Return new tokens; without a new refresh token the old one stays good.

        Raises:
            SignInRefusedError: the provider refuses it: it has expired, or the person lost their rights.
            IdentityUnavailableError: it does not answer.
        """
        return self._ask_tokens({"grant_type": "refresh_token", "refresh_token": refresh_token})

    def _ask_tokens(self, fields: dict[str, str]) -> IssuedTokens:
        url, headers = self._endpoint("token_endpoint"), {"Accept": "application/json"}
        if self._client.secret is None:
            fields["client_id"] = self._client.id
        elif self._takes_basic():
            # RFC 6749, 2.3.1: both are encoded as a form's fields first.
            pair = f"{quote_plus(self._client.id)}:{quote_plus(self._client.secret)}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            fields |= {"client_id": self._client.id, "client_secret": self._client.secret}
        try:
            with (
                httpx.Client(timeout=FETCH_SECONDS, follow_redirects=False) as client,
                client.stream("POST", url, data=fields, headers=headers) as response,
            ):
                answer = parse_json(response)
                status = response.status_code
            if _BAD_REQUEST <= status < _SERVER_ERROR:
                error = str(answer.get("error", status))[:_SAID_CHARS]
                said = str(answer.get("error_description", ""))[:_SAID_CHARS]
                raise SignInRefusedError(
                    f"The identity provider refused the sign-in: {error}.", why=f"token endpoint: {error} {said}"
                )
            return _tokens_of(answer, status)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError) as exc:
            raise self._away(exc) from exc

    def _takes_basic(self) -> bool:
        # OpenID Connect Discovery 1.0, 3: where it is omitted, the default is client_secret_basic.
        taken = self._discover().get("token_endpoint_auth_methods_supported")
        return not isinstance(taken, list) or "client_secret_basic" in taken or "client_secret_post" not in taken

    def _endpoint(self, name: str) -> str:
        try:
            return endpoint_of(self._discover(), self.issuer, name)
        except ValueError as exc:
            raise self._away(exc) from exc

    def _discover(self) -> Mapping[str, Any]:
        with self._lock:
            now = self._clock()
            if self._document is not None and self._read_at is not None and now - self._read_at < _FRESH_SECONDS:
                return self._document
            if self._failed_at is not None and now - self._failed_at < _PAUSE_SECONDS:
                raise IdentityUnavailableError(_AWAY, issuer=self.issuer)
            try:
                with httpx.Client(timeout=FETCH_SECONDS, follow_redirects=False) as client:
                    document = read_discovery(client, self.issuer)
            except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError) as exc:
                self._failed_at = self._clock()
                raise self._away(exc) from exc
            self._document, self._read_at, self._failed_at = document, self._clock(), None
            return document

    def _away(self, problem: Exception) -> IdentityUnavailableError:
        _LOG.warning("the identity provider can't be used", issuer=self.issuer, problem=str(problem)[:500])
        return IdentityUnavailableError(_AWAY, issuer=self.issuer)


def _tokens_of(answer: Mapping[str, Any], status: int) -> IssuedTokens:
    """Return the tokens of a token endpoint's answer.

    Raises:
        ValueError: it has none, or not as bearer tokens.
    """
    if status != _OK:
        raise ValueError(f"the token endpoint answered {status}")
    found = {name: answer.get(name) for name in ("access_token", "id_token", "refresh_token")}
    texts = {name: value for name, value in found.items() if isinstance(value, str) and value}
    if "access_token" not in texts or str(answer.get("token_type", "")).lower() != "bearer":
        raise ValueError("the token endpoint answered without a bearer token")
    return IssuedTokens(texts["access_token"], texts.get("id_token"), texts.get("refresh_token"))


def _with_query(url: str, wanted: Mapping[str, str]) -> str:
    """Return the address with more parameters; RFC 6749, 3.1 keeps those that it has."""
    parts = urlsplit(url)
    kept = [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if name not in wanted]
    return urlunsplit(parts._replace(query=urlencode([*kept, *wanted.items()]), fragment=""))
