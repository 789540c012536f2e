"""A driver's log as people read it: its last lines, then the new ones."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jobs.store import Job
from model.process import DataprocBatch

DEFAULT_TAIL_LINES: Final = 1000
MAX_TAIL_LINES: Final = 100_000
# Lines may have any length, so the bytes are limited too.
MAX_TAIL_BYTES: Final = 10_000_000
_PIECE_BYTES: Final = 65_536
_LINE: Final = re.compile(rb"[^\n]*\n|[^\n]+")


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Bytes of a driver's log; the next ones begin at ``end``, unless it ``is_last``."""

    content: bytes
    end: int
    is_last: bool


def read_log_end(job: Job, log: Path, *, tail_lines: int) -> LogPiece:
    """Return the last lines of the log of ``job``'s driver; empty while there is none.

    The log of a Dataproc batch is at Google: then the content is one line with its URL.
    """
    if not log.exists():
        content = _where_it_is(job)
        return LogPiece(content, len(content), job.state.is_final)
    content, size = read_tail(log, tail_lines)
    return LogPiece(content, size, job.state.is_final)


def read_tail(log: Path, tail_lines: int) -> tuple[bytes, int]:
    """Return the last lines of a log, at most 10 MB, and the log's size in bytes."""
    with log.open("rb") as file:
        size = start = file.seek(0, 2)
        content, step = b"", _PIECE_BYTES
        # One line break more than lines: the text before the first one may be a part of a line.
        while start > 0 and content.count(b"\n") <= tail_lines and len(content) < MAX_TAIL_BYTES:
            file.seek(max(0, start - step))
            content = file.read(start - file.tell()) + content
            start, step = max(0, start - step), 2 * step
    if start > 0:
        content = content.partition(b"\n")[2]
    # Split at line feeds only: progress bars have carriage returns within a line.
    lines = _LINE.findall(content)
    return b"".join(lines[-tail_lines:] if tail_lines else ()), size


def read_log_from(job: Job, log: Path, offset: int) -> LogPiece:
    """Return the log from byte ``offset`` on, at most 64 KiB; for callers that follow it.

    Read ``job`` before this call: a log is complete once the store shows the job's end.
    """
    content = _where_it_is(job)[offset:]
    if log.exists():
        with log.open("rb") as file:
            file.seek(offset)
            content = file.read(_PIECE_BYTES)
    return LogPiece(content, offset + len(content), job.state.is_final and not content)


def _where_it_is(job: Job) -> bytes:
    if not isinstance(job.driver, DataprocBatch):
        return b""
    return f"The driver's log is at {job.driver.log_url}\n".encode()
