"""Refeed's HTTP API from the terminal: JSON in and out, its problems as errors."""

import os
from collections.abc import Mapping
from typing import Any, Final, Self

import httpx

from model.errors import ApiUnavailableError, RequestRefusedError

DEFAULT_API_URL: Final = "http://127.0.0.1:8080"
# Validating and selecting may take a while on a large archive; the answer to a create comes before that.
_TIMEOUT_SECONDS: Final = 60.0


class RefeedApi:
    """The API at ``url``.

    Raises:
        ApiUnavailableError: any call, when nobody answers.
        RequestRefusedError: any call that the API answers with a problem; ``details`` is that problem.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._client = httpx.Client(base_url=self.url, timeout=_TIMEOUT_SECONDS)

    @classmethod
    def from_environment(cls) -> Self:
        """Return the API at REFEED_API_URL."""
        return cls(os.environ.get("REFEED_API_URL") or DEFAULT_API_URL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def is_ready(self) -> bool:
        """Say whether it takes requests."""
        try:
            return self._client.get("/readyz", timeout=2).is_success
        except httpx.TransportError:
            return False

    def create_backfill(self, request: Mapping[str, Any], *, idempotency_key: str | None = None) -> dict[str, Any]:
        """Create a backfill and return it; a key makes sending it twice harmless."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        return self._call("POST", "/backfills", json=request, headers=headers)

    def read_backfill(self, backfill_id: str) -> dict[str, Any]:
        """Return one backfill."""
        return self._call("GET", f"/backfills/{backfill_id}")

    def list_backfills(self, *, page_size: int, page_token: str | None = None) -> dict[str, Any]:
        """Return a page of backfills, the newest first."""
        params = {"page_size": str(page_size)} | ({"page_token": page_token} if page_token else {})
        return self._call("GET", "/backfills", params=params)

    def cancel_backfill(self, backfill_id: str) -> dict[str, Any]:
        """Cancel a backfill and return it."""
        return self._call("POST", f"/backfills/{backfill_id}:cancel")

    def _call(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        try:
            response = self._client.request(method, path, **arguments)
        except (httpx.TransportError, httpx.InvalidURL) as exc:
            raise ApiUnavailableError(
                f"Refeed's API at {self.url} does not answer ({exc}); start it with 'refeed up' or 'refeed api', "
                "or set REFEED_API_URL.",
                url=self.url,
            ) from exc
        try:
            body = response.json()
        except ValueError:
            body = {"detail": response.text[:500]}
        if response.is_success and isinstance(body, dict):
            return body
        problem = body if isinstance(body, dict) else {}
        said = problem.get("detail") or problem.get("title") or f"HTTP {response.status_code}"
        raise RequestRefusedError(f"{said} (HTTP {response.status_code})", **problem)
