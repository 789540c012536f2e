"""What a backfill would publish, found by running its query."""

import base64
import codecs
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from backfill.options import UNBOUNDED, SelectionBounds
from backfill.reach import receives_replay
from backfill.request import ValidRequest
from backfill.selection import check_selection, render_time
from connectors.lake.query import ArchiveSnapshot, QueryLimits
from connectors.lake.query_process import QueryProcesses, Statement
from connectors.pubsub.client import SubscriptionInfo
from model.errors import SelectionTooLargeError
from model.message import (
    MAX_ATTRIBUTE_KEY_BYTES,
    MAX_ATTRIBUTE_VALUE_BYTES,
    MAX_ATTRIBUTES,
    MAX_MESSAGE_BYTES,
    REPLAY_TAGS,
    redact_tokens,
)
from sql.validate import ValidatedQuery

MAX_SAMPLES: Final = 10
MAX_GROUPS: Final = 10_000
MAX_SHOWN_BYTES: Final = 4096
_TIB: Final = 2**40
# What an attribute takes on the wire beside its texts, and all tags together with theirs.
_ENTRY_BYTES: Final = 8
_TAGS_BYTES: Final = 1024
# The tags whose values a query need not give: topic, message_id, publish_time.
_OPTIONAL_TAGS: Final = ("topic", "message_id", "publish_time")


@dataclass(frozen=True, slots=True)
class PlanTarget:
    """Where a backfill would publish to: all subscriptions of the topic, and what every message gets added.

    ``is_order_at_risk`` says that ordering keys would go out through Google's global endpoint.
    """

    topic: str
    replay_token: str
    subscriptions: Sequence[SubscriptionInfo]
    attributes: Mapping[str, str] = field(default_factory=dict)
    is_order_at_risk: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What a backfill would publish, in the API's shape; None is what nobody knows, never 0.

    ``bytes`` are those of the payloads; ``bytes_scanned`` is what reading the files of the window comes to;
    ``rows_by_hour`` counts by publish_time. ``messages_without_room`` have no room for the tags: they would become
    dead letters, and so would ``messages_with_refused_attributes``. ``bounds`` are the limits of a selection.
    """

    window: dict[str, str | None]
    topic: str
    rows: int | None
    bytes: int | None
    bytes_scanned: int
    price_usd: float | None
    rows_by_topic: dict[str, int]
    rows_by_hour: list[dict[str, Any]]
    first_publish_time: str | None
    last_publish_time: str | None
    messages_without_room: int | None
    messages_with_refused_attributes: int | None
    bounds: dict[str, int | None]
    samples: list[dict[str, Any]]
    subscriptions: list[dict[str, Any]]
    warnings: list[dict[str, str]]

    def to_json(self) -> dict[str, Any]:
        """Return it in the API's shape."""
        return asdict(self)


def make_plan(
    valid: ValidRequest,
    snapshot: ArchiveSnapshot,
    target: PlanTarget,
    processes: QueryProcesses,
    limits: QueryLimits,
    *,
    overlapping: Sequence[str] = (),
    bounds: SelectionBounds = UNBOUNDED,
) -> Plan:
    """Run the query in a process of its own, once for its sums and once for its first rows; return the plan.

    The lake bills nobody: the price is None. ``overlapping`` are backfills that a warning names.

    Raises:
        QueryError: the query fails, or needs more than it may use.
    """
    columns = _columns(valid.query)
    statements = [
        Statement(_sums(valid.lake.sql, columns, target), valid.lake.parameters),
        Statement(_samples(valid.lake.sql, columns), valid.lake.parameters),
    ]
    has_look_up = valid.query.looks_up_columns and bool(snapshot.files)
    if has_look_up:
        statements.append(Statement(_column_bytes(snapshot, valid.query.missing_columns), {}))
    results = [table.to_pylist() for table in processes.run(snapshot, statements, limits)]
    sums = _Sums(results[0])
    look_up_bytes = int(results[2][0]["bytes"]) if has_look_up else 0
    warnings = [
        *text_warnings(valid.query),
        *_look_up_warnings(valid.query, look_up_bytes),
        *_row_warnings(sums),
        *warn_of_size(sums.total["rows"], int(sums.total["bytes"]), bounds),
        *warn_of_target(target, overlapping),
    ]
    return Plan(
        window={"from": render_time(valid.window.start), "to": render_time(valid.window.end)},
        topic=target.topic,
        rows=sums.total["rows"],
        bytes=int(sums.total["bytes"]),
        bytes_scanned=snapshot.size_bytes + look_up_bytes,
        price_usd=None,
        rows_by_topic=sums.by_topic,
        rows_by_hour=sums.by_hour,
        first_publish_time=render_time(sums.total["first"]),
        last_publish_time=render_time(sums.total["last"]),
        messages_without_room=sums.total["without_room"],
        messages_with_refused_attributes=sums.total["refused"],
        bounds=render_bounds(bounds),
        samples=[render_sample(row) for row in results[1]],
        subscriptions=render_subscriptions(target),
        warnings=warnings,
    )


