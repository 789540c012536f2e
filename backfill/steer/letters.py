"""A backfill's dead letters as its callers may see them: payloads cut, and shown to those who may read them."""

import base64
from typing import Any

from backfill.plan.plan import render_text
from backfill.run.dead_letters import DeadLetter
from model.principal import Principal


def show_letter(letter: DeadLetter, *, reader: Principal, preview_bytes: int | None) -> dict[str, Any]:
    """Return a dead letter in the API's shape; payload and attributes are None for who may not read its topic.

    The payload is its own text or base64, cut at ``preview_bytes``; without them it is whole, in base64.
    """
    fields: dict[str, Any] = {**letter.to_json(), "data_bytes": len(letter.data), "is_cut": False}
    if not reader.may_read(letter.topic):
        return {**fields, "attributes": None, "data": None, "encoding": None}
    if preview_bytes is None:
        return {**fields, "data": base64.b64encode(letter.data).decode(), "encoding": "base64"}
    data, encoding = render_text(letter.data, preview_bytes)
    return {**fields, "data": data, "encoding": encoding, "is_cut": len(letter.data) > preview_bytes}
