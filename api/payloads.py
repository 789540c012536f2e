"""Payloads as answers: bytes to download, and what the audit log has of who read them."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from fastapi import Request, Response

_BYTES: Final = "application/octet-stream"
PAYLOAD_ANSWER: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The payload.",
        "content": {_BYTES: {"schema": {"type": "string", "format": "binary"}}},
    }
}


def answer_payload(call: Request, data: bytes, place: str, message_id: str | None) -> Response:
    """Return a payload as a download, and note for the audit log that it was read from ``place``."""
    call.state.read = f"{len(data)} bytes of {place}, message {message_id}"
    return Response(data, media_type=_BYTES, headers={"Content-Disposition": "attachment"})


def note_letters(call: Request, letters: Iterable[Mapping[str, Any]]) -> None:
    """Note for the audit log of which topics dead letters were read; those without a payload were not."""
    read = [letter for letter in letters if letter["data"] is not None]
    if read:
        topics = ", ".join(sorted({letter["topic"] or "an unknown topic" for letter in read}))
        call.state.read = f"{len(read)} dead letters of {topics}"