def price_of(bytes_scanned: int | None, usd_per_tib: float | None) -> float | None:
    """Return what a query costs in US dollars, None when the price or the bytes are unknown.

    Example:
        >>> price_of(2**39, 6.25), price_of(2**39, None)
        (3.125, None)
    """
    if bytes_scanned is None or usd_per_tib is None:
        return None
    return bytes_scanned / _TIB * usd_per_tib


def render_subscriptions(target: PlanTarget) -> list[dict[str, Any]]:
    """Return the target's subscriptions and whether a replay could pass the filter of each."""
    known = {**target.attributes, REPLAY_TAGS[0]: target.replay_token}
    return [
        {
            "name": subscription.id,
            "filter": redact_tokens(subscription.filter),
            "receives_replay": not subscription.detached and receives_replay(subscription.filter, known),
        }
        for subscription in target.subscriptions
    ]


# --- what is asked -----------------------------------------------------------------------------------------------


def _columns(query: ValidatedQuery) -> dict[str, str]:
    """Return the text that reads each column of a message off the result; NULL where it is none of its type."""
    found = {column.name.lower(): column.type for column in query.output}
    found |= {name: "TIMESTAMP" if name == "publish_time" else "STRING" for name in query.missing_columns}
    wanted = {"topic": ("STRING", "VARCHAR"), "publish_time": ("TIMESTAMP", "TIMESTAMPTZ")}
    return {
        name: f'"{name}"' if found.get(name) == kind else f"CAST(NULL AS {lake})"
        for name, (kind, lake) in wanted.items()
    }


def _sums(sql: str, columns: Mapping[str, str], target: PlanTarget) -> str:
    """Return the one query over all rows: totals, rows by topic and rows by hour."""
    return f"""
        WITH selected AS (
            SELECT {columns["topic"]} AS topic, {columns["publish_time"]} AS publish_time,
                date_trunc('hour', {columns["publish_time"]}) AS hour,
                octet_length(data) AS size,
                coalesce({_is_without_room(columns, target)}, false) AS is_without_room,
                coalesce(len(list_filter(attributes, lambda a: a.key IS NULL OR a.value IS NULL)) > 0, false)
                    AS is_without_text,
                {_has_refused_attributes(target)} AS is_refused
            FROM ({sql})
        )
        SELECT grouping(topic) AS no_topic, grouping(hour) AS no_hour, topic, hour, count(*) AS rows,
            coalesce(sum(size), 0) AS bytes, min(publish_time) AS first, max(publish_time) AS last,
            count(*) FILTER (is_without_room) AS without_room, count(*) FILTER (is_without_text) AS without_text,
            count(*) FILTER (is_refused) AS refused
        FROM selected GROUP BY GROUPING SETS ((topic), (hour), ())
        QUALIFY row_number() OVER (PARTITION BY no_topic, no_hour ORDER BY rows DESC, topic, hour)
            <= {MAX_GROUPS + 1}
    """  # noqa: S608 - the gate has written sql, the rest is ours


def _is_without_room(columns: Mapping[str, str], target: PlanTarget) -> str:
    """Return the text that says of a row whether its attributes and the tags are too many or too large."""
    own = _own_attributes(target)
    tags = len(REPLAY_TAGS) - len(_OPTIONAL_TAGS) + len(target.attributes)
    given = " + ".join(f"CAST({columns.get(name, name)} IS NOT NULL AS INTEGER)" for name in _OPTIONAL_TAGS)
    entries = f"list_transform({own}, lambda a: strlen(a.key) + strlen(a.value) + {_ENTRY_BYTES})"
    added = sum(len(f"{name}{value}".encode()) + _ENTRY_BYTES for name, value in target.attributes.items())
    most = MAX_MESSAGE_BYTES - _TAGS_BYTES - added
    return (
        f"(len({own}) + {tags} + {given} > {MAX_ATTRIBUTES} "
        f"OR octet_length(data) + coalesce(list_sum({entries}), 0) > {most})"
    )


