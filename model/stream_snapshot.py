"""A snapshot of a stream as a record, and the record of a stream that is put back to one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from model.fault import FaultRecord

# "7 days - (age of oldest unacked message in the subscription)", as Pub/Sub answers it:
# https://cloud.google.com/pubsub/docs/reference/rest/v1/projects.snapshots
_LONGEST_LIFE: Final = timedelta(days=7)
# What a person reads before a restore that discards rows. Nothing counts the rows before the restore does.
DISCARD_EFFECT: Final = (
    "The rows that the stream staged after the snapshot are deleted. The restore counts them. Pub/Sub delivers "
    "their messages again, and the stream stages them again. Rows that were already merged stay in the reporting "
    "tables."
)


class SnapshotState(StrEnum):
    """Where a snapshot stands; a COMPLETED one is whole, and of any other nothing is to be restored."""

    PENDING = "PENDING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    DELETING = "DELETING"


class SnapshotReason(StrEnum):
    """Why a snapshot was made: what people asked for is deleted by people alone."""

    MANUAL = "manual"
    SCHEDULED = "scheduled"
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class SourceSnapshot:
    """Pub/Sub's snapshot of one subscription; Pub/Sub drops it at ``expire_time``."""

    subscription: str
    snapshot: str
    topic: str
    expire_time: datetime


@dataclass(frozen=True, slots=True)
class SnapshotPlace:
    """The folder of a snapshot: in a bucket, or on the disk of ``host``."""

    host: str
    location: str

    @property
    def is_shared(self) -> bool:
        """Whether every machine reaches it."""
        return self.location.startswith(("s3://", "gs://"))


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """One snapshot of a stream's state, and of its subscriptions where ``with_source``.

    All that is None is not known before the snapshot is COMPLETED. ``release`` None is the installed one.
    """

    id: str
    stream: str
    kind: str
    with_source: bool
    reason: SnapshotReason
    state: SnapshotState
    created_by: str
    created_at: datetime
    release: str | None = None
    format_version: int | None = None
    sources: tuple[SourceSnapshot, ...] = ()
    taken_at: datetime | None = None
    size_bytes: int | None = None
    seconds_paused: float | None = None
    known_messages: int | None = None
    place: SnapshotPlace | None = None
    finished_at: datetime | None = None
    error: FaultRecord | None = None

    @property
    def expire_time(self) -> datetime | None:
        """When Pub/Sub drops the first of its snapshots; from then on the state alone can be restored."""
        return min((source.expire_time for source in self.sources), default=None)

    @property
    def oldest_publish_time(self) -> datetime | None:
        """A time before which no message was published that a seek to this snapshot delivers again."""
        expire_time = self.expire_time
        return None if expire_time is None else oldest_in_snapshot(expire_time)

    def has_source(self, now: datetime) -> bool:
        """Whether the subscriptions can still be taken back to it."""
        return self.expire_time is not None and now < self.expire_time


class RestoreStep(StrEnum):
    """What is done of putting a stream back; each step can be made again after a crash."""

    WAITING = "waiting"
    RESTORED = "restored"
    SOUGHT = "sought"


class RestoreState(StrEnum):
    """Where putting a stream back to a snapshot stands."""

    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class RestoreRecord:
    """One time that a stream is put back to a snapshot; ``not_reverted`` says what could not go back.

    With ``discard_staged`` the rows go too that were staged since the snapshot; ``discarded_rows`` counts them by
    staging table.
    """

    id: str
    stream: str
    snapshot_id: str
    state: RestoreState
    step: RestoreStep
    created_by: str
    created_at: datetime
    not_reverted: tuple[str, ...] = ()
    discard_staged: bool = False
    discarded_rows: Mapping[str, int] = field(default_factory=dict)
    finished_at: datetime | None = None
    error: FaultRecord | None = None


def oldest_in_snapshot(expire_time: datetime) -> datetime:
    """Return a time before which no message was published that a seek to Pub/Sub's snapshot delivers again.

    Example:
        >>> oldest_in_snapshot(datetime(2026, 3, 8, 12)).isoformat()
        '2026-03-01T12:00:00'
    """
    return expire_time - _LONGEST_LIFE
