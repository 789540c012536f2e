"""Values that variables of the environment take: each parser raises ValueError, whose text says what it takes."""

import json
import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import time
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from model.declaration import FieldSpec
from model.label import parse_label

# Standard Webhooks asks this of a secret.
_MIN_SECRET_BYTES: Final = 24
_MAX_SECRET_BYTES: Final = 64


def optional(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a parser that gives None for nothing."""
    return lambda text: parse(text) if text else None


def bucket_or_path(text: str) -> str:
    """Return the text, the scheme of a bucket in lower case: RFC 3986 takes capitals for the same.

    Example:
        >>> bucket_or_path("S3://bucket/Prefix"), bucket_or_path("/S3://x")
        ('s3://bucket/Prefix', '/S3://x')
    """
    return re.sub(r"(?i)\A(?:s3|gs)://", lambda found: found[0].lower(), text)


def lake(text: str) -> str:
    """Return a lake's URI or absolute folder, and refuse a folder that Delta Lake would look for elsewhere.

    Drivers of jobs have working folders of their own.
    """
    if "://" in text:
        return bucket_or_path(text)
    found = misread_part(text)
    if found is not None:
        raise ValueError(
            f"must be a folder without {found!r} in its path, because Delta Lake would look for "
            "another folder. Rename the folder"
        )
    try:
        return str(Path(text).expanduser().absolute())
    except RuntimeError as exc:
        raise ValueError("must be a folder of a user who exists") from exc


def misread_part(path: str) -> str | None:
    """Return what Delta Lake does not take as it is in the path of a folder, None where there is nothing.

    Example:
        >>> misread_part("/tmp/a%20b"), misread_part("/tmp/100% #1 [x]")
        ('%20', None)
    """
    found = re.search(r"%[0-9A-Fa-f]{2}|\\", path)
    return None if found is None else found[0]


def whole(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of whole numbers in a range, both ends included."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"\d{1,15}", text) or not low <= int(text) <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return int(text)

    return parse


def number(low: float, high: float) -> Callable[[str], float]:
    """Return a parser of decimal numbers in a range, both ends included."""

    def parse(text: str) -> float:
        if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text) or not low <= float(text) <= high:
            raise ValueError(f"must be a number from {low} to {high}")
        return float(text)

    return parse


def within(spec: FieldSpec, parse: Callable[[Any, Any], Callable[[str], float]] = whole) -> Callable[[str], float]:
    """Return a parser of numbers in the range of a declared field, for a setting that is one's default."""
    return parse(spec.least, spec.most)


def text(spec: FieldSpec) -> Callable[[str], str]:
    """Return the parser of a declared text, for a setting that is one's default."""
    assert spec.parse is not None, "a text is checked"
    return spec.parse


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a parser of one of these words."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return text

    return parse


def matching(pattern: str, wanted: str) -> Callable[[str], str]:
    """Return a parser of texts that match ``pattern`` whole; ``wanted`` names them."""

    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"must be {wanted}")
        return text

    return parse


runtime: Final = matching(r"\d{1,3}\.\d{1,3}", "a version such as 2.3")
project: Final = matching(r"(?:[a-z][a-z0-9.\-]*:)?[a-z][a-z0-9\-]{2,60}", "a Google Cloud project id")
table: Final = matching(r"(?:[a-z][a-z0-9.:\-]*\.)?\w+\.\w+", "dataset.table or project.dataset.table")
location: Final = matching(r"[A-Za-z][A-Za-z0-9\-]{1,40}", "a BigQuery location such as EU or europe-west1")
region: Final = matching(r"[a-z]+-[a-z]+\d+", "a region such as europe-west1")
memory: Final = matching(r"\d{1,6}(?:[kmgKMG][bB]?)", "a size such as 512m or 2GB")
job_store: Final = matching(
    r"sqlite:///.+|postgresql(?:\+psycopg)?://.+",
    "sqlite:///PATH or postgresql+psycopg://USER:PASSWORD@HOST/DATABASE",
)
emulator_host: Final = matching(
    r"(?:[\w.\-]+|\[[0-9A-Fa-f:]+\]):(?:[1-5]?\d{1,4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5])",
    "host:port, such as 127.0.0.1:8085",
)
_folder: Final = matching(
    r"(?:s3|gs)://[a-z0-9][a-z0-9._\-]{1,220}[a-z0-9](?:/[^#?\[\]*\r\n]*)?|/.*",
    "s3://bucket/prefix, gs://bucket/prefix, or the absolute path of a folder",
)


def folder(text: str) -> str:
    """Return the location of a bucket or of a folder."""
    return _folder(bucket_or_path(text))


subscription: Final = matching(r"[A-Za-z][A-Za-z0-9._~+%\-]{2,254}", "the id of a subscription")
kms_key: Final = matching(
    r"projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+",
    "projects/P/locations/L/keyRings/R/cryptoKeys/K",
)


def flag(text: str) -> bool:
    """Return whether it is true; nothing but true and false will do."""
    return matching("true|false", "true or false")(text) == "true"


