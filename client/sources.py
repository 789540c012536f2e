"""What the API says of the registry's sources: their figures, versions and dead letters."""

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx


class SourceCalls:
    """The API's calls about sources; see :class:`client.api.RefeedApi`."""

    def __init__(self, call: Callable[..., dict[str, Any]], request: Callable[..., httpx.Response]) -> None:
        self._call = call
        self._request = request

    def list(self) -> dict[str, Any]:
        """Return every source: topic, staging and reporting, with what went from one to the next."""
        return self._call("GET", "/sources")

    def read(self, name: str) -> dict[str, Any]:
        """Return one source, with all findings that its stream has counted."""
        return self._call("GET", _path(name))

    def list_versions(self, name: str, **wanted: str | None) -> dict[str, Any]:
        """Return the versions of a source's tables; ``wanted`` are event_type, from and to, None for none."""
        return self._call("GET", f"{_path(name)}/versions", params=_given(wanted))

    def list_letters(self, source: str, *, page_size: int, **wanted: str | None) -> dict[str, Any]:
        """Return dead letters of a source, the latest first.

        ``wanted`` are from, code, path and preview_bytes, None for none.
        """
        params = {"source": source, "page_size": str(page_size), **_given(wanted)}
        return self._call("GET", "/dead-letters/messages", params=params)

    def download_letter(self, source: str, topic: str, message_id: str, start: str) -> bytes:
        """Return the payload of a dead letter of a source; ``start`` is when it became one."""
        path = f"/dead-letters/messages/{quote(message_id, safe='')}/data"
        return self._request("GET", path, params={"source": source, "topic": topic, "from": start}).content


def _path(name: str) -> str:
    return f"/sources/{quote(name, safe='')}"


def _given(wanted: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in wanted.items() if value is not None}
