"""Verifies JSON Web Tokens: signature, issuer, audience and times; what they say is the caller's to judge."""

import hmac
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jwt

from connectors.oidc.jwks import SigningKeys
from model.errors import UnauthenticatedError

_LEEWAY_SECONDS: Final = 30
_MAX_TOKEN_CHARS: Final = 8192
_MIN_RSA_BITS: Final = 2048
# Asymmetric ones only: a public key must never become the shared secret of an HMAC. By the key's own type, and
# curve, so that the token's header chooses among what the key can do and nothing else.
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_ALGORITHMS: Final[Mapping[tuple[str, str | None], tuple[str, ...]]] = {
    ("RSA", None): _RSA,
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}


class TokenVerifier:
    """Accepts the tokens of one issuer that are meant for one of ``audience``, and no others."""

    def __init__(self, issuer: str, audience: Sequence[str], keys: SigningKeys) -> None:
        self._issuer = issuer
        self._audience = list(audience)
        self._keys = keys

    def read_claims(self, token: str) -> dict[str, Any]:
        """Return what the token claims; every claim counts as said by the issuer.

        Raises:
            UnauthenticatedError: the token is not good; ``why`` in the details says why, for the log.
            IdentityUnavailableError: the issuer's keys can't be had now.
        """
        if len(token) > _MAX_TOKEN_CHARS:
            raise _refused("the token is too long")
        try:
            header = jwt.get_unverified_header(token)
            key = self._find_key(header)
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                issuer=self._issuer,
                audience=self._audience,
                leeway=_LEEWAY_SECONDS,
                options={"require": ["exp", "iat", "iss", "aud", "sub"]},
            )
        # Deep JSON is the parser's RecursionError; all else that a token can be is one of the others.
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as exc:
            raise _refused(f"{type(exc).__name__}: {exc}") from exc
        if not claims["sub"]:
            raise _refused("the token has an empty subject")
        return claims

    def _find_key(self, header: Mapping[str, Any]) -> jwt.PyJWK:
        """Return the key that the header means, bound to the header's algorithm.

        A ``jku``, ``x5u`` or ``jwk`` in the header is never looked at: keys come from the issuer alone.
        """
        kid, algorithm = header.get("kid"), header.get("alg")
        if not isinstance(algorithm, str) or not any(algorithm in names for names in _ALGORITHMS.values()):
            raise _refused("the token's algorithm is not allowed")
        if "crit" in header:
            raise _refused("the token has critical extensions, and none is supported")
        found = self._keys.find(kid)
        if found is None:
            raise _refused("no key of the issuer has the token's key id")
        curve = None if found.get("kty") == "RSA" else found.get("crv")
        able = _ALGORITHMS.get((str(found.get("kty")), curve), ())
        if algorithm not in able or found.get("alg", algorithm) != algorithm:
            raise _refused("the token's algorithm does not match its key")
        key = jwt.PyJWK(dict(found), algorithm)
        if algorithm in _RSA and key.key.key_size < _MIN_RSA_BITS:
            raise _refused(f"the issuer's key has less than {_MIN_RSA_BITS} bits")
        return key


class IdTokenVerifier:
    """Verifies ID tokens of one issuer for one client: OpenID Connect Core 1.0, 3.1.3.7."""

    def __init__(self, verifier: TokenVerifier, client_id: str) -> None:
        """``verifier`` takes tokens of the issuer whose audience is ``client_id``."""
        self._verifier = verifier
        self._client_id = client_id

    def read_claims(self, token: str, *, nonce: str | None) -> dict[str, Any]:
        """Return what the token claims; ``nonce`` is that of the sign-in, None after a refresh.

        Raises:
            UnauthenticatedError: the token is not good, another client's, or another sign-in's.
            IdentityUnavailableError: the issuer's keys can't be had now.
        """
        claims = self._verifier.read_claims(token)
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if (several or "azp" in claims) and claims.get("azp") != self._client_id:
            raise _refused("the ID token was issued to another client")
        if nonce is not None and not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise _refused("the ID token belongs to another sign-in: its nonce differs")
        return claims


def _refused(why: str) -> UnauthenticatedError:
    return UnauthenticatedError(was_given=True, why=why[:300])
