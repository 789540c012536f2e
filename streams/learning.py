"""Learns the ids of a moved stream from its own tables, before the stream pulls messages."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from model.archive import IdSpan
from model.disk import check_room
from model.moment import CLOCK_SKEW
from streams.journal import Journal
from streams.journal_mark import LONGEST_RETENTION
from streams.lease import HeldLease
from streams.pulse import repeating
from streams.status import StatusFile

_log = structlog.get_logger(__name__)

_TELL_SECONDS: Final = 5.0
_OLDEST_SECONDS: Final = 60.0

ReadIds = Callable[[str, IdSpan], Iterator[pa.RecordBatch]]


class Learner:
    """Ensures that the journal knows the ids of a table before the stream pulls messages for it.

    A complete journal knows them, and nothing is read. Otherwise they are read from the table into entries on
    disk, after the table is taken, so that no other stream commits to it any more. They stay known like those of a
    recovered attempt. ``read_ids`` yields the ids of a table with the journal's columns; ``find_oldest`` returns
    the publish time of the oldest message that Pub/Sub has still to deliver.
    """

    def __init__(
        self,
        journal: Journal,
        lease: HeldLease,
        *,
        read_ids: ReadIds,
        find_oldest: Callable[[], datetime],
        min_free_bytes: int,
        status: StatusFile,
    ) -> None:
        self._journal = journal
        self._lease = lease
        self._read_ids = read_ids
        self._find_oldest = find_oldest
        self._min_free_bytes = min_free_bytes
        self._status = status
        self._last_attempt = max(journal.last_attempt(), journal.mark.attempt)
        self._lock = threading.Lock()
        self._newest: dict[str, int] = {}
        self._oldest: datetime | None = None
        self._asked_at = 0.0

    def take(self, name: str, newest: int, next_attempt: Callable[[], int]) -> None:
        """Learn the ids of the table ``name``, if the journal does not know them.

        ``newest`` is the stream's newest attempt in the table: a journal that has not seen it is an old copy.

        Raises:
            StorageFullError: the disk has no room for the ids; nothing is learned, and nothing is lost.
            RefeedError: the table can't be read, or Pub/Sub does not answer.
        """
        with self._lock:
            self._newest[name] = newest
            if newest > self._last_attempt and self._journal.keep_seconds and self._journal.mark.is_heir:
                _log.warning("journal_behind", table=name, attempt=newest, journal_attempt=self._last_attempt)
                self._journal.mark.begin(knows_all=False)
                self._lease.name_journal(self._journal.mark.name)
            for table in self._newest:
                if not self._journal.mark.knows(table):
                    self._learn(table, next_attempt)

    def expect_again(self, ids: pa.Table) -> None:
        """Write the oldest publish time of ``ids`` into the lease; call this before known ids are acknowledged.

        Their rows may be old, and Pub/Sub may deliver the messages once more. A start without this home then reads
        the ids of these rows too.

        Raises:
            RefeedError: the lease can't be written, or another stream has it.
        """
        seconds = self._journal.keep_seconds
        if seconds and ids.num_rows:
            self._lease.expect_again(pc.min(ids.column("publish_time")).as_py(), seconds)

    def _learn(self, table: str, next_attempt: Callable[[], int]) -> None:
        began = time.monotonic()
        span = self._span()
        # Learning can take minutes: write the status meanwhile, as a heartbeat.
        with repeating(self._status.write, every_seconds=_TELL_SECONDS, name="learning"):
            count = self._journal.learn(
                self._read_ids(table, span),
                since=span.published_since,
                next_attempt=next_attempt,
                check_room=self._check_room,
            )
        self._journal.mark.add(table, self._newest[table])
        _log.info(
            "ids_learned",
            table=table,
            ids=count,
            since=span.published_since.isoformat(),
            seconds=round(time.monotonic() - began, 3),
        )

    def _check_room(self) -> None:
        """Raise if the journal's disk is almost full; of a small disk a tenth must stay free."""
        folder = self._journal.folder
        check_room(folder, min(self._min_free_bytes, shutil.disk_usage(folder).total // 10))

    def _span(self) -> IdSpan:
        now = datetime.now(UTC)
        # A start takes many tables: a recent answer is reused, because the oldest message only becomes younger.
        if self._oldest is None or time.monotonic() - self._asked_at > _OLDEST_SECONDS:
            self._oldest, self._asked_at = self._find_oldest(), time.monotonic()
        asked = self._journal.mark.learn_since, self._lease.again_since
        oldest = min([self._oldest, *(since for since in asked if since is not None)])
        # Acknowledged messages of any age may be redelivered for a while.
        window = timedelta(seconds=self._journal.keep_seconds)
        return IdSpan(max(oldest - CLOCK_SKEW, now - LONGEST_RETENTION), now - window - CLOCK_SKEW)
