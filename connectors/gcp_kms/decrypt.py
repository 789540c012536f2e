"""Decrypts small ciphertexts with a key of Cloud KMS, over its REST protocol, checksums included.

https://cloud.google.com/kms/docs/reference/rest/v1/projects.locations.keyRings.cryptoKeys/decrypt
"""

import base64
import os
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from model.errors import CredentialsMissingError, KeyServiceError
from model.variables import is_loopback_name

if TYPE_CHECKING:
    import requests

_ENDPOINT: Final = "https://cloudkms.googleapis.com"
# A stand-in's, or an endpoint of a private network.
ENDPOINT_VARIABLE: Final = "REFEED_KMS_ENDPOINT"
_SCOPES: Final = ("https://www.googleapis.com/auth/cloudkms",)
_CALL_SECONDS: Final = 10.0
_TRIES: Final = 3


def decrypt(key: str, ciphertext: bytes, *, endpoint: str | None = None) -> bytes:
    """Return what was encrypted with ``key``, a resource name ``projects/.../cryptoKeys/...``.

    A call whose answer's checksum does not fit, or that is not answered, is repeated. ``endpoint`` is
    REFEED_KMS_ENDPOINT or Google's; only one on this machine is called without credentials.

    Raises:
        KeyServiceError: the service refuses, does not answer, or answers damaged.
        CredentialsMissingError: there are no Google credentials.
    """
    # Every process reads its settings, and few have a secret here.
    import google_crc32c
    import requests
    from google.auth.exceptions import GoogleAuthError

    base = endpoint or os.environ.get(ENDPOINT_VARIABLE) or _ENDPOINT
    # "CRC32C(DecryptRequest.ciphertext)", as a decimal in a string, because JSON has no int64.
    body = {
        "ciphertext": base64.b64encode(ciphertext).decode(),
        "ciphertextCrc32c": str(google_crc32c.value(ciphertext)),
    }
    failure = KeyServiceError()
    with _open_session(base) as session:
        for _ in range(_TRIES):
            try:
                answer = session.post(f"{base}/v1/{key}:decrypt", json=body, timeout=_CALL_SECONDS)
            except (requests.RequestException, GoogleAuthError) as exc:
                failure = KeyServiceError(f"Cloud KMS does not answer: {type(exc).__name__}.", key=key)
                continue
            if answer.ok:
                if (plaintext := _read_plaintext(answer)) is not None:
                    return plaintext
                failure = KeyServiceError("Cloud KMS answered with damaged bytes.", key=key)
                continue
            failure = KeyServiceError(f"Cloud KMS refuses: {_reason_of(answer)}", key=key)
            if answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
                break
    raise failure


def _open_session(base: str) -> "requests.Session":
    import requests

    parts = urlsplit(base)
    if parts.scheme == "http" and is_loopback_name(parts.hostname or ""):
        return requests.Session()
    import google.auth
    import google.auth.exceptions
    import google.auth.transport.requests

    try:
        credentials, _ = google.auth.default(scopes=_SCOPES)
    except google.auth.exceptions.DefaultCredentialsError as exc:
        raise CredentialsMissingError from exc
    session: requests.Session = google.auth.transport.requests.AuthorizedSession(  # type: ignore[no-untyped-call]
        credentials
    )
    return session


def _read_plaintext(answer: "requests.Response") -> bytes | None:
    """Return the plaintext, None where its checksum does not fit."""
    import google_crc32c

    try:
        found: dict[str, Any] = answer.json()
        # protobuf's JSON leaves out what is empty.
        plaintext = base64.b64decode(found.get("plaintext", ""), validate=True)
        checksum = int(found["plaintextCrc32c"])
    except (ValueError, KeyError, TypeError):
        return None
    return plaintext if google_crc32c.value(plaintext) == checksum else None


def _reason_of(answer: "requests.Response") -> str:
    try:
        error = answer.json()["error"]
        return f"{error['status']}: {error['message']}"
    except (ValueError, KeyError, TypeError):
        return f"HTTP {answer.status_code}"
