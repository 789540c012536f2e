"""A driver's log as people read it: its end, and what is written from then on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jobs.store import Job
from model.process import DataprocBatch

DEFAULT_TAIL_BYTES: Final = 100_000
MAX_TAIL_BYTES: Final = 10_000_000
_PIECE_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Bytes of a driver's log, where the next ones begin, and whether none will come any more."""

    content: bytes
    end: int
    is_last: bool


def read_log_end(job: Job, log: Path, *, tail_bytes: int) -> LogPiece:
    """Return the end of the log of ``job``'s driver, whole lines only; empty while there is none.

    A batch keeps its log at Google: then it is one line that says where.
    """
    if not log.exists():
        content = _where_it_is(job)
        return LogPiece(content, len(content), job.state.is_final)
    content, size = read_tail(log, tail_bytes)
    return LogPiece(content, size, job.state.is_final)


def read_tail(log: Path, tail_bytes: int) -> tuple[bytes, int]:
    """Return the end of a log, whole lines only, and the bytes of all of it."""
    with log.open("rb") as file:
        size = file.seek(0, 2)
        start = max(0, size - tail_bytes)
        # One byte more: where it ends a line, the tail begins with a whole one.
        file.seek(max(0, start - 1))
        content = file.read(size - max(0, start - 1))
    return content.partition(b"\n")[2] if start > 0 else content, size


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
