"""References to secrets: where one stands, so that specifications, logs and listings never hold it itself."""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from model.errors import RefeedError

_PLACE: Final = re.compile(r"(env|file):(.+)")
_WRAPPED: Final = re.compile(
    r"gcp-kms:(projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/:]+):((?:env|file):.+)"
)
_PREFIXES: Final = ("env:", "file:", "gcp-kms:")
REFERENCE_FORMS: Final = "env:NAME, file:PATH or gcp-kms:KEY:file:PATH"

# The key's resource name and a ciphertext -> the plaintext; raises RefeedError.
Decrypt = Callable[[str, bytes], bytes]


def is_reference(text: str) -> bool:
    """Whether ``text`` is meant to refer to a secret, so that it is never taken for one.

    Example:
        >>> is_reference("env:SHOP_KEY"), is_reference("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
        (True, False)
    """
    return text.startswith(_PREFIXES)


def is_wrapped(text: str) -> bool:
    """Whether ``text`` begins like a reference to a secret that a key service has to decrypt."""
    return text.startswith("gcp-kms:")


def parse_reference(text: str) -> str:
    """Return ``text`` when it is a whole reference; the text of its ValueError never shows it.

    Example:
        >>> parse_reference("file:/run/secrets/aws")
        'file:/run/secrets/aws'
    """
    if _PLACE.fullmatch(text) is None and _WRAPPED.fullmatch(text) is None:
        raise ValueError(f"must be {REFERENCE_FORMS}, not the secret itself")
    return text


def read_secret(reference: str, env: Mapping[str, str], decrypt: Decrypt) -> str:
    """Return the secret that ``reference`` leads to, without white space at its ends.

    ``env:NAME`` is a variable of ``env`` and ``file:PATH`` a file. ``gcp-kms:KEY:file:PATH`` is a file with the
    ciphertext as ``gcloud kms encrypt`` writes it, ``gcp-kms:KEY:env:NAME`` a variable with its base64; KEY is
    ``projects/P/locations/L/keyRings/R/cryptoKeys/K``.

    Raises:
        ValueError: it is no reference, or leads to nothing; the text has the reference and never the secret.

    Example:
        >>> read_secret("env:KEY", {"KEY": "s3cret"}, decrypt=None)
        's3cret'
    """
    wrapped = _WRAPPED.fullmatch(parse_reference(reference))
    try:
        if wrapped is None:
            secret = _read_place(reference, env).decode().strip()
        else:
            key, place = wrapped.groups()
            content = _read_place(place, env)
            ciphertext = base64.b64decode(content, validate=True) if place.startswith("env:") else content
            secret = decrypt(key, ciphertext).decode().strip()
    except (KeyError, OSError, UnicodeDecodeError, binascii.Error) as exc:
        raise ValueError(f"{reference} can't be read") from exc
    except RefeedError as exc:
        raise ValueError(f"{reference} can't be decrypted: {exc.message}") from exc
    if not secret:
        raise ValueError(f"{reference} is empty")
    return secret


def _read_place(place: str, env: Mapping[str, str]) -> bytes:
    kind, _, name = place.partition(":")
    return env[name].encode() if kind == "env" else Path(name).read_bytes()
