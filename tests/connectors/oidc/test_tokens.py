import base64
import hashlib
import hmac
import json
import time
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from connectors.oidc.jwks import SigningKeys
from connectors.oidc.tokens import TokenVerifier
from model.errors import IdentityUnavailableError, UnauthenticatedError


@pytest.fixture
def verifier(issuer: Any) -> TokenVerifier:
    return TokenVerifier(issuer.url, ["refeed", "refeed-too"], SigningKeys(issuer.url))


def refusal_of(verifier: TokenVerifier, token: str) -> str:
    with pytest.raises(UnauthenticatedError) as raised:
        verifier.read_claims(token)
    why: str = raised.value.details["why"]
    assert why not in raised.value.message
    return why


def encode(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def forged(header: dict[str, Any], claims: dict[str, Any], secret: bytes | None) -> str:
    """A token signed with HMAC over ``secret``, or not signed, as no library would make it."""
    signed = f"{encode(header)}.{encode(claims)}"
    digest = b"" if secret is None else hmac.new(secret, signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"sub": "ann", "scope": "backfills.read"}, id="good"),
        pytest.param({"aud": ["other", "refeed-too"]}, id="one of several audiences"),
        pytest.param({"kid": None}, id="no key id, for the only key"),
    ],
)
def test_a_token_that_is_right_is_read(issuer: Any, verifier: TokenVerifier, changes: dict[str, Any]) -> None:
    claims = verifier.read_claims(issuer.token(**changes))
    assert (claims["sub"], claims.get("scope")) == (changes.get("sub", "7"), changes.get("scope"))


def test_clocks_may_differ_by_half_a_minute(issuer: Any, verifier: TokenVerifier) -> None:
    now = int(time.time())
    assert verifier.read_claims(issuer.token(exp=now - 10, iat=now + 10))


def test_an_elliptic_key_signs_too(issuer: Any, verifier: TokenVerifier, generated_key: Any) -> None:
    issuer.publish("ec", "ES256")
    assert verifier.read_claims(issuer.token(kid="ec", key=generated_key("ES256"), algorithm="ES256"))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"aud": "other"}, "Audience doesn't match"),
        ({"aud": None}, 'missing the "aud" claim'),
        ({"iss": "https://evil.example"}, "Invalid issuer"),
        ({"iss": None}, 'missing the "iss" claim'),
        ({"exp": int(time.time()) - 3600}, "Signature has expired"),
        ({"exp": None}, 'missing the "exp" claim'),
        ({"exp": "soon"}, "Expiration Time claim (exp) must be an integer"),
        ({"nbf": int(time.time()) + 3600}, "not yet valid"),
        ({"iat": int(time.time()) + 3600}, "not yet valid"),
        ({"sub": None}, 'missing the "sub" claim'),
        ({"sub": ""}, "empty subject"),
    ],
)
def test_a_claim_that_is_not_right_is_refused(issuer, verifier, changes, why):
    assert why in refusal_of(verifier, issuer.token(**changes))


def test_a_token_that_nobody_signed_is_refused(issuer: Any, verifier: TokenVerifier) -> None:
    for algorithm in ("none", "None", "NONE", "", None, 7):
        token = forged({"alg": algorithm, "kid": "one"}, issuer.claims(), None)
        refusal_of(verifier, token)


def test_the_public_key_is_no_shared_secret(issuer: Any, verifier: TokenVerifier, generated_key: Any) -> None:
    public = generated_key("RS256").public_key()
    shapes = [
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.PEM, PublicFormat.PKCS1),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        json.dumps(issuer.keys[0]).encode(),
        b"",
    ]
    for secret in shapes:
        token = forged({"alg": "HS256", "kid": "one"}, issuer.claims(), secret)
        assert refusal_of(verifier, token) == "the token's algorithm is not allowed"


def test_a_shared_secret_among_the_keys_does_not_count(issuer: Any, verifier: TokenVerifier) -> None:
    issuer.keys.append({"kty": "oct", "kid": "shared", "k": encode("secret"), "alg": "RS256"})
    token = issuer.token(kid="shared")
    assert refusal_of(verifier, token) == "the token's algorithm does not match its key"


def test_a_key_is_used_for_its_own_algorithm_alone(issuer, verifier, generated_key):
    issuer.publish("fixed", number=0, alg="RS512")
    assert refusal_of(verifier, issuer.token(kid="fixed")) == "the token's algorithm does not match its key"
    assert verifier.read_claims(issuer.token(kid="fixed", algorithm="RS512"))
    crossed = issuer.token(kid="one", key=generated_key("ES256"), algorithm="ES256")
    assert refusal_of(verifier, crossed) == "the token's algorithm does not match its key"


def test_a_key_of_somebody_else_is_refused(issuer: Any, verifier: TokenVerifier, generated_key: Any) -> None:
    stolen = generated_key("RS256", 1)
    assert "Signature verification failed" in refusal_of(verifier, issuer.token(key=stolen))


def test_keys_that_the_token_brings_along_are_not_looked_at(issuer, verifier, generated_key):
    own = generated_key("RS256", 1)
    header = {"jku": f"{issuer.url}/evil", "x5u": f"{issuer.url}/evil", "jwk": issuer.keys[0]}
    refusal_of(verifier, issuer.token(key=own, header=header))
    refusal_of(verifier, issuer.token(key=own, kid="evil", header=header))
    assert "/evil" not in issuer.fetched


@pytest.mark.parametrize(
    "kid",
    ["../../etc/passwd", "/dev/null", "' OR '1'='1", "one\x00", "ONE", "x" * 5000, "", ["one"], {"a": 1}, 1, True],
)
def test_a_strange_key_id_is_only_one_that_nobody_has(issuer: Any, verifier: TokenVerifier, kid: Any) -> None:
    header, payload = {"alg": "RS256", "kid": kid}, issuer.claims()
    refusal_of(verifier, forged(header, payload, b"x"))


def test_critical_extensions_are_refused(issuer: Any, verifier: TokenVerifier) -> None:
    token = issuer.token(header={"crit": ["exp"]})
    assert "critical" in refusal_of(verifier, token) or "crit" in refusal_of(verifier, token)


def test_a_weak_key_of_the_issuer_does_not_count(issuer: Any, verifier: TokenVerifier, generated_key: Any) -> None:
    issuer.publish("weak", "weak")
    token = forged({"alg": "RS256", "kid": "weak"}, issuer.claims(), b"x")
    assert "less than 2048 bits" in refusal_of(verifier, token)


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "..",
        "a.b.c",
        "a.b.c.d.e",
        "é.é.é",
        "\udcff",
        "x" * 9000,
        f"{base64.urlsafe_b64encode(b'[' * 3000).decode()}.e30.",
        f"{encode([])}.{encode({})}.",
        f"{encode({'alg': 'RS256', 'kid': 'one'})}.{encode([])}.",
        f"{encode({'alg': 'RS256', 'kid': 'one', 'b64': False})}.x.y",
    ],
)
def test_what_is_no_token_is_refused(verifier: TokenVerifier, token: str) -> None:
    refusal_of(verifier, token)


def test_an_issuer_that_does_not_answer_is_no_fault_of_the_token(issuer: Any, verifier: TokenVerifier) -> None:
    issuer.status = 500
    with pytest.raises(IdentityUnavailableError):
        verifier.read_claims(issuer.token())
