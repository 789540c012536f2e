"""Messages as their callers may see them: dead letters and samples, for those who may read them."""

import base64
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from backfill.plan.plan import render_text
from backfill.run.dead_letters import DeadLetter
from model.principal import Principal

_HIDDEN: Final = {"attributes": None, "data": None, "encoding": None}


def hide_samples(
    plan: Mapping[str, Any], *, reader: Principal, is_as_archived: bool, rewrites_topic: bool
) -> dict[str, Any]:
    """Return the plan with the payloads and attributes of samples that ``reader`` may read, and None for others.

    A sample is of the topic that the archive has its message under, where that was looked up, else of the one that
    the query gives it. Unless its query ``is_as_archived``, that says nothing, and its topic is unknown. A query
    that ``rewrites_topic`` can also put a payload in the place of the topic.
    """
    is_hidden = rewrites_topic and not reader.may_read(None)
    samples = []
    for sample in plan["samples"]:
        archived = (sample.get("comparison") or {}).get("archived")
        is_shown = reader.may_read((archived or sample)["topic"] if is_as_archived else None)
        hidden = {**_HIDDEN, **({"comparison": None} if "comparison" in sample else {})}
        if is_hidden:
            hidden["topic"] = None
        samples.append(sample if is_shown else {**sample, **hidden})
    return {**plan, "samples": samples, **({"rows_by_topic": {}} if is_hidden else {})}


def show_letter(letter: DeadLetter, *, reader: Principal, preview_bytes: int | None) -> dict[str, Any]:
    """Return a dead letter in the API's shape; payload and attributes are None for who may not read its topic.

    The payload is its own text or base64, cut at ``preview_bytes``; without them it is whole, in base64.
    """
    fields: dict[str, Any] = {**asdict(letter), "data_bytes": len(letter.data), "is_cut": False}
    if not reader.may_read(letter.topic):
        return {**fields, **_HIDDEN}
    if preview_bytes is None:
        return {**fields, "data": base64.b64encode(letter.data).decode(), "encoding": "base64"}
    return {**fields, **_preview(letter.data, preview_bytes)}


def show_pipeline_letter(
    letter: Mapping[str, Any], *, reader: Principal, preview_bytes: int | None
) -> dict[str, Any]:
    """Return a dead letter of the pipeline as :func:`show_letter` does; without ``preview_bytes`` no payload."""
    if preview_bytes is None or letter["data"] is None or not reader.may_read(letter["topic"]):
        return {**letter, **_HIDDEN, "is_cut": None}
    return {**letter, **_preview(letter["data"], preview_bytes)}


def _preview(data: bytes, limit: int) -> dict[str, Any]:
    """Return a payload, or its first bytes and one more, cut at ``limit``."""
    shown, encoding = render_text(data, limit)
    return {"data": shown, "encoding": encoding, "is_cut": len(data) > limit}
