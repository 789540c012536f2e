"""What a backfill would publish, found by running its query."""

import base64
import codecs
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from backfill.plan.options import UNBOUNDED, SelectionBounds
from backfill.plan.price import Billing, price_of, price_replay
from backfill.plan.reach import render_subscriptions
from backfill.plan.validation import ValidRequest
from connectors.pubsub.client import SubscriptionInfo
from model.errors import SelectionTooLargeError
from model.message import (
    MAX_ATTRIBUTE_KEY_BYTES,
    MAX_ATTRIBUTE_VALUE_BYTES,
    MAX_ATTRIBUTES,
    REPLAY_TAGS,
    TOPIC_ATTRIBUTE,
)
from model.moment import render_time
from model.window import Window
from sql.validate import ValidatedQuery
from warehouse.figures import MAX_GROUPS, MAX_SHOWN_BYTES, QueryFigures

NOBODY_RECEIVES: Final = "nobody_receives"
# Returns what is said of each pipeline of a topic that does not run, given which of its subscriptions receive a
# replay.
IdleOf = Callable[[str, Mapping[str, bool]], Sequence[str]]


class TimeWindow(BaseModel):
    """A time window."""

    model_config = ConfigDict(populate_by_name=True)

    start: datetime = Field(alias="from", description="Start, inclusive.")
    end: datetime = Field(alias="to", description="End, exclusive.")

    @classmethod
    def of(cls, window: Window) -> Self:
        """Return a window as people see it."""
        return cls.model_validate({"start": window.start, "end": window.end})


class ReplayedTimes(TimeWindow):
    """The time window that contains all messages of the query's result."""

    column: Literal["ingest_time", "publish_time", "_PARTITIONTIME"] = Field(
        description=(
            "The time column to which `from` and `to` apply. This is `ingest_time` or `publish_time` if the "
            "query has a lower and an upper limit for that column. If both columns have limits, this is the "
            "column with the shorter window. In all other cases, this is `_PARTITIONTIME`."
        )
    )


class PlanWarning(BaseModel):
    """A warning about a backfill."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class PlanTarget:
    """Where a backfill would publish to: all subscriptions of the topic, and what every message gets added.

    ``is_order_at_risk`` is whether ordering keys would go out through Google's global endpoint.
    """

    topic: str
    replay_token: str
    subscriptions: Sequence[SubscriptionInfo]
    attributes: Mapping[str, str] = field(default_factory=dict)
    is_order_at_risk: bool = False

    def render_subscriptions(self) -> list[dict[str, Any]]:
        """Return the subscriptions, and whether a replay could pass the filter of each."""
        return render_subscriptions(self.subscriptions, {**self.attributes, REPLAY_TAGS[0]: self.replay_token})


def make_plan(
    valid: ValidRequest,
    figures: QueryFigures,
    target: PlanTarget,
    *,
    overlapping: Sequence[str] = (),
    idle_of: IdleOf = lambda _topic, _receives: (),
    bounds: SelectionBounds = UNBOUNDED,
    billing: Billing = Billing(),  # noqa: B008 - it is frozen
) -> dict[str, Any]:
    """Return the plan that ``figures`` of the request's query make, in the API's shape; None is unknown, never 0.

    ``overlapping`` are named by a warning, and so are the pipelines of ``idle_of``.
    """
    warnings = [
        *text_warnings(valid.query),
        *(note.to_json() for note in figures.notes),
        *_row_warnings(figures),
        *_size_warnings(figures, bounds),
        *warn_of_target(target, overlapping),
    ]
    receives = {each["name"]: each["receives_replay"] for each in target.render_subscriptions()}
    warnings += [{"code": "pipeline_not_running", "message": said} for said in idle_of(target.topic, receives)]
    price = price_replay(figures, target.subscriptions, billing)
    return {
        "window": {"from": render_time(valid.window.start), "to": render_time(valid.window.end)},
        "replays": render_replays(valid),
        "topic": target.topic,
        "rows": figures.rows,
        "bytes": figures.bytes,
        "bytes_scanned": figures.bytes_scanned,
        "price_usd": price_of(figures.bytes_billed, billing.query_usd_per_tib),
        "replay_price": None if price is None else price.model_dump(),
        "rows_by_topic": dict(figures.rows_by_topic),
        "rows_by_hour": [
            {"hour": f"{hour:%Y-%m-%dT%H}:00:00Z", "rows": rows}
            for hour, rows in sorted(figures.rows_by_hour.items())
        ],
        "first_publish_time": render_time(figures.first_publish_time),
        "last_publish_time": render_time(figures.last_publish_time),
        "messages_without_room": figures.without_room,
        "messages_with_refused_attributes": figures.refused,
        "messages_with_rewritten_attributes": figures.rewritten,
        "bounds": {"rows": bounds.max_rows, "bytes": bounds.max_bytes},
        "samples": [render_sample(row) for row in figures.samples],
        "subscriptions": target.render_subscriptions(),
        "warnings": warnings,
    }


def render_replays(valid: ValidRequest) -> dict[str, str | None]:
    """Return by which time a query chooses messages, and which ones: by their partitions where by no other."""
    column, times = valid.query.replayed_times or ("_PARTITIONTIME", valid.window)
    return {"column": column, "from": render_time(times.start), "to": render_time(times.end)}


def render_sample(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as people read it: data as JSON when it is, else as text, else as base64, cut at 4 KiB."""
    data, encoding = render_data(row["data"] or b"", MAX_SHOWN_BYTES)
    return {
        "message_id": row["message_id"],
        "publish_time": render_time(row["publish_time"]),
        "topic": row["topic"],
        "attributes": {str(entry["key"]): entry["value"] for entry in row["attributes"] or () if entry},
        "data": data,
        "encoding": encoding,
    }