def _has_refused_attributes(target: PlanTarget) -> str:
    """Return the text that says of a row whether Pub/Sub refuses one of its attributes.

    https://cloud.google.com/pubsub/quotas#resource_limits has the sizes, and
    https://cloud.google.com/pubsub/docs/publisher#using-attributes the keys that are reserved.
    """
    is_refused = (
        f"strlen(a.key) NOT BETWEEN 1 AND {MAX_ATTRIBUTE_KEY_BYTES} OR starts_with(a.key, 'goog') "
        f"OR strlen(a.value) > {MAX_ATTRIBUTE_VALUE_BYTES}"
    )
    return f"coalesce(len(list_filter({_own_attributes(target)}, lambda a: {is_refused})) > 0, false)"


def _own_attributes(target: PlanTarget) -> str:
    """Return the text for a row's attributes that neither a tag nor an added attribute replaces."""
    taken = ", ".join(_quote(name) for name in (*REPLAY_TAGS, *target.attributes))
    return f"list_filter(attributes, lambda a: a.key NOT IN ({taken}))"


def _samples(sql: str, columns: Mapping[str, str]) -> str:
    # Cut where it is read: ten payloads can be 100 MB. One byte more tells a cut one from a whole one.
    return (
        f"SELECT message_id, {columns['publish_time']} AS publish_time, {columns['topic']} AS topic, "  # noqa: S608
        f"attributes[1:{MAX_ATTRIBUTES}] AS attributes, data[1:{MAX_SHOWN_BYTES + 1}] AS data "
        f"FROM ({sql}) LIMIT {MAX_SAMPLES}"
    )


def _column_bytes(snapshot: ArchiveSnapshot, missing: Sequence[str]) -> str:
    """Return the query for what the columns of the look-up take on disk, from the files' footers."""
    files = ", ".join(_quote(file.path) for file in snapshot.files)
    names = ", ".join(_quote(name) for name in dict.fromkeys(("message_id", "topic", "ingest_time", *missing)))
    return (
        f"SELECT coalesce(sum(total_compressed_size), 0) AS bytes FROM parquet_metadata([{files}]) "  # noqa: S608
        f"WHERE path_in_schema IN ({names})"
    )


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


# --- what is answered --------------------------------------------------------------------------------------------


class _Sums:
    """The groups of the one query, told apart."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        self.total = next(group for group in groups if group["no_topic"] and group["no_hour"])
        topics = [group for group in groups if not group["no_topic"]]
        hours = [group for group in groups if not group["no_hour"]]
        self.is_cut = max(len(topics), len(hours)) > MAX_GROUPS
        self.by_topic: dict[str, int] = {
            group["topic"]: group["rows"] for group in topics[:MAX_GROUPS] if group["topic"] is not None
        }
        self.by_hour = sorted(
            (
                {"hour": f"{group['hour']:%Y-%m-%dT%H}:00:00Z", "rows": group["rows"]}
                for group in hours[:MAX_GROUPS]
                if group["hour"] is not None
            ),
            key=lambda entry: str(entry["hour"]),
        )


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

    Of one that is longer than ``limit`` the first bytes are shown, never as JSON; None shows all.

    Example:
        >>> render_data(b'{"id": 1}', None), render_data(b"{}abc", 4)
        (({'id': 1}, 'json'), ('{}ab', 'text'))
    """
    is_whole = limit is None or len(data) <= limit
    if is_whole:
        with suppress(ValueError, RecursionError):
            return _parse_json(data), "json"
    # A character that the cut goes through must not make a text binary.
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        return decoder.decode(data[:limit], final=is_whole), "text"
    except UnicodeDecodeError:
        return base64.b64encode(data[:limit]).decode(), "base64"


def _parse_json(data: bytes) -> Any:
    """Return the value that an answer in JSON can hold.

    Raises:
        ValueError: there is none.
    """
    found = json.loads(data, parse_constant=_refuse_constant, parse_float=_parse_finite)
    # Half of a surrogate pair has no UTF-8.
    if b"\\ud" in data.lower():
        json.dumps(found, ensure_ascii=False).encode()
    return found


