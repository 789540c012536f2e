"""Secrets that stand in a manifest in clear text, found before it is kept anywhere."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

# The names under which people write secrets, and texts that are nothing else.
_NAME: Final = re.compile(
    r"(?:.*[_\-.])?(?:secret|password|passwd|token|api[_\-]?key|private[_\-]?key|credentials?)", re.IGNORECASE
)
_TEXTS: Final[Mapping[str, re.Pattern[str]]] = {
    "a password in an address": re.compile(r"[a-z][a-z0-9+.\-]*://[^/\s:@]*:[^/\s@]+@", re.IGNORECASE),
    "a private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "a key of Refeed": re.compile(r"\brf_[a-z2-7]{10}_[a-z2-7]{52}\b"),
    # https://cloud.google.com/docs/authentication/api-keys and access tokens of OAuth.
    "a key of Google": re.compile(r"\bAIza[0-9A-Za-z_\-]{35}|\bya29\.[0-9A-Za-z_\-]{20}"),
    # https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html
    "a key of AWS": re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    # https://github.blog/engineering/platform-security/behind-githubs-new-authentication-token-formats/
    "a token of GitHub": re.compile(r"\bgh[pousr]_[0-9A-Za-z]{36}"),
}


def find_secrets(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the path of each text that is a secret, and what it is; never the text.

    Example:
        >>> list(find_secrets({"a": ["postgresql://ann:pass@db/jobs"], "db_password": "x"}))
        [(('a', 0), 'a password in an address'), (('db_password',), 'the value of a name for secrets')]
    """
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from find_secrets(inner, (*path, str(name)))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from find_secrets(inner, (*path, number))
    elif isinstance(value, str) and value:
        # A parameter's value stands one name below the parameter's.
        names = [part for part in path if isinstance(part, str) and part != "value"]
        kinds = [kind for kind, pattern in _TEXTS.items() if pattern.search(value)]
        if kinds:
            yield path, kinds[0]
        elif names and _NAME.fullmatch(names[-1]):
            yield path, "the value of a name for secrets"
