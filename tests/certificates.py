"""Reads the system's certificates once for all HTTP clients of a test process, which takes 20 ms of CPU."""

import functools
import os
import ssl
from typing import Any

from httpx._transports import default

_create = default.create_ssl_context


@functools.cache
def _shared(*_: str | None) -> ssl.SSLContext:
    return _create()


def create(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
    if verify is not True or cert is not None or not trust_env:
        return _create(verify=verify, cert=cert, trust_env=trust_env)
    return _shared(*(os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR")))


def install() -> None:
    """Let the clients of this test process that trust the system's certificates share one context."""
    default.create_ssl_context = create