def _parse_finite(text: str) -> float:
    """Return a number; one that no float can hold keeps the payload from being shown as JSON."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(text)
    return number


def _refuse_constant(name: str) -> None:
    """Refuse NaN and Infinity: Python reads them, JSON does not have them."""
    raise ValueError(name)


def text_warnings(query: ValidatedQuery) -> list[dict[str, str]]:
    """Return what the query's text alone gives to warn of."""
    found: list[dict[str, str]] = []
    for name, is_rewritten in (("data", query.rewrites_data), ("attributes", query.rewrites_attributes)):
        if is_rewritten:
            message = f"The query computes {name}: what is published is not what was archived."
            found.append({"code": f"{name}_rewritten", "message": message})
    if not query.reads_archive:
        message = f"The messages come from {', '.join(query.tables)}, not from the archive."
        found.append({"code": "not_from_archive", "message": message})
    return found


def _look_up_warnings(query: ValidatedQuery, look_up_bytes: int) -> list[dict[str, str]]:
    if not query.looks_up_columns:
        return []
    names = ", ".join(query.missing_columns)
    message = (
        f"The query does not give {names}: looked up in the archive by message_id within the window, which "
        f"reads {look_up_bytes:,} bytes more. Select them, if you can."
    )
    return [{"code": "columns_looked_up", "message": message}]


def render_nothing_warning() -> dict[str, str]:
    """Return the warning that there is nothing to replay."""
    return {"code": "nothing_selected", "message": "The query selects nothing."}


def render_groups_warning() -> dict[str, str]:
    """Return the warning that there are more topics or hours than a plan names."""
    message = f"rows_by_topic and rows_by_hour name the largest {MAX_GROUPS:,} only."
    return {"code": "groups_cut", "message": message}


def _row_warnings(sums: _Sums) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    if not sums.total["rows"]:
        found.append(render_nothing_warning())
    if sums.total["without_room"]:
        message = (
            f"{sums.total['without_room']:,} messages have no room for the tags (Pub/Sub takes {MAX_ATTRIBUTES} "
            "attributes and 10 MB): they would become dead letters."
        )
        found.append({"code": "no_room_for_tags", "message": message})
    if sums.total["without_text"]:
        message = (
            f"{sums.total['without_text']:,} messages have an attribute without a key or a value: they would "
            "become dead letters."
        )
        found.append({"code": "attribute_without_text", "message": message})
    if sums.total["refused"]:
        message = (
            f"{sums.total['refused']:,} messages have an attribute that Pub/Sub refuses (a key has 1 to "
            f"{MAX_ATTRIBUTE_KEY_BYTES} bytes and does not begin with goog, a value has "
            f"{MAX_ATTRIBUTE_VALUE_BYTES:,} bytes at most): they would become dead letters."
        )
        found.append({"code": "attributes_refused", "message": message})
    if sums.is_cut:
        found.append(render_groups_warning())
    return found


def render_bounds(bounds: SelectionBounds) -> dict[str, int | None]:
    """Return what a selection may come to."""
    return {"rows": bounds.max_rows, "bytes": bounds.max_bytes}


def warn_of_size(rows: int, size_bytes: int, bounds: SelectionBounds) -> list[dict[str, str]]:
    """Return the warning that a backfill of this plan would fail, the selection being too large."""
    try:
        check_selection(rows, size_bytes, bounds)
    except SelectionTooLargeError as exc:
        return [{"code": exc.code, "message": f"{exc.message} A backfill of it would fail."}]
    return []


def warn_of_target(target: PlanTarget, overlapping: Sequence[str] = ()) -> list[dict[str, str]]:
    """Return what the target's subscriptions and the backfills under way give to warn of."""
    found: list[dict[str, str]] = []
    if not any(entry["receives_replay"] for entry in render_subscriptions(target)):
        message = f"No subscription of {target.topic} takes the replayed messages: nobody would receive them."
        found.append({"code": "nobody_receives", "message": message})
    if target.is_order_at_risk:
        # "Order messages": "To be delivered in order, the publisher client must publish the messages in the same
        # region." https://cloud.google.com/pubsub/docs/ordering. The global endpoint is the nearest region's, and
        # from outside of Google Cloud "not guaranteed to be the closest geographically", so that it may change:
        # https://cloud.google.com/pubsub/docs/reference/service_apis_overview
        message = (
            "Ordering keys keep their order within one region only, and Pub/Sub's global endpoint may be another "
            "one for another task: set REFEED_PUBSUB_ENDPOINT to the region that the topic's producers publish to."
        )
        found.append({"code": "endpoint_is_global", "message": message})
    if overlapping:
        message = f"{', '.join(overlapping)}: under way to the same topic, with a window that overlaps."
        found.append({"code": "backfill_overlaps", "message": message})
    return found
