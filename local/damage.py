"""Damaged parts of the data folder's files: kept beside the file, and reported in the log."""

import itertools
from pathlib import Path
from typing import Final

import grpc
import structlog

from local.files import replace_file
from local.seqset import Seqs
from local.status import StatusError

_LOG: Final = structlog.get_logger()


class DamagedError(StatusError):
    """DATA_LOSS: ``seqs`` are damaged on disk or missing; the other messages of the call are not."""

    def __init__(self, seqs: Seqs) -> None:
        super().__init__(grpc.StatusCode.DATA_LOSS, f"{len(seqs)} messages are damaged on the server's disk.")
        self.seqs = seqs


def keep_aside(path: Path, data: bytes) -> Path:
    """Write ``data``, a part of ``path``, to ``<path>.damaged-<n>`` and return that path; what is there stays.

    Raises:
        OSError: the disk did not take it.
    """
    for number in itertools.count(1):
        kept = path.with_name(f"{path.name}.damaged-{number}")
        if not kept.exists():
            break
        if kept.read_bytes() == data:
            # The same damage, met again.
            return kept
    replace_file(kept, data)
    return kept


def report_damage(event: str, owner: str, path: Path, **details: object) -> None:
    """Log an error about ``path``, which belongs to the topic or subscription ``owner``.

    ``details`` are, as far as they are known: ``offset`` in the file, how many ``messages`` are affected, and
    where the damaged bytes are ``kept``.
    """
    shown = {name: str(each) if isinstance(each, Path) else each for name, each in details.items()}
    _LOG.error(event, owner=owner, file=str(path), **shown)
