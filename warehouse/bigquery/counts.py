"""An archive in BigQuery, counted and browsed: queries are billed and capped, counts remembered for minutes."""

import threading
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from connectors.bigquery.client import Clients
from connectors.bigquery.queries.job import NamedParameter, read_answer, typed
from connectors.bigquery.table_id import TableId
from connectors.bigquery.writes.volumes import NotedVolumes
from model.errors import TableNotFoundError
from model.volume import HourVolumes
from model.window import Window
from sql.template import fill
from sql.validate import parse_parameters
from warehouse.bigquery.runs import typed_as_given
from warehouse.counts import Step, TopicVolume, floor
from warehouse.queries import ArchiveQuery

# Volumes are looked at all day long, and one query over a week is enough for all who look.
_REMEMBERED_SECONDS: Final = 300.0
# A row is written within minutes of its time, and reaches its partition then.
_LATEST: Final = timedelta(days=1)
_MOST_ROWS: Final = 1_000_000
_QUERY_SECONDS: Final = 60.0
# At 50 bytes a message it is thousands of millions of messages; more is worth a query of one's own.
_MAX_BYTES_BILLED: Final = 200 * 10**9


class BigQueryCounts:
    """Counts what lies in BigQuery; safe to use from many threads.

    Topics' volumes are queried once in five minutes at most. A query that would read more than 200 GB fails
    unbilled, with QueryTooLargeError.
    """

    def __init__(self, archive: TableId, clients: Clients, *, expiration_days: int = 0) -> None:
        self._archive = str(archive)
        self._clients = clients
        self._hours_lock = threading.Lock()
        self._hours = NotedVolumes(clients, archive, expiration_days=expiration_days)
        self._lock = threading.Lock()
        self._volumes: dict[str, TopicVolume] = {}
        self._read_at: float | None = None

    def hours(self, window: Window) -> HourVolumes:
        """Return what came in by hour and topic, from the notes of the backup's attempts: nothing is billed."""
        with self._hours_lock:
            return self._hours.read(window)

    def volumes(self, window: Window) -> dict[str, TopicVolume]:
        """Return what has come in by topic since the window's start, as it was five minutes ago at most."""
        with self._lock:
            if self._read_at is None or time.monotonic() - self._read_at > _REMEMBERED_SECONDS:
                rows = self._ask("volumes", _bounds(window, "partitions_from", "low"))
                self._volumes = {
                    row["topic"]: TopicVolume(row["messages"], None, row["published"], row["ingested"])
                    for row in rows
                }
                self._read_at = time.monotonic()
            return dict(self._volumes)

    def histogram(self, topic: str, window: Window, step: Step) -> dict[datetime, int]:
        """Return the topic's messages by step; the query reads two columns of the window's partitions."""
        bounds = _bounds(window, "partitions_from", "partitions_to", "low", "high")
        found: Counter[datetime] = Counter()
        name = "minutes" if step == "minute" else "hours"
        for row in self._ask(name, {**bounds, **typed({"topic": topic})}):
            found[floor(row["start"], step)] += row["messages"]
        return dict(found)

    def _ask(self, name: str, parameters: Mapping[str, NamedParameter]) -> list[dict[str, Any]]:
        sql = fill(name, {"archive": self._archive}, {})
        return _read(self._clients, sql, parameters, maximum_bytes_billed=_MAX_BYTES_BILLED, max_rows=_MOST_ROWS)


class BigQueryMessages:
    """An archive's rows as people browse them; a query is billed, and one over its cap fails unbilled."""

    def __init__(self, archive: TableId, clients: Clients) -> None:
        self.table = str(archive)
        self._clients = clients

    def read(self, query: ArchiveQuery) -> list[dict[str, Any]]:
        """Return the query's rows, none without an archive; a query that is stopped is cancelled."""
        return _read(
            self._clients,
            query.sql,
            typed_as_given(parse_parameters(query.parameters)),
            maximum_bytes_billed=query.max_bytes_billed,
            max_rows=query.max_rows,
            should_stop=query.should_stop,
        )


def _read(
    clients: Clients, sql: str, parameters: Mapping[str, NamedParameter], **limits: Any
) -> list[dict[str, Any]]:
    """Return a query's rows as :func:`read_answer` does, none where there is no archive."""
    try:
        table, _ = read_answer(clients, sql, parameters, seconds=_QUERY_SECONDS, **limits)
    except TableNotFoundError:
        return []
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _bounds(window: Window, *names: str) -> dict[str, NamedParameter]:
    first = window.start.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    every = {
        "partitions_from": first,
        "partitions_to": window.end + _LATEST,
        "low": window.start,
        "high": window.end,
    }
    return typed({name: every[name] for name in names})
