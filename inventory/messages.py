"""The message browser: archived messages of one topic and window, newest first, a bounded page at a time."""

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from backfill.plan.plan import render_data, render_text
from model.errors import MessageNotFoundError, RequestInvalidError
from model.message import parse_resource_id
from model.moment import render_time
from model.query_parameter import QueryParameter
from model.window import Window
from warehouse.figures import MAX_SHOWN_BYTES
from warehouse.queries import ArchiveQuery, Messages

DEFAULT_PAGE_SIZE: Final = 20
MAX_PAGE_SIZE: Final = 1000
# Whole messages have 10 MB each; a page of them has to fit into memory.
MAX_FULL_PAGE_SIZE: Final = 10
MAX_ATTRIBUTES: Final = 10
# A query of BigQuery reads the payloads of every topic in the window's partitions, as its estimate counts them.
DEFAULT_MAX_BYTES_BILLED: Final = 10 * 10**9
_USUAL: Final = timedelta(hours=1)
# A row is written within minutes of its time, and reaches its partition then.
_LATEST: Final = timedelta(days=1)
_COLUMNS: Final = "message_id, topic, publish_time, ingest_time, ordering_key, attributes"


@dataclass(frozen=True, slots=True)
class MessageRequest:
    """Which messages somebody wants to see: those of ``topic`` that were ingested in [start, end).

    Without bounds it is the last hour. A message has to have every one of ``attributes``, and ``text`` somewhere
    in its payload, which one that is not UTF-8 never has. A payload is cut at ``preview_bytes``, 4 KiB at most,
    unless ``is_full``, and with ``is_text`` it is its own text or base64, never JSON. ``max_bytes_billed`` bounds
    the query's bill where the archive is in BigQuery.
    """

    topic: str
    start: datetime | None = None
    end: datetime | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    message_id: str | None = None
    text: str | None = None
    preview_bytes: int = MAX_SHOWN_BYTES
    is_full: bool = False
    is_text: bool = False
    page_size: int = DEFAULT_PAGE_SIZE
    page_token: str | None = None
    max_bytes_billed: int = DEFAULT_MAX_BYTES_BILLED

    def fingerprint(self) -> str:
        """Return a digest of what a page's token is good for."""
        about = [self.topic, sorted(self.attributes.items()), self.message_id]
        if self.text is not None:
            about.append(self.text)
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Messages in the API's shape, newest first, and the token of those before them."""

    window: dict[str, str | None]
    messages: list[dict[str, Any]]
    next_page_token: str | None


@dataclass(frozen=True, slots=True)
class MessageData:
    """One message's whole payload, as the archive has it, and the window that it was looked for in."""

    window: dict[str, str | None]
    data: bytes


