"""The archived messages that a plan's samples are of, beside what the query makes of them."""

from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any, Final

from backfill.plan.plan import render_text
from model.moment import render_time
from model.principal import Principal
from model.query_parameter import QueryParameter
from model.window import Window
from warehouse.figures import MAX_SAMPLES, MAX_SHOWN_BYTES
from warehouse.queries import ArchiveQuery, Messages

# One query over the window's partitions; on BigQuery it is billed, and one that would read more fails unbilled.
MAX_BYTES: Final = 10 * 10**9
# An id is unique within its topic only: a sample without a topic may match this number of messages.
_MOST_ROWS: Final = 20 * MAX_SAMPLES


def compare_samples(
    samples: Sequence[Mapping[str, Any]],
    messages: Messages,
    window: Window,
    *,
    added: Mapping[str, str],
    reader: Principal,
    max_bytes: int,
) -> list[dict[str, Any]]:
    """Return for each of ``samples`` the archived message with its id in ``window``, and what goes out.

    There is none of a sample whose id no message of the window has, or several do. Payloads are their own text,
    cut at 4 KiB, so that 1.10 and 1.1 differ. ``added`` attributes are published too; tags are not shown.

    Raises:
        ForbiddenError: ``reader`` may not read messages of one of the topics.
        QueryTooLargeError: the query would be billed for more than ``max_bytes``.
        WarehouseError, QueryError: the archive can't be read.
    """
    wanted = {(row["message_id"], row["topic"]) for row in samples if row["message_id"] is not None}
    rows = (
        messages.read(_render_query(messages.table, sorted(wanted, key=str), window, max_bytes)) if wanted else []
    )
    originals = [_original_of(sample, rows) for sample in samples]
    for topic in sorted({original["topic"] for original in originals if original is not None}):
        reader.require_reading(topic)
    return [
        {
            "archived": None if original is None else _render_archived(original),
            "published": _render_side(sample, added),
        }
        for sample, original in zip(samples, originals, strict=True)
    ]


def _render_query(
    table: str, wanted: Sequence[tuple[str, str | None]], window: Window, max_bytes: int
) -> ArchiveQuery:
    """Return the one query for every message; ids and topics are parameters."""
    parameters: dict[str, QueryParameter] = {
        "low": {"type": "TIMESTAMP", "value": window.start.astimezone(UTC).isoformat()},
        "high": {"type": "TIMESTAMP", "value": window.end.astimezone(UTC).isoformat()},
    }
    places = []
    for number, (message_id, topic) in enumerate(wanted):
        parameters[f"id_{number}"] = {"type": "STRING", "value": message_id}
        place = f"message_id = @id_{number}"
        if topic is not None:
            parameters[f"topic_{number}"] = {"type": "STRING", "value": topic}
            place += f" AND topic = @topic_{number}"
        places.append(f"({place})")
    sql = (
        "SELECT message_id, topic, publish_time, ingest_time, attributes, BYTE_LENGTH(data) AS data_bytes, "
        f"SUBSTR(data, 1, {MAX_SHOWN_BYTES + 1}) AS data\nFROM `{table}`\n"
        "WHERE ((_PARTITIONTIME >= @low AND _PARTITIONTIME < @high) OR _PARTITIONTIME IS NULL) "
        f"AND ({' OR '.join(places)})\nLIMIT {_MOST_ROWS}"
    )
    return ArchiveQuery(sql, parameters, window, _MOST_ROWS, max_bytes)


def _original_of(sample: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    found = [
        row
        for row in rows
        if row["message_id"] == sample["message_id"] and sample["topic"] in {None, row["topic"]}
    ]
    return found[0] if len(found) == 1 else None


def _render_archived(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_render_side(row, {}),
        "topic": row["topic"],
        "publish_time": render_time(row["publish_time"]),
        "ingest_time": render_time(row["ingest_time"]),
        "data_bytes": row["data_bytes"] or 0,
    }


def _render_side(row: Mapping[str, Any], added: Mapping[str, str]) -> dict[str, Any]:
    whole = row["data"] or b""
    data, encoding = render_text(whole, MAX_SHOWN_BYTES)
    own = {str(entry["key"]): entry["value"] for entry in row["attributes"] or () if entry}
    return {
        "attributes": {**own, **added},
        "data": data,
        "encoding": encoding,
        "is_cut": len(whole) > MAX_SHOWN_BYTES,
    }
