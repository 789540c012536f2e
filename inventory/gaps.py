"""Gaps of the last day in the inbox: hours in which a topic had far fewer messages than on other days."""

import threading
import time
from datetime import UTC, datetime
from typing import Final

import structlog

from inventory.volumes import Gap, read_gaps
from jobs.inbox_items import InboxItem
from model.errors import RefeedError
from model.moment import render_moment
from model.naming import counted
from warehouse.counts import Counts

_LOG: Final = structlog.get_logger(__name__)
# The inbox is asked for every few seconds, and an hour that is over gets no more messages.
REMEMBERED_SECONDS: Final = 60.0


class GapItems:
    """The gaps that wait for a person, looked for once a minute at most; safe to use from many threads.

    They are found in the counts that the archive keeps: no row is read, and no query runs. While the archive can't
    be read there are none, and the rest of the inbox is there all the same.
    """

    def __init__(self, counts: Counts, *, remembered_seconds: float = REMEMBERED_SECONDS) -> None:
        self._counts = counts
        self._remembered_seconds = remembered_seconds
        self._lock = threading.Lock()
        self._items: list[InboxItem] = []
        self._read_at: float | None = None

    def list_items(self) -> list[InboxItem]:
        """Return an item for each gap of the last day; while another thread looks for them, those of before."""
        # A warehouse that hangs holds up one caller, and not each of them.
        if self._lock.acquire(blocking=self._read_at is None):
            try:
                if self._read_at is None or time.monotonic() - self._read_at >= self._remembered_seconds:
                    self._items = self._find()
                    self._read_at = time.monotonic()
            finally:
                self._lock.release()
        return list(self._items)

    def _find(self) -> list[InboxItem]:
        try:
            return [_item(gap) for gap in read_gaps(self._counts, datetime.now(UTC))]
        except RefeedError as exc:
            _LOG.warning("gaps_unknown", code=exc.code, error=exc.message)
            return []


def _item(gap: Gap) -> InboxItem:
    many = counted(gap.messages, "message") if gap.messages else "No message"
    times = f"from {render_moment(gap.start)} to {render_moment(gap.end)}"
    message = f"{many} arrived {times}. This number is less than a tenth of the usual number at this time of day."
    return InboxItem("gap", "topic", gap.topic, None, gap.topic, None, gap.start, message)
