"""What a backfill would publish, found by running its query."""

import base64
import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from backfill.selection import render_time
from connectors.lake.query import ArchiveSnapshot, QueryLimits, run_query
from model.window import Window
from sql.dialect import LakeQuery

_SAMPLES: Final = 10
_SAMPLE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Plan:
    """Rows, bytes, origin and samples of a selection; ``bytes_scanned`` is what reading its files comes to."""

    window: dict[str, str | None]
    rows: int
    bytes: int
    bytes_scanned: int
    rows_by_topic: dict[str, int]
    first_publish_time: str | None
    last_publish_time: str | None
    samples: list[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """Return it in the API's shape."""
        return asdict(self)


def make_plan(snapshot: ArchiveSnapshot, window: Window, query: LakeQuery, limits: QueryLimits) -> Plan:
    """Run the query twice, for its sums and for its first rows, and return the plan.

    Raises:
        QueryError: the query fails, or needs more than it may use.
    """
    rows = f"FROM ({query.sql})"
    empty = run_query(snapshot, f"SELECT * {rows} LIMIT 0", query.parameters, limits)
    topic = "topic" if "topic" in empty.schema.names else "CAST(NULL AS VARCHAR)"
    time = "publish_time" if "publish_time" in empty.schema.names else "CAST(NULL AS TIMESTAMPTZ)"
    totals = (
        f"SELECT {topic} AS topic, count(*) AS rows, coalesce(sum(octet_length(data)), 0)::BIGINT AS bytes, "
        f"min({time}) AS first, max({time}) AS last {rows} GROUP BY 1 ORDER BY 2 DESC"
    )
    sums = run_query(snapshot, totals, query.parameters, limits).to_pylist()
    samples = run_query(snapshot, f"SELECT * {rows} LIMIT {_SAMPLES}", query.parameters, limits).to_pylist()
    return Plan(
        window={"from": render_time(window.start), "to": render_time(window.end)},
        rows=sum(row["rows"] for row in sums),
        bytes=sum(row["bytes"] for row in sums),
        bytes_scanned=snapshot.size_bytes,
        rows_by_topic={row["topic"]: row["rows"] for row in sums if row["topic"] is not None},
        first_publish_time=render_time(min((row["first"] for row in sums if row["first"]), default=None)),
        last_publish_time=render_time(max((row["last"] for row in sums if row["last"]), default=None)),
        samples=[_sample(row) for row in samples],
    )


def _sample(row: dict[str, Any]) -> dict[str, Any]:
    data, encoding = _shown(row["data"] or b"")
    return {
        "message_id": row["message_id"],
        "publish_time": render_time(row.get("publish_time")),
        "topic": row.get("topic"),
        "attributes": {entry["key"]: entry["value"] for entry in row["attributes"] or ()},
        "data": data,
        "encoding": encoding,
    }


def _shown(data: bytes) -> tuple[Any, str]:
    """Return a payload as JSON when it is, else as text, else as base64 of its first bytes."""
    if len(data) <= _SAMPLE_BYTES:
        try:
            return json.loads(data), "json"
        except ValueError:
            pass
    try:
        return data[:_SAMPLE_BYTES].decode(), "text"
    except UnicodeDecodeError:
        return base64.b64encode(data[:_SAMPLE_BYTES]).decode(), "base64"
