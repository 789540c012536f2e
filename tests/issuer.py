"""An issuer of tokens, for any test: import ``issuer`` and ``keys_by_kind`` into a conftest."""

import json
import time
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.worlds.http import Answer, answering

_GENERATED = {
    "RS256": lambda: rsa.generate_private_key(public_exponent=65537, key_size=2048),
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "weak": lambda: rsa.generate_private_key(public_exponent=65537, key_size=1024),
}


@cache
def _made(kind: str, number: int) -> Any:
    assert number >= 0
    return _GENERATED[kind]()


def generated_key(kind: str, number: int = 0) -> Any:
    """One private key of a kind and number a run: making them takes a while."""
    return _made(kind, number)


@dataclass
class Issuer:
    """An OpenID Connect issuer on loopback: discovery, keys, tokens; ``status`` is what it answers with."""

    url: str = ""
    status: int = 200
    keys: list[dict[str, Any]] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    discovery: dict[str, Any] = field(default_factory=dict)

    def publish(self, kid: str | None, kind: str = "RS256", number: int = 0, **changes: Any) -> None:
        """Add a public key to those that it tells."""
        algorithm = jwt.get_algorithm_by_name("ES256" if kind == "ES256" else "RS256")
        jwk = algorithm.to_jwk(generated_key(kind, number).public_key(), as_dict=True)
        named = {} if kid is None else {"kid": kid}
        self.keys.append({**jwk, "use": "sig", **named, **changes})

    def claims(self, **changes: Any) -> dict[str, Any]:
        now = int(time.time())
        said = {"iss": self.url, "aud": "refeed", "sub": "7", "iat": now, "exp": now + 300, **changes}
        return {name: value for name, value in said.items() if value is not None}

    def token(
        self,
        *,
        kid: Any = "one",
        key: Any = None,
        algorithm: str = "RS256",
        header: dict[str, Any] | None = None,
        **changes: Any,
    ) -> str:
        """A token of its own, with claims changed, or left out with None."""
        named = {} if kid is None else {"kid": kid}
        signing = generated_key("RS256") if key is None else key
        return jwt.encode(self.claims(**changes), signing, algorithm, headers={**named, **(header or {})})


@pytest.fixture
def issuer():
    known = Issuer()

    def answer(call):
        known.fetched.append(call.path)
        found = known.discovery if call.path.startswith("/.well-known/") else {"keys": known.keys}
        return Answer(known.status, json.dumps(found).encode(), {"Location": f"{known.url}/elsewhere"})

    with answering(answer) as known.url:
        known.discovery = {"issuer": known.url, "jwks_uri": f"{known.url}/keys"}
        known.publish("one")
        yield known


@pytest.fixture(name="generated_key")
def keys_by_kind():
    """The function that gives a private key by kind and number."""
    return generated_key
