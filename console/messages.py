"""Archived messages: one of them whole, and the search for them, which says what it has read."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

from console.forms import form_fault, read_time
from console.live import SIGNED_OUT, render_event
from console.payloads import lay_out_json, render_hex
from console.view import find_time, make_url, render, render_utc, show_time
from console.visit import PagePart, SignedOutError, Visit, problem_of
from model.errors import ApiUnavailableError, RequestRefusedError

# A list has the beginnings of payloads, which the API cuts.
PREVIEW_BYTES: Final = 1024
PAGE_SIZE: Final = 50
FILTERS: Final = ("attribute", "message_id", "text")
# Of one that is larger the page has the beginning, and the download all of it.
_MOST_SHOWN_BYTES: Final = 64 * 1024
_MOMENT: Final = timedelta(microseconds=1)
_DAY: Final = timedelta(days=1)


def read_messages(visit: Visit, topic: str, start: str, end: str, token: str | None = None) -> PagePart:
    """Return a page of messages that came in from ``start`` on, newest first, with previews."""
    wanted = _page_params(visit, start, end, token)
    return visit.read(f"messages {topic} {wanted}", lambda: visit.api.list_messages(topic, **wanted))


def read_message(visit: Visit) -> dict[str, Any]:
    """Return what the page of one message shows; ``id`` and ``at``, when it was ingested, are in its URL."""
    topic = visit.path_params["topic"]
    message_id, at = visit.params.get("id", ""), visit.params.get("at", "")
    found = visit.read(f"message {topic} {message_id} {at}", lambda: _find(visit, topic, message_id, at))
    context = {"title": f"Message {message_id}", "topic": topic, "message_id": message_id, "found": found}
    message = found.data
    if message is None:
        return {**context, "message": None}
    data = None
    if message["data_bytes"] <= _MOST_SHOWN_BYTES:
        data = visit.read(f"payload {topic} {message_id} {at}", lambda: _download(visit, topic, message))
    whole = None if data is None or data.problem is not None else data.data
    text = None if whole is None else _decode(whole)
    return {
        **context,
        "message": message,
        "data": data,
        "text": text,
        "laid_out": None if text is None else lay_out_json(text),
        "hex": None if whole is None else render_hex(whole),
        "base64": None if text is None else base64.b64encode(text.encode()).decode(),
        "only": _window_of(message),
    }


def read_payload(visit: Visit) -> bytes:
    """Return the whole payload of the message in the URL, as the archive has it.

    Raises:
        RequestRefusedError: the API has no such message, or its caller may not read it.
    """
    message = {"message_id": visit.params.get("id", ""), "ingest_time": visit.params.get("at", "")}
    return _download(visit, visit.path_params["topic"], message)


def find_scan_range(visit: Visit) -> tuple[datetime, datetime]:
    """Return the range of a search, which is in its URL.

    Raises:
        RequestRefusedError: it has none.
    """
    start, end = (read_time(visit.params, name) for name in ("from", "to"))
    if start is None or end is None or start >= end:
        raise form_fault("A search needs both times, `from` and `to`, and `from` must be before `to`.")
    return start, end


async def scan_messages(
    visit: Visit, topic: str, start: datetime, end: datetime, *, is_stopping: Callable[[], bool]
) -> AsyncIterator[str]:
    """Yield what a search finds, day by day and newest first, and before each day what has been read so far.

    It ends at ``PAGE_SIZE`` messages, with the address that goes on; a browser that leaves ends it too, with the
    query under way.
    """
    token, count = visit.params.get("page_token"), 0
    # A token of an earlier page has that page's day.
    for low, high in split_days(start, end):
        while not is_stopping():
            yield _event("progress", visit, {"count": count, "read": high, "end": end, "low": low, "high": high})
            wanted = _page_params(visit, render_utc(low), render_utc(high), token)
            try:
                part = PagePart(await visit.api.search_messages(topic, **wanted))
            except RequestRefusedError as refused:
                try:
                    part = PagePart(problem=problem_of(refused))
                except SignedOutError:
                    yield SIGNED_OUT
                    return
            except ApiUnavailableError as error:
                part = PagePart(problem={"code": error.code, "detail": error.message, "errors": []})
            if part.problem is not None:
                yield _event("failed", visit, {"problem": part.problem})
                return
            token = part.data["next_page_token"]
            count += len(part.data["messages"])
            yield _event("found", visit, {"messages": part.data["messages"], "topic": topic})
            if count >= PAGE_SIZE and (token or low > start):
                more = _address(visit, topic, start, high if token else low, token)
                yield _event("end", visit, {"count": count, "read": low, "end": end, "more": more})
                return
            if token is None:
                break
        await asyncio.sleep(0)
    yield _event("end", visit, {"count": count, "read": start, "end": end, "more": None})


def split_days(start: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Yield the UTC days of a range, newest first: a partition each, so that none is read for two of them.

    Example:
        >>> days = split_days(datetime(2026, 1, 1, 6, tzinfo=UTC), datetime(2026, 1, 2, 3, tzinfo=UTC))
        >>> [(low.day, low.hour, high.day, high.hour) for low, high in days]
        [(2, 0, 2, 3), (1, 6, 2, 0)]
    """
    high = end.astimezone(UTC)
    while high > start:
        midnight = (high - _MOMENT).replace(hour=0, minute=0, second=0, microsecond=0)
        low = max(midnight, start.astimezone(UTC))
        yield low, high
        high = low


