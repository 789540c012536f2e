"""A driver's log as people read it: its end, and what is written from then on."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jobs.store import Job
from model.process import DataprocBatch

DEFAULT_TAIL_LINES: Final = 1000
MAX_TAIL_LINES: Final = 100_000
# Of a log with lines of any length no more is read.
MAX_TAIL_BYTES: Final = 10_000_000
_PIECE_BYTES: Final = 65_536
_LINE: Final = re.compile(rb"[^\n]*\n|[^\n]+")


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Bytes of a driver's log, where the next ones begin, and whether none will come any more."""

    content: bytes
    end: int
    is_last: bool


def read_log_end(job: Job, log: Path, *, tail_lines: int) -> LogPiece:
    """Return the last lines of the log of ``job``'s driver; empty while there is none.

    A batch keeps its log at Google: then it is one line that says where.
    """
    if not log.exists():
        content = _where_it_is(job)
        return LogPiece(content, len(content), job.state.is_final)
    content, size = read_tail(log, tail_lines)
    return LogPiece(content, size, job.state.is_final)


def read_tail(log: Path, tail_lines: int) -> tuple[bytes, int]:
    """Return the last lines of a log, of 10 MB at most, and the bytes of all of it."""
    with log.open("rb") as file:
        size = start = file.seek(0, 2)
        content, step = b"", _PIECE_BYTES
        # One line break more: what is before it may be a part of a line.
        while start > 0 and content.count(b"\n") <= tail_lines and len(content) < MAX_TAIL_BYTES:
            file.seek(max(0, start - step))
            content = file.read(start - file.tell()) + content
            start, step = max(0, start - step), 2 * step
    if start > 0:
        content = content.partition(b"\n")[2]
    # Progress bars have carriage returns within a line.
    lines = _LINE.findall(content)
    return b"".join(lines[-tail_lines:] if tail_lines else ()), size


def read_log_from(job: Job, log: Path, offset: int) -> LogPiece:
    """Return what the log has from byte ``offset`` on, 64 KiB at most; for callers that follow it.

    ``job`` has to be read before this: what is written before a job ends is in the file by then.
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
