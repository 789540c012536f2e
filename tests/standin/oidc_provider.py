"""A strict OpenID Connect provider: code flow with PKCE, as the specifications word it, or with faults on purpose.

It refuses what RFC 6749, RFC 7636, OpenID Connect Core 1.0 and RP-Initiated Logout 1.0 let it refuse, and keeps
why in ``refused``. A page with two links stands for the person: one signs in, the other one declines.
"""

import base64
import hashlib
import html
import json
import re
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

import jwt

from tests.issuer import Issuer, generated_key
from tests.worlds.http import serving

CODE_SECONDS = 60
# RFC 7636, 4.1: code-verifier = 43*128unreserved.
VERIFIER = re.compile(r"[A-Za-z0-9\-._~]{43,128}")


class RefusedError(Exception):
    """The request is refused; ``error`` is the code of RFC 6749, and the text names the section."""

    def __init__(self, error: str, section: str) -> None:
        super().__init__(section)
        self.error = error


@dataclass
class StrictProvider:
    """One client at one provider; the fields from ``token_seconds`` on change what it does."""

    client_id: str = "refeed-console"
    client_secret: str | None = "console's secret: +/%"
    redirect_uris: list[str] = field(default_factory=list)
    signed_out_uris: list[str] = field(default_factory=list)
    token_seconds: int = 300
    scope: str = "backfills.admin messages.read"
    gives_refresh_token: bool = True
    renews_id_token: bool = True
    names_issuer: bool = False
    status: int = 200
    id_changes: dict[str, Any] = field(default_factory=dict)
    access_changes: dict[str, Any] = field(default_factory=dict)
    id_token: str | None = None
    answer_changes: dict[str, str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    token_requests: list[dict[str, str]] = field(default_factory=list)
    signed_out: list[str] = field(default_factory=list)
    revoked: set[str] = field(default_factory=set)
    issuer: Issuer = field(default_factory=Issuer)
    _asked: dict[str, dict[str, str]] = field(default_factory=dict)
    _codes: dict[str, tuple[float, dict[str, str]]] = field(default_factory=dict)
    _refresh_tokens: dict[str, dict[str, str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return self.issuer.url

    def environment(self) -> dict[str, str]:
        """The settings of an API whose people sign in here."""
        secret = {} if self.client_secret is None else {"REFEED_OIDC_CLIENT_SECRET": self.client_secret}
        return {
            "REFEED_OIDC_ISSUER": self.url,
            "REFEED_OIDC_AUDIENCE": "refeed",
            "REFEED_OIDC_CLIENT_ID": self.client_id,
            "REFEED_CONSOLE_URL": "http://127.0.0.1:{port}/console",
            "REFEED_SECRET": "one secret for every replica",
            **secret,
        }

    def register(self, api_url: str) -> None:
        self.redirect_uris.append(f"{api_url}/console/sign-in/callback")
        self.signed_out_uris.append(f"{api_url}/console/sign-in")

    def reset(self) -> None:
        """Do nothing wrong any more, and forget what was counted."""
        fresh = StrictProvider()
        for name in ("token_seconds", "scope", "gives_refresh_token", "names_issuer", "status", "id_changes"):
            setattr(self, name, getattr(fresh, name))
        for name in ("access_changes", "id_token", "answer_changes", "revoked", "refused", "token_requests"):
            setattr(self, name, getattr(fresh, name))
        self.signed_out.clear()

    def discovery(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize?tenant=shop",
            "token_endpoint": f"{self.url}/token",
            "end_session_endpoint": f"{self.url}/logout",
            "jwks_uri": f"{self.url}/keys",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": self.names_issuer,
        }

    def authorize(self, given: dict[str, str]) -> str:
        """The page on which a person signs in or declines."""
        # RFC 6749, 4.1.2.1: with a wrong redirect_uri or client it "MUST NOT automatically redirect".
        if given.get("client_id") != self.client_id:
            raise RefusedError("invalid_request", "RFC 6749, 4.1.2.1: the client identifier is missing or invalid")
        # RFC 6749, 3.1.2.3: "using simple string comparison".
        if given.get("redirect_uri") not in self.redirect_uris:
            raise RefusedError("invalid_request", "RFC 6749, 3.1.2.3: the redirection URI is not registered")
        if given.get("tenant") != "shop":
            raise RefusedError("invalid_request", "RFC 6749, 3.1: the endpoint's query MUST be retained")
        if given.get("response_type") != "code":
            raise RefusedError("unsupported_response_type", "RFC 6749, 3.1.1")
        # OpenID Connect Core 1.0, 3.1.2.1: "OpenID Connect requests MUST contain the openid scope value."
        if "openid" not in given.get("scope", "").split():
            raise RefusedError("invalid_scope", "OpenID Connect Core 1.0, 3.1.2.1: no openid")
        # RFC 7636, 4.4.1: "code challenge required"; 4.2: S256 is 43 characters of base64url.
        if given.get("code_challenge_method") != "S256" or len(given.get("code_challenge", "")) != 43:
            raise RefusedError("invalid_request", "RFC 7636, 4.4.1: code challenge required")
        # RFC 6819, 5.3.5 and OpenID Connect Core 1.0, 15.5.2: unguessable.
        if min(len(given.get("state", "")), len(given.get("nonce", ""))) < 43:
            raise RefusedError("invalid_request", "RFC 6749, 10.12: state and nonce MUST be hard to guess")
        ticket = secrets.token_urlsafe(16)
        self._asked[ticket] = given
        return (
            f'<!DOCTYPE html><title>Provider</title><a id="ann" href="/approve?ticket={ticket}">Sign in as ann</a>'
            f' <a id="decline" href="/decline?ticket={ticket}">Decline</a>'
        )

    def key_set(self) -> dict[str, Any]:
        return {"keys": self.issuer.keys}

    def approve(self, given: dict[str, str]) -> str:
        """Where the browser goes with a code."""
        asked = self._asked.pop(given["ticket"])
        code = secrets.token_urlsafe(32)
        self._codes[code] = (time.monotonic(), asked)
        named = {"iss": self.url} if self.names_issuer else {}
        return self._back(asked, {"code": code, "state": asked["state"], **named, **self.answer_changes})

    def decline(self, given: dict[str, str]) -> str:
        """Where the browser goes without one."""
        asked = self._asked.pop(given["ticket"])
        said = {"error": "access_denied", "error_description": "Ann declined. <b>Really</b>"}
        return self._back(asked, {**said, "state": asked["state"]})

    def _back(self, asked: dict[str, str], answer: dict[str, str]) -> str:
        return f"{asked['redirect_uri']}?{urlencode(answer)}"

    def token(self, given: dict[str, str], authorization: str | None) -> dict[str, Any]:
        """The answer of the token endpoint."""
        self.token_requests.append(given)
        self._check_client(given, authorization)
        with self._lock:
            if given.get("grant_type") == "authorization_code":
                asked = self._redeem(given)
                return self._issue(asked, asked["nonce"])
            if given.get("grant_type") == "refresh_token":
                return self._issue(self._refresh(given), None)
        raise RefusedError("unsupported_grant_type", "RFC 6749, 5.2")

    def _check_client(self, given: dict[str, str], authorization: str | None) -> None:
        if self.client_secret is None:
            if given.get("client_id") != self.client_id or authorization or "client_secret" in given:
                raise RefusedError("invalid_client", "RFC 6749, 3.2.1: a public client sends its client_id alone")
            return
        # RFC 6749, 2.3: "The client MUST NOT use more than one authentication method in each request."
        if not authorization or "client_secret" in given:
            raise RefusedError("invalid_client", "RFC 6749, 2.3.1: HTTP Basic, and nothing beside it")
        name, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if (unquote_plus(name), unquote_plus(secret)) != (self.client_id, self.client_secret):
            raise RefusedError("invalid_client", "RFC 6749, 5.2: client authentication failed")

    def _redeem(self, given: dict[str, str]) -> dict[str, str]:
        # RFC 6749, 4.1.2: "The client MUST NOT use the authorization code more than once."
        made_at, asked = self._codes.pop(given.get("code", ""), (0.0, {}))
        if not asked or time.monotonic() - made_at > CODE_SECONDS:
            raise RefusedError("invalid_grant", "RFC 6749, 4.1.2: the code is unknown, was used, or has expired")
        # RFC 6749, 4.1.3: "ensure that the redirect_uri parameter is present [...] and [...] identical".
        if given.get("redirect_uri") != asked["redirect_uri"]:
            raise RefusedError("invalid_grant", "RFC 6749, 4.1.3: another redirect_uri")
        verifier = given.get("code_verifier", "")
        if not VERIFIER.fullmatch(verifier):
            raise RefusedError("invalid_grant", "RFC 7636, 4.1: no code verifier")
        # RFC 7636, 4.6: BASE64URL-ENCODE(SHA256(ASCII(code_verifier))) == code_challenge
        digest = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
        if digest != asked["code_challenge"]:
            raise RefusedError("invalid_grant", "RFC 7636, 4.6: the code verifier is another one")
        return asked

    def _refresh(self, given: dict[str, str]) -> dict[str, str]:
        # RFC 9700, 4.14.2: rotation, so that each refresh token is good for one use.
        asked = self._refresh_tokens.pop(given.get("refresh_token", ""), None)
        if asked is None or "ann" in self.revoked:
            raise RefusedError("invalid_grant", "RFC 6749, 6: the refresh token is unknown, was used, or revoked")
        return asked

    def _issue(self, asked: dict[str, str], nonce: str | None) -> dict[str, Any]:
        now = int(time.time())
        common = {
            "sub": "ann",
            "email": "ann@shop.example",
            "email_verified": True,
            "exp": now + self.token_seconds,
        }
        access = {**common, "scope": self.scope, "jti": secrets.token_hex(8), **self.access_changes}
        identity = {**common, "aud": self.client_id, "nonce": nonce, **self.id_changes}
        answer = {
            "access_token": self.issuer.token(**access),
            "token_type": "Bearer",
            "expires_in": self.token_seconds,
            "id_token": self.id_token or self.issuer.token(**identity),
        }
        # OpenID Connect Core 1.0, 12.2: "it might not contain an id_token".
        if nonce is None and not self.renews_id_token:
            del answer["id_token"]
        if self.gives_refresh_token:
            answer["refresh_token"] = secrets.token_urlsafe(32)
            self._refresh_tokens[str(answer["refresh_token"])] = asked
        return answer

    def logout(self, given: dict[str, str]) -> str:
        """Where the browser goes after it has signed out."""
        # OpenID Connect RP-Initiated Logout 1.0, 2: the hint is an ID token of this provider for this client.
        key = generated_key("RS256").public_key()
        options = {"verify_exp": False}
        hint = jwt.decode(
            given["id_token_hint"], key, ["RS256"], audience=self.client_id, issuer=self.url, options=options
        )
        # 3: "MUST NOT perform post-logout redirection if the [...] value supplied does not exactly match".
        if given.get("post_logout_redirect_uri") not in self.signed_out_uris:
            raise RefusedError("invalid_request", "RP-Initiated Logout 1.0, 3: the address is not registered")
        self.signed_out.append(hint["sub"])
        return given["post_logout_redirect_uri"]


def answer_to(provider: StrictProvider, path: str, given: dict[str, str]) -> tuple[int, Any, str | None]:
    """Status, content and location of the answer to a browser, or to who reads the documents."""
    documents = {"/.well-known/openid-configuration": provider.discovery, "/keys": provider.key_set}
    if path in documents:
        return provider.status, documents[path](), None
    if path == "/authorize":
        return 200, provider.authorize(given), None
    moves = {"/approve": provider.approve, "/decline": provider.decline, "/logout": provider.logout}
    return (303, "", moves[path](given)) if path in moves else (404, "", None)


@contextmanager
def served_provider(**options: Any) -> Iterator[StrictProvider]:
    """Serve a provider on loopback until the block ends."""
    provider = StrictProvider(**options)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            try:
                self._answer(*answer_to(provider, parts.path, dict(parse_qsl(parts.query))))
            except RefusedError as refused:
                provider.refused.append(str(refused))
                self._answer(400, f"<!DOCTYPE html><title>Refused</title>{html.escape(str(refused))}")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            if provider.status != 200:
                self._answer(provider.status, {"error": "server_error"})
                return
            try:
                # RFC 6749, 3.2: "Parameters [...] MUST NOT be included more than once."
                pairs = parse_qsl(body, strict_parsing=True)
                assert len({name for name, _ in pairs}) == len(pairs)
                self._answer(200, provider.token(dict(pairs), self.headers["Authorization"]))
            except RefusedError as refused:
                provider.refused.append(str(refused))
                status = 401 if refused.error == "invalid_client" else 400
                self._answer(status, {"error": refused.error, "error_description": str(refused)})

        def _answer(self, status: int, content: Any, location: str | None = None) -> None:
            body = (content if isinstance(content, str) else json.dumps(content)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/html" if isinstance(content, str) else "application/json")
            self.send_header("Cache-Control", "no-store")
            self.send_header("Content-Length", str(len(body)))
            if location is not None:
                self.send_header("Location", location)
            self.end_headers()
            self.wfile.write(body)

    with serving(Handler) as address:
        # localhost is another site than 127.0.0.1, where the console is: cookies meet the rules of the web.
        provider.issuer.url = address.replace("127.0.0.1", "localhost")
        provider.issuer.publish("one")
        yield provider