def render_data(data: bytes, limit: int | None) -> tuple[Any, str]:
    """Return a payload and its encoding: as JSON when it is, else as text, else as base64.

    Of one that is longer than ``limit`` the first bytes are shown, never as JSON; None shows all. JSON whose
    numbers are not written as an answer would write them, such as 1.10, is shown as text.

    Example:
        >>> render_data(b'{"id": 1}', None), render_data(b"{}abc", 4), render_data(b"[1.10]", None)
        (({'id': 1}, 'json'), ('{}ab', 'text'), ('[1.10]', 'text'))
    """
    is_whole = limit is None or len(data) <= limit
    if is_whole:
        with suppress(ValueError, RecursionError):
            return _parse_json(data), "json"
    return render_text(data, limit)


def render_text(data: bytes, limit: int | None) -> tuple[str, str]:
    r"""Return the first bytes of a payload as its own text, else as base64, and which of the two it is.

    Example:
        >>> render_text(b'{"n": 1.10}', None), render_text(b"\xff", None)
        (('{"n": 1.10}', 'text'), ('/w==', 'base64'))
    """
    is_whole = limit is None or len(data) <= limit
    # A character that the cut goes through must not make a text binary.
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        return decoder.decode(data[:limit], final=is_whole), "text"
    except UnicodeDecodeError:
        return base64.b64encode(data[:limit]).decode(), "base64"


def _parse_json(data: bytes) -> Any:
    """Return the value that an answer in JSON can hold, with every number and key as the payload has it.

    Raises:
        ValueError: there is none.
    """
    # From bytes json would read UTF-16 and UTF-32 too: a binary number would be shown as another one.
    found = json.loads(
        data.decode(),
        parse_constant=_refuse_constant,
        parse_float=_parse_kept_float,
        parse_int=_parse_kept_int,
        object_pairs_hook=_parse_object,
    )
    # Half of a surrogate pair has no UTF-8.
    if b"\\ud" in data.lower():
        json.dumps(found, ensure_ascii=False).encode()
    return found


def _parse_kept_float(text: str) -> float:
    """Return a number that is written again as it stands; any other keeps the payload from being shown as JSON."""
    number = float(text)
    if math.isinf(number) or repr(number) != text:
        raise ValueError(text)
    return number


def _parse_kept_int(text: str) -> int:
    number = int(text)
    # -0 is another number to many a reader.
    if text == "-0":
        raise ValueError(text)
    return number


def _parse_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object, all of whose keys differ: of two that are the same an answer would lose one."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(pairs[-1][0])
    return found


def _refuse_constant(name: str) -> None:
    """Refuse NaN and Infinity: Python reads them, JSON does not have them."""
    raise ValueError(name)