def time_of_day(text: str) -> time | None:
    """Return a time of day in UTC, None for off."""
    if text == "off":
        return None
    if not re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", text):
        raise ValueError("must be a time of day in UTC such as 00:15, or empty for never")
    return time.fromisoformat(text)


def texts(text: str) -> Mapping[str, str]:
    """Return a JSON object of texts."""
    try:
        found = json.loads(text) if text.startswith("{") else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError('must be a JSON object with strings as values, such as {"spark.executor.memory": "2g"}')
    return found


def words(text: str) -> tuple[str, ...]:
    """Return what stands between commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def words_of(*choices: str) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of some of these words with commas between them, each once."""

    def parse(text: str) -> tuple[str, ...]:
        found = tuple(dict.fromkeys(words(text)))
        if not set(found) <= set(choices):
            raise ValueError(f"must be a list of {', '.join(choices)}, separated by commas")
        return found

    return parse


def tables(text: str) -> tuple[str, ...]:
    """Return the tables that stand between commas, each once."""
    return tuple(table(name) for name in dict.fromkeys(words(text)))


def labels(text: str) -> tuple[tuple[str, str], ...]:
    """Return labels of Google Cloud, sorted by key."""
    try:
        return tuple(sorted(parse_label(part) for part in text.split(",") if part.strip()))
    except ValueError as exc:
        raise ValueError("must be key=value,key=value with lower-case letters, digits, - and _") from exc


def price(text: str) -> float | None:
    """Return a price, None where it is unknown."""
    return None if text == "unknown" else number(0, 1_000_000)(text)


def emulator_url(text: str) -> str:
    """Return the URL of an emulator, which is given as one or as host:port."""
    if not re.fullmatch(r"(https?://)?[\w.\-]+(:\d{1,5})?/?", text):
        raise ValueError("must be host:port or a URL")
    return (text if "://" in text else f"http://{text}").rstrip("/")


def google_host(text: str) -> str:
    """Return ``host:port`` of Google's; credentials are sent there."""
    if not re.fullmatch(r"[a-z0-9.\-]+\.googleapis\.com(:\d{1,5})?", text):
        raise ValueError("must be a Google host, such as europe-west1-pubsub.googleapis.com")
    return text if ":" in text else f"{text}:443"


def web_address(text: str) -> str:
    """Return the address, without credentials, which would end up in logs; http only on this machine."""
    parts = urlsplit(text)
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback_name(parts.hostname or ""))
    if not is_safe or not parts.hostname or "@" in parts.netloc or re.search(r"[\s\\]", text):
        raise ValueError("must be an https:// address without a user name, or an http:// address on loopback")
    return text


def console_address(text: str) -> str:
    """Return the console's address in a browser, which ends in /console."""
    if not web_address(text).endswith("/console") or urlsplit(text).query or urlsplit(text).fragment:
        raise ValueError("must be the console's address, such as https://refeed.shop.example/console")
    return text


def openid_scopes(text: str) -> str:
    """Return scopes with spaces between them, of which one is openid."""
    if "openid" not in text.split():
        raise ValueError("must be a list of scopes, separated by spaces. One of them must be openid")
    return " ".join(text.split())


_OWN_PARAMETERS: Final = frozenset(
    {
        *("response_type", "response_mode", "client_id", "client_secret", "redirect_uri"),
        *("scope", "state", "nonce", "code_challenge", "code_challenge_method", "request", "request_uri"),
    }
)


def request_parameters(text: str) -> tuple[tuple[str, str], ...]:
    """Return further parameters of a sign-in's request, key=value with commas between them."""
    pairs = [word.partition("=") for word in words(text)]
    if any(not equals or not key or key in _OWN_PARAMETERS for key, equals, _ in pairs):
        raise ValueError("must be key=value,key=value, without the parameters that Refeed itself sets")
    return tuple((key, value) for key, _, value in pairs)


def notify_secret(text: str) -> str:
    """Return a webhook secret as Standard Webhooks writes it: ``whsec_`` and 24 to 64 bytes in base64.

    The text of its ValueError never holds the secret.
    """
    try:
        size = len(b64decode(text.removeprefix("whsec_"), validate=True))
    except ValueError:
        size = 0
    if not text.startswith("whsec_") or not _MIN_SECRET_BYTES <= size <= _MAX_SECRET_BYTES:
        raise ValueError(f"must be whsec_ and then {_MIN_SECRET_BYTES} to {_MAX_SECRET_BYTES} bytes in base64")
    return text


def is_loopback_host(header: str) -> bool:
    """Whether a Host header, with or without a port, names this machine and nothing else.

    Example:
        >>> [is_loopback_host(header) for header in ("localhost:8080", "[::1]", "shop.example", "a@localhost")]
        [True, True, False, False]
    """
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port
    except ValueError:
        return False
    return parts.netloc == header and "@" not in header and is_loopback_name(parts.hostname or "")


def is_loopback_name(host: str) -> bool:
    """Whether ``host`` always means this machine.

    Example:
        >>> [is_loopback_name(host) for host in ("localhost", "127.0.0.1", "::1", "localhost.example")]
        [True, True, True, False]
    """
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
