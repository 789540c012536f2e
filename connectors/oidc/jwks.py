"""An issuer's signing keys: fetched when needed, kept a while, and never fetched in a loop."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import httpx
import structlog

from connectors.oidc.documents import FETCH_SECONDS, endpoint_of, read_discovery, read_json
from model.errors import IdentityUnavailableError

_LOG: Final = structlog.get_logger()
# Keys are fetched again after this long, so that one that the issuer withdrew stops counting.
_FRESH_SECONDS: Final = 600.0
# While the issuer can't be reached, the keys that are known count for this long.
_STALE_SECONDS: Final = 86_400.0
# A kid that nobody knows may be a new key, or made up: a fetch for each would let callers flood the issuer.
_PAUSE_SECONDS: Final = 30.0


class SigningKeys:
    """The keys of one issuer by key id, for several threads.

    They come from ``jwks_url``, or from where the issuer's discovery document points; redirects are not followed.
    """

    def __init__(
        self, issuer: str, jwks_url: str | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._issuer = issuer
        self._jwks_url = jwks_url
        self._clock = clock
        # Held while keys are fetched; a caller with a key that still counts does not wait for it.
        self._asking = threading.Lock()
        self._keys: dict[str | None, Mapping[str, Any]] = {}
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._has_failed = False

    def find(self, kid: str | None) -> Mapping[str, Any] | None:
        """Return the key with this id as a JWK, or None; a token without an id means the only key there is.

        Raises:
            IdentityUnavailableError: the issuer does not answer, and what is known from before does not help.
        """
        found = self._pick(kid)
        if found is not None and self._age() < _FRESH_SECONDS:
            return found
        is_usable = found is not None and self._age() < _STALE_SECONDS
        if self._asking.acquire(blocking=not is_usable):
            try:
                self._refresh(kid)
            finally:
                self._asking.release()
        found = self._pick(kid)
        if self._age() >= _STALE_SECONDS or (found is None and self._has_failed):
            raise IdentityUnavailableError(issuer=self._issuer)
        return found

    def _age(self) -> float:
        return math.inf if self._fetched_at is None else self._clock() - self._fetched_at

    def _refresh(self, kid: str | None) -> None:
        """Fetch the keys, unless that was tried a moment ago or another thread has just fetched the key."""
        if self._pick(kid) is not None and self._age() < _FRESH_SECONDS:
            return
        now = self._clock()
        if self._tried_at is not None and now - self._tried_at < _PAUSE_SECONDS:
            return
        self._tried_at = now
        try:
            self._keys = self._fetch()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError) as exc:
            self._has_failed = True
            _LOG.warning("the issuer's keys can't be fetched", issuer=self._issuer, problem=str(exc)[:500])
        else:
            self._has_failed = False
            self._fetched_at = self._clock()

    def _pick(self, kid: str | None) -> Mapping[str, Any] | None:
        if kid is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        return self._keys.get(kid)

    def _fetch(self) -> dict[str | None, Mapping[str, Any]]:
        """Return the issuer's signing keys by id.

        Raises:
            httpx.HTTPError, httpx.InvalidURL: it does not answer, or with an error.
            ValueError: what it answers is not a key set.
        """
        with httpx.Client(timeout=FETCH_SECONDS, follow_redirects=False) as client:
            url = self._jwks_url or self._discover(client)
            listed = read_json(client, url).get("keys")
        if not isinstance(listed, list):
            raise ValueError(f"{url} has no list of keys")  # noqa: TRY004  what came is wrong, not its type here
        keys: dict[str | None, Mapping[str, Any]] = {}
        for key in listed:
            if isinstance(key, dict) and key.get("use", "sig") == "sig" and isinstance(key.get("kid", ""), str):
                keys[key.get("kid")] = key
        if not keys:
            raise ValueError(f"{url} has no key for signatures")
        return keys

    def _discover(self, client: httpx.Client) -> str:
        return endpoint_of(read_discovery(client, self._issuer), self._issuer, "jwks_uri")