def text_warnings(query: ValidatedQuery) -> list[dict[str, str]]:
    """Return what the query's text alone gives to warn of."""
    found: list[dict[str, str]] = []
    for name, is_rewritten in (("data", query.rewrites_data), ("attributes", query.rewrites_attributes)):
        if is_rewritten:
            message = f"The query computes {name}, so the published messages differ from the archived messages."
            found.append({"code": f"{name}_rewritten", "message": message})
    if not query.reads_archive:
        message = f"The messages come from {', '.join(query.tables)}, not from the archive."
        found.append({"code": "not_from_archive", "message": message})
    for warning in query.warnings:
        violation = warning.violation
        instead = f" Write {violation.rewrite}" if violation.rewrite else ""
        found.append({"code": violation.code, "message": f"Line {violation.line}: {violation.message}{instead}"})
    return found


def render_nothing_warning() -> dict[str, str]:
    """Return the warning that there is nothing to replay."""
    return {"code": "nothing_selected", "message": "The query selects nothing."}


def _row_warnings(figures: QueryFigures) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    if figures.rows == 0:
        found.append(render_nothing_warning())
    if figures.without_room:
        message = (
            f"With the tags, {figures.without_room:,} messages would be too large for Pub/Sub (at "
            f"most {MAX_ATTRIBUTES} attributes and 10 MB). They would become dead letters."
        )
        found.append({"code": "no_room_for_tags", "message": message})
    if figures.without_text:
        message = (
            f"{figures.without_text:,} messages have an attribute without a key or a value. They "
            "would become dead letters."
        )
        found.append({"code": "attribute_without_text", "message": message})
    if figures.refused:
        message = (
            f"{figures.refused:,} messages have an attribute that Pub/Sub refuses. They would "
            f"become dead letters. A key must have 1 to {MAX_ATTRIBUTE_KEY_BYTES} bytes and must "
            f"not begin with goog. A value can have at most {MAX_ATTRIBUTE_VALUE_BYTES:,} bytes."
        )
        found.append({"code": "attributes_refused", "message": message})
    if figures.rewritten:
        message = (
            f"{figures.rewritten:,} messages already have one of the attributes that the backfill adds, such "
            f"as the tag {TOPIC_ATTRIBUTE}. The replay overwrites these attributes."
        )
        found.append({"code": "attributes_rewritten", "message": message})
    if figures.is_cut:
        message = (
            f"rows_by_topic and rows_by_hour list only the {MAX_GROUPS:,} topics and hours with the most rows."
        )
        found.append({"code": "groups_cut", "message": message})
    return found


def _size_warnings(figures: QueryFigures, bounds: SelectionBounds) -> list[dict[str, str]]:
    """Return the warning that a backfill of this plan would fail, the selection being too large."""
    if figures.rows is None or figures.selection_bytes is None:
        return []
    try:
        bounds.check(figures.rows, figures.selection_bytes)
    except SelectionTooLargeError as exc:
        return [{"code": exc.code, "message": f"{exc.message} A backfill with this query would fail."}]
    return []


def warn_of_target(target: PlanTarget, overlapping: Sequence[str] = ()) -> list[dict[str, str]]:
    """Return what the target's subscriptions and the backfills under way give to warn of."""
    found: list[dict[str, str]] = []
    if not any(entry["receives_replay"] for entry in target.render_subscriptions()):
        message = f"No subscription of {target.topic} accepts the replayed messages, so nobody would receive them."
        found.append({"code": NOBODY_RECEIVES, "message": message})
    if target.is_order_at_risk:
        # "Order messages": "To be delivered in order, the publisher client must publish the messages in the same
        # region." https://cloud.google.com/pubsub/docs/ordering. The global endpoint is the nearest region's, and
        # from outside of Google Cloud "not guaranteed to be the closest geographically", so that it may change:
        # https://cloud.google.com/pubsub/docs/reference/service_apis_overview
        message = (
            "Messages of one ordering key keep their order only if they are published in the "
            "same region. With Pub/Sub's global endpoint, tasks may publish in different "
            "regions. Set REFEED_PUBSUB_ENDPOINT to the region of the topic's producers."
        )
        found.append({"code": "endpoint_is_global", "message": message})
    if overlapping:
        message = (
            f"Other backfills with an overlapping window publish to this topic now: {', '.join(overlapping)}."
        )
        found.append({"code": "backfill_overlaps", "message": message})
    return found