class MessageBrowser:
    """Reads pages of messages; each page is one query."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    def read_page(self, request: MessageRequest, should_stop: Callable[[], bool] = lambda: False) -> MessagePage:
        """Return a page of messages, newest first by ingestion, then by publication.

        Raises:
            InvalidNameError: that is no topic's id.
            RequestInvalidError: the window, the attributes or the token is wrong.
            QueryTooLargeError: BigQuery would bill more than ``max_bytes_billed``, or the page is too large.
            QueryStoppedError: ``should_stop`` ended the query.
            WarehouseError, QueryError: the archive can't be read.
        """
        parse_resource_id(request.topic)
        if len(request.attributes) > MAX_ATTRIBUTES:
            raise RequestInvalidError.of(
                "attributes_too_many", f"At most {MAX_ATTRIBUTES} attributes are allowed.", "query:attribute"
            )
        window, last = _place_of(request)
        size = min(request.page_size, MAX_FULL_PAGE_SIZE if request.is_full else MAX_PAGE_SIZE)
        rows = self._read(request, window, last, size + 1, should_stop)
        limit = None if request.is_full else request.preview_bytes
        token = _render_token(request, window, rows[size - 1]) if len(rows) > size else None
        return MessagePage(_bounds(window), [_render(row, limit, request.is_text) for row in rows[:size]], token)

    def read_data(self, request: MessageRequest, should_stop: Callable[[], bool] = lambda: False) -> MessageData:
        """Return the whole payload of the newest message with the id of ``request``, as the archive has it.

        Raises:
            MessageNotFoundError: no such message came in within the window.
            InvalidNameError, RequestInvalidError, QueryTooLargeError, QueryStoppedError: as :meth:`read_page`.
            WarehouseError, QueryError: the archive can't be read.
        """
        parse_resource_id(request.topic)
        window, _ = _place_of(request)
        whole = replace(request, is_full=True)
        rows = self._read(whole, window, None, 1, should_stop)
        if not rows:
            place = " to ".join(map(str, _bounds(window).values()))
            message = f"No message {request.message_id} of {request.topic} arrived from {place}."
            raise MessageNotFoundError(message, topic=request.topic)
        return MessageData(_bounds(window), bytes(rows[0]["data"] or b""))

    def _read(
        self,
        request: MessageRequest,
        window: Window,
        last: tuple[datetime, datetime, str] | None,
        limit: int,
        should_stop: Callable[[], bool],
    ) -> list[dict[str, Any]]:
        query = _render_query(self._messages.table, request, window, last, limit)
        return self._messages.read(replace(query, should_stop=should_stop))


def _render_query(
    table: str, request: MessageRequest, window: Window, last: tuple[datetime, datetime, str] | None, limit: int
) -> ArchiveQuery:
    """Return the one query of a page; every value that a caller gives is a parameter."""
    first_day = window.start.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    parameters: dict[str, QueryParameter] = {
        # Rows reach their partition up to a day after their time; those of the write buffer have none yet.
        "partitions_from": _moment(first_day),
        "partitions_to": _moment(window.end + _LATEST),
        "low": _moment(window.start),
        "high": _moment(window.end),
        "topic": _text(request.topic),
    }
    conditions = [
        "((_PARTITIONTIME >= @partitions_from AND _PARTITIONTIME <= @partitions_to) OR _PARTITIONTIME IS NULL)",
        "topic = @topic AND ingest_time >= @low AND ingest_time < @high",
    ]
    if request.message_id is not None:
        parameters["message_id"] = _text(request.message_id)
        conditions.append("message_id = @message_id")
    if request.text is not None:
        parameters["text"] = _text(request.text)
        conditions.append("STRPOS(SAFE_CONVERT_BYTES_TO_STRING(data), @text) > 0")
    for number, (key, value) in enumerate(sorted(request.attributes.items())):
        names = f"key_{number}", f"value_{number}"
        parameters |= {names[0]: _text(key), names[1]: _text(value)}
        is_it = f"a.key = @{names[0]} AND a.value = @{names[1]}"
        conditions.append(f"EXISTS (SELECT 1 FROM UNNEST(attributes) AS a WHERE {is_it})")  # noqa: S608 - as below
    if last is not None:
        ingested, published, message_id = last
        parameters |= {"ingested": _moment(ingested), "published": _moment(published), "after": _text(message_id)}
        conditions.append(
            "(ingest_time < @ingested OR (ingest_time = @ingested AND (publish_time < @published OR "
            "(publish_time = @published AND message_id < @after))))"
        )
    # One byte more distinguishes a cut payload from a whole one.
    data = "data" if request.is_full else f"SUBSTR(data, 1, {request.preview_bytes + 1})"
    sql = (
        f"SELECT {_COLUMNS}, BYTE_LENGTH(data) AS data_bytes, {data} AS data\n"
        f"FROM `{table}`\nWHERE {' AND '.join(conditions)}\n"
        f"ORDER BY ingest_time DESC, publish_time DESC, message_id DESC\nLIMIT {limit}"
    )
    return ArchiveQuery(sql, parameters, window, limit, request.max_bytes_billed)


def _bounds(window: Window) -> dict[str, str | None]:
    return {"from": render_time(window.start), "to": render_time(window.end)}


def _render(row: Mapping[str, Any], limit: int | None, is_text: bool) -> dict[str, Any]:
    render = render_text if is_text else render_data
    data, encoding = render(row["data"] or b"", limit)
    size = row["data_bytes"] or 0
    return {
        "message_id": row["message_id"],
        "topic": row["topic"],
        "publish_time": render_time(row["publish_time"]),
        "ingest_time": render_time(row["ingest_time"]),
        "ordering_key": row["ordering_key"] or "",
        "attributes": {str(entry["key"]): entry["value"] for entry in row["attributes"] or () if entry},
        "data": data,
        "encoding": encoding,
        "data_bytes": size,
        "is_cut": limit is not None and size > limit,
    }


def _place_of(request: MessageRequest) -> tuple[Window, tuple[datetime, datetime, str] | None]:
    """Return the window, and the message after which the page begins; a token has the window of the first page."""
    if request.page_token is not None:
        return _parse_token(request)
    try:
        end = datetime.now(UTC) if request.end is None else request.end.astimezone(UTC)
        start = end - _USUAL if request.start is None else request.start.astimezone(UTC)
        # Partitions are looked for a day after the end.
        end + _LATEST
    except OverflowError:
        raise RequestInvalidError.of(
            "window_invalid", "`from` or `to` is outside of the calendar.", "query:from"
        ) from None
    if end <= start:
        raise RequestInvalidError.of("window_invalid", "`from` must be earlier than `to`.", "query:from")
    return Window(start, end), None


def _render_token(request: MessageRequest, window: Window, last: Mapping[str, Any]) -> str:
    moments = [window.start, window.end, last["ingest_time"], last["publish_time"]]
    document = [request.fingerprint(), *(moment.isoformat() for moment in moments), last["message_id"]]
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")


def _parse_token(request: MessageRequest) -> tuple[Window, tuple[datetime, datetime, str]]:
    token = request.page_token or ""
    try:
        found = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        fingerprint, *texts, message_id = found
        start, end, ingested, published = (_aware(text) for text in texts)
        window = Window(start, end)
        end + _LATEST
    except (binascii.Error, ValueError, TypeError, OverflowError, RecursionError):
        raise RequestInvalidError.of(
            "page_token_invalid", "The page_token belongs to another list.", "query:page_token"
        ) from None
    if fingerprint != request.fingerprint() or not isinstance(message_id, str):
        raise RequestInvalidError.of(
            "page_token_invalid", "The page_token belongs to another list of messages.", "query:page_token"
        )
    return window, (ingested, published, message_id)


def _aware(text: Any) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(text)
    return moment.astimezone(UTC)


def _moment(moment: datetime) -> QueryParameter:
    return {"type": "TIMESTAMP", "value": moment.astimezone(UTC).isoformat()}


def _text(text: str) -> QueryParameter:
    return {"type": "STRING", "value": text}
