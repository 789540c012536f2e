"""What the gate costs: milliseconds a query, from the text to the verdict, through the warm worker."""

import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from sql.validate import Policy, QueryRefusedError, validate_query
from sql.worker import GATE

POLICY = Policy("backup.messages", "shop", datetime(2026, 1, 10, tzinfo=UTC))
BOUND = "_PARTITIONTIME >= TIMESTAMP '2026-01-01' AND _PARTITIONTIME < TIMESTAMP '2026-01-02'"
NORMAL = ("plain", "payload", "join", "refused")
QUERIES = {
    "plain": f"SELECT data, attributes, message_id FROM backup.messages WHERE {BOUND}",
    "payload": (
        f"SELECT * FROM backup.messages WHERE {BOUND} AND topic = 'orders' AND EXISTS("
        "SELECT 1 FROM UNNEST(attributes) a WHERE a.key = 'x' AND a.value = 'y') "
        "AND JSON_VALUE(SAFE_CONVERT_BYTES_TO_STRING(data), '$.id') = '1'"
    ),
    "join": (
        f"WITH last AS (SELECT message_id, MAX(publish_time) AS t FROM backup.messages WHERE {BOUND} "
        "GROUP BY message_id) SELECT m.* FROM backup.messages m JOIN last ON m.message_id = last.message_id "
        "AND m.publish_time = last.t "
        f"WHERE {BOUND.replace('_PARTITION', 'm._PARTITION')} QUALIFY ROW_NUMBER() OVER (PARTITION BY m.topic "
        "ORDER BY m.publish_time DESC) <= 10"
    ),
    "union of 30": " UNION ALL ".join([f"SELECT * FROM backup.messages WHERE {BOUND} AND topic = 'orders'"] * 30),
    "refused": "SELECT data, nothing FROM other.table WHERE SESSION_USER() = 'x'",
    "nested types": "SELECT " + "DATE(" * 25 + "1" + ")" * 25 + " FROM backup.messages",
    "4,000 tokens": "SELECT " + "a + " * 1900 + "1 FROM backup.messages",
    "64 KiB": f"SELECT * FROM backup.messages WHERE {BOUND} AND topic = '{'x' * 65_000}'",
}


def run(rounds: int = 200) -> list[dict[str, Any]]:
    """Return median and 99th percentile a query in milliseconds, beside what they may be."""
    GATE.warm()
    results: list[dict[str, Any]] = []
    for name, text in QUERIES.items():
        times = sorted(_measure(text) for _ in range(rounds))
        for what, value, limit in (
            ("median", statistics.median(times), 10.0 if name in NORMAL else 250.0),
            ("p99", times[int(len(times) * 0.99)], 250.0),
        ):
            results.append(
                {"name": f"gate, {name}, {what}", "unit": "ms", "refeed": round(value, 2), "limit": limit}
            )
    return [*results, *_measure_clients(rounds)]


def _measure_clients(rounds: int) -> list[dict[str, Any]]:
    """Measure eight callers at once, as the service's threads are, with normal queries and with all of them."""
    results: list[dict[str, Any]] = []
    for name, texts in (
        ("normal queries", [QUERIES[name] for name in NORMAL]),
        ("all queries", list(QUERIES.values())),
    ):
        with ThreadPoolExecutor(8) as pool:
            times = sorted(pool.map(_measure, texts * rounds))
        for what, value in (("p99", times[int(len(times) * 0.99)]), ("longest", times[-1])):
            results.append(
                {
                    "name": f"gate, 8 clients, {name}, {what}",
                    "unit": "ms",
                    "refeed": round(value, 2),
                    "limit": 250.0,
                }
            )
    return results


def _measure(text: str) -> float:
    began = time.perf_counter()
    with suppress(QueryRefusedError):
        validate_query(text, {}, POLICY)
    return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
