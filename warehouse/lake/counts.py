"""An archive in a lake, counted: from its log where that is enough, else by a query."""

import threading
from collections.abc import Sequence
from datetime import datetime

from connectors.lake.data_files import FileStatistics
from connectors.lake.query import ArchiveSnapshot, QueryLimits, read_snapshot
from connectors.lake.query_process import QueryProcesses, Statement
from model.volume import HourVolumes
from model.window import Window
from warehouse.counts import Step, TopicVolume
from warehouse.lake.warehouse import LakeWarehouse


class LakeCounts:
    """Counts what lies in a lake; queries run in processes of their own."""

    def __init__(self, place: LakeWarehouse, processes: QueryProcesses, limits: QueryLimits) -> None:
        self._place = place
        self._processes = processes
        self._limits = limits
        self._lock = threading.Lock()
        self._archive = place.open_archive()

    def hours(self, window: Window) -> HourVolumes:
        """Return what came in by hour and topic, from the ends of the window's files; each is opened once."""
        with self._lock:
            return self._archive.volumes(window)

    def histogram(self, topic: str, window: Window, step: Step) -> dict[datetime, int]:
        """Return the topic's messages by step, with one query over two columns of the window's files."""
        place = self._place
        snapshot = read_snapshot(place.lake, place.archive_table, place.partitioning, window=window)
        sql = (
            f"SELECT date_trunc('{step}', ingest_time) AS start, count(*) AS messages FROM refeed_archive "  # noqa: S608
            "WHERE topic = $topic AND ingest_time >= $low AND ingest_time < $high GROUP BY 1"
        )
        bounds = {"topic": topic, "low": window.start, "high": window.end}
        (table,) = self._processes.run(snapshot, [Statement(sql, bounds)], self._limits)
        return {row["start"]: row["messages"] for row in table.to_pylist()}

    def volumes(self, window: Window) -> dict[str, TopicVolume]:
        """Return what came in by topic: from the log where a file has one topic, else by counting."""
        archive = self._place.open_archive()
        volumes: dict[str, TopicVolume] = {}
        mixed: list[FileStatistics] = []
        for found in archive.statistics(window):
            # A file of the first day may reach out of the window: then its rows are counted one by one.
            is_inside = found.first_ingest_time is not None and window.contains(found.first_ingest_time)
            if found.topic is None or not is_inside:
                mixed.append(found)
                continue
            volumes[found.topic] = volumes.get(found.topic, TopicVolume()).plus(
                found.file.rows, found.file.size_bytes, found.last_publish_time, found.last_ingest_time
            )
        if mixed:
            self._count(mixed, window, volumes)
        return volumes

    def _count(self, mixed: Sequence[FileStatistics], window: Window, volumes: dict[str, TopicVolume]) -> None:
        sql = (
            "SELECT topic, count(*) AS rows, max(publish_time) AS published, max(ingest_time) AS ingested "
            "FROM refeed_archive WHERE ingest_time >= $low AND ingest_time < $high GROUP BY 1"
        )
        snapshot = ArchiveSnapshot([found.file for found in mixed], self._place.partitioning)
        bounds = {"low": window.start, "high": window.end}
        (table,) = self._processes.run(snapshot, [Statement(sql, bounds)], self._limits)
        bytes_per_row = snapshot.size_bytes / max(1, sum(found.file.rows for found in mixed))
        for row in table.to_pylist():
            volumes[row["topic"]] = volumes.get(row["topic"], TopicVolume()).plus(
                row["rows"], round(row["rows"] * bytes_per_row), row["published"], row["ingested"]
            )
