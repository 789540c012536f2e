"""The volumes of an archive in BigQuery, from the notes of its attempts; no query runs and nothing is billed."""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from connectors.bigquery.client import Clients
from connectors.bigquery.queries.reader import open_session, read_session
from connectors.bigquery.table_id import TableId
from connectors.bigquery.tables.specs import ATTEMPTS, ATTEMPTS_DAYS
from connectors.bigquery.writes.attempt_notes import NoteKey, note_key
from connectors.bigquery.writes.attempts import COMMIT_SECONDS
from connectors.bigquery.writes.write_streams import is_committed
from model.errors import TableNotFoundError
from model.volume import HourCounts, HourVolumes, add_counts, hours_of, volumes_of
from model.window import Window

# A read session takes a second or two, and people look all day long.
REMEMBERED_SECONDS: Final = 30.0
# Notes of this time are read again: by clocks and buffers a note may be readable later than its own time.
_OVERLAP: Final = timedelta(hours=2)
_COLUMNS: Final = ("lease", "epoch", "stream", "attempt", "kind", "document", "noted_at")
_BEGINNING: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Note:
    """One attempt of the archive: its volumes, or None where an earlier Refeed noted none."""

    lease: str
    epoch: int
    key: NoteKey
    noted_at: datetime
    volumes: HourCounts | None
    times: Window
    streams: tuple[str, ...]


class NotedVolumes:
    """Reads volumes from the notes of ``archive``; one object per thread.

    A note is written before its commit, and every attempt but a lease's newest is settled: it is in the archive,
    or noted as abandoned. The newest one counts from when BigQuery says that its write streams are committed.
    Notes are kept for 30 days: hours before are unknown.
    """

    def __init__(self, clients: Clients, archive: TableId, *, expiration_days: int = 0) -> None:
        self._clients = clients
        self._archive = archive
        self._expiration = timedelta(days=expiration_days) if expiration_days else None
        self._counts: dict[str, dict[str, tuple[int, int]]] = {}
        self._unknown: list[Window] = []
        # Attempts that were decided and may be read again, and those that are open still.
        self._decided: dict[NoteKey, datetime] = {}
        self._open: dict[NoteKey, _Note] = {}
        self._read_at: float | None = None
        self._newest = _BEGINNING

    def read(self, window: Window) -> HourVolumes:
        """Return the volumes of the hours that begin in ``window``, as they were half a minute ago at most.

        Raises:
            WarehouseError: BigQuery does not answer.
        """
        now = datetime.now(UTC)
        if self._read_at is None or time.monotonic() - self._read_at > REMEMBERED_SECONDS:
            self._refresh(now)
            self._read_at = time.monotonic()
        found = volumes_of([self._counts], window, [Window(_BEGINNING, _oldest(now)), *self._unknown])
        if self._expiration is None:
            return found
        # A partition is a day at most, and goes as long after its beginning.
        kept = (now - self._expiration).replace(hour=0, minute=0, second=0, microsecond=0)
        return HourVolumes({hour: topics for hour, topics in found.by_hour.items() if hour >= kept}, found.unknown)

    def _refresh(self, now: datetime) -> None:
        since = max(self._newest - _OVERLAP, _oldest(now) - _OVERLAP)
        notes, abandoned, read_until = dict(self._open), set(), self._newest
        for row in self._rows(since):
            key = note_key(row)
            read_until = max(read_until, row["noted_at"])
            if row["kind"] == "abandoned":
                abandoned.add(key)
            elif key not in self._decided and (note := _parse(row, str(self._archive))) is not None:
                notes[key] = note
        newest: dict[str, _Note] = {}
        for note in notes.values():
            known = newest.get(note.lease)
            if known is None or (known.epoch, known.noted_at) < (note.epoch, note.noted_at):
                newest[note.lease] = note
        for key, note in notes.items():
            if key in abandoned:
                self._decide(note, is_in=False)
            elif note is not newest[note.lease] or self._is_in(note, now):
                self._decide(note, is_in=True)
            else:
                self._open[key] = note
        # Only now: notes of a read, or a look-up, that broke are read again.
        self._newest = read_until
        self._decided = {key: at for key, at in self._decided.items() if at >= self._newest - 2 * _OVERLAP}

    def _decide(self, note: _Note, *, is_in: bool) -> None:
        self._open.pop(note.key, None)
        self._decided[note.key] = note.noted_at
        if not is_in:
            return
        if note.volumes is None:
            self._unknown.append(note.times)
        else:
            add_counts(self._counts, note.volumes)

    def _rows(self, since: datetime) -> Iterator[Mapping[str, Any]]:
        moment, day = f"TIMESTAMP '{since.isoformat()}'", f"TIMESTAMP '{since - timedelta(days=1):%Y-%m-%d}'"
        condition = (
            f"kind IN ('attempt', 'abandoned') AND noted_at >= {moment} "
            # Rows in the write buffer have no partition yet.
            f"AND (_PARTITIONTIME >= {day} OR _PARTITIONTIME IS NULL)"
        )
        table = self._archive.companion(ATTEMPTS)
        try:
            session = open_session(self._clients, table, max_streams=4, columns=_COLUMNS, condition=condition)
        except TableNotFoundError:
            return
        for batch in read_session(self._clients, session):
            yield from batch.to_pylist()

    def _is_in(self, note: _Note, now: datetime) -> bool:
        """Whether a lease's newest attempt is committed; one that nobody abandoned for long is taken for it."""
        if now - note.noted_at > timedelta(seconds=2 * COMMIT_SECONDS):
            return True
        return bool(note.streams and is_committed(self._clients, note.streams))


def _oldest(now: datetime) -> datetime:
    """Return a time from which on every note is still there; partitions go by whole days."""
    return now - timedelta(days=ATTEMPTS_DAYS - 1)


def _parse(row: Mapping[str, Any], archive: str) -> _Note | None:
    """Return the note of an attempt that added rows to ``archive``, else None."""
    entry = json.loads(row["document"]).get(archive)
    if entry is None:
        return None
    times = [datetime.fromisoformat(text) for text in entry.get("ingest_times", ())] or [row["noted_at"]]
    return _Note(
        row["lease"],
        row["epoch"],
        note_key(row),
        row["noted_at"],
        entry.get("volumes"),
        hours_of(Window(min(times), max(times))),
        tuple(entry["streams"]),
    )
