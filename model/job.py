"""A job's states, its id and the moves between its states."""

import itertools
import re
import secrets
import time
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from model.errors import JobStateError

_CROCKFORD: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
# Counts this process's ids in 40 bits; it begins below their half, so that they do not overflow.
_MADE = itertools.count(secrets.randbits(39))
_JOB_ID = re.compile(r"[a-z]{2}_[0-9A-HJKMNP-TV-Z]{26}")


class JobState(StrEnum):
    """The state of a job."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    CANCELLING = "CANCELLING"
    CANCELLED = "CANCELLED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @property
    def is_final(self) -> bool:
        """Whether nothing more happens by itself."""
        return self in FINAL_STATES


FINAL_STATES: Final = frozenset({JobState.CANCELLED, JobState.SUCCEEDED, JobState.FAILED})
ACTIVE_STATES: Final = frozenset(JobState) - FINAL_STATES
# What a new job may be: one that starts paused waits for a resume.
FIRST_STATES: Final = frozenset({JobState.PENDING, JobState.PAUSED})

# state -> the states it may move to
MOVES: Final[dict[JobState, frozenset[JobState]]] = {
    JobState.PENDING: frozenset(
        {JobState.RUNNING, JobState.PAUSED, JobState.CANCELLING, JobState.CANCELLED, JobState.FAILED}
    ),
    # Back to PENDING when the driver died and another one is to go on.
    JobState.RUNNING: frozenset(JobState) - {JobState.RUNNING},
    # To SUCCEEDED where the pause came when there was nothing left to do.
    JobState.PAUSED: frozenset(JobState) - {JobState.PAUSED},
    JobState.CANCELLING: FINAL_STATES,
    # To send again what has not landed, also of one that SUCCEEDED.
    **dict.fromkeys(FINAL_STATES, frozenset({JobState.PENDING})),
}


def validate_move(job_id: str, old: JobState, new: JobState) -> None:
    """Raise unless a job may go from ``old`` to ``new``.

    Raises:
        JobStateError: it may not.

    Example:
        >>> validate_move("bf_1", JobState.PENDING, JobState.RUNNING)
    """
    if new not in MOVES[old]:
        raise JobStateError(f"{job_id} is {old} and can't become {new}.", state=old.value, wanted=new.value)


def new_job_id(prefix: str) -> str:
    """Return ``prefix`` + ``_`` + a ULID: unique, and sorted in the order in which one process made them.

    Ids of two processes in one millisecond are in no order, and a clock that is set back puts later ids first.
    Within a millisecond a count in the upper half of the random part decides:
    https://github.com/ulid/spec#monotonicity.

    Example:
        >>> is_job_id(new_job_id("bf"))
        True
        >>> new_job_id("bf") < new_job_id("bf")
        True
    """
    milliseconds = time.time_ns() // 1_000_000
    number = milliseconds << 80 | next(_MADE) << 40 | secrets.randbits(40)
    return prefix + "_" + "".join(_CROCKFORD[(number >> shift) & 31] for shift in range(125, -1, -5))


def created_at(job_id: str) -> datetime:
    """Return when :func:`new_job_id` made the id; milliseconds, aware UTC.

    Example:
        >>> created_at("bf_01M7Z1H20HKNZ6PGKRYCX6J210").year
        2026
    """
    number = 0
    for character in job_id.partition("_")[2]:
        number = number << 5 | _CROCKFORD.index(character)
    return datetime.fromtimestamp((number >> 80) / 1000, UTC)


def is_job_id(text: str) -> bool:
    """Whether ``text`` looks like a job's id."""
    return _JOB_ID.fullmatch(text) is not None