def _page_params(visit: Visit, start: str, end: str, token: str | None) -> dict[str, str | None]:
    return {
        "from": start,
        "to": end,
        "page_size": str(PAGE_SIZE),
        "preview_bytes": str(PREVIEW_BYTES),
        "as_text": "true",
        "page_token": token or None,
        **{name: visit.params.get(name) or None for name in FILTERS},
    }


def _find(visit: Visit, topic: str, message_id: str, at: str) -> dict[str, Any] | None:
    window = _window_of({"ingest_time": at})
    wanted = {**window, "message_id": message_id, "page_size": "1"}
    wanted |= {"preview_bytes": str(PREVIEW_BYTES), "as_text": "true"}
    messages = visit.api.list_messages(topic, **wanted)["messages"]
    found: dict[str, Any] | None = messages[0] if messages else None
    return found


def _download(visit: Visit, topic: str, message: Mapping[str, Any]) -> bytes:
    return visit.api.download_message(topic, message["message_id"], **_window_of(message))


def _window_of(message: Mapping[str, Any]) -> dict[str, str]:
    """Return the narrowest range that has the message; of a time that is none the API says what is wrong."""
    ingested = find_time(message["ingest_time"])
    if ingested is None:
        return {"from": message["ingest_time"] or "-", "to": message["ingest_time"] or "-"}
    return {"from": render_utc(ingested), "to": render_utc(ingested + _MOMENT)}


def _decode(data: bytes) -> str | None:
    """Return the payload as text; None of bytes that are none, or that no page can show."""
    with suppress(UnicodeDecodeError):
        text = data.decode()
        return None if "\0" in text else text
    return None


def _address(visit: Visit, topic: str, start: datetime, end: datetime, token: str | None) -> str:
    filters = {name: visit.params.get(name) for name in FILTERS}
    bounds = {"from": render_utc(start), "to": render_utc(end), "page_token": token}
    return make_url(f"/scan/{quote(topic, safe='')}", visit.zone, **filters, **bounds)


def _event(name: str, visit: Visit, found: Mapping[str, Any]) -> str:
    context = {**found, "visit": visit, "name": name}
    data = {"html": render("scan.html", context), "more": found.get("more")}
    if "read" in found:
        data["read"] = str(show_time(found["read"], visit.zone))
    return render_event(name, data)
