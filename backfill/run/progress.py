"""How far a job is: one checkpoint file a slice, summed up for people."""

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from jobs.files import Files, open_files
from jobs.store import Job

_RATE_OVER_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True)
class SliceCheckpoint:
    """How far one slice of a selection is.

    ``offset`` counts rows with an answer from Pub/Sub, good or bad: the next attempt starts there.
    ``repeated_at_most`` counts messages that may have gone out twice. ``event_time`` is the latest
    publish_time reached (RFC 3339). ``stopped`` is whether the task was ordered to stop before the end.
    ``newly_failed`` counts what failed in this attempt alone and had not failed before.

    Rows that are sent again, because they failed or got lost, are pieces of their own with higher numbers; what
    had failed and is published now counts there as +1 published and -1 failed, so that sums stay true.
    """

    slice: int
    epoch: int
    offset: int = 0
    published: int = 0
    failed: int = 0
    bytes: int = 0
    repeated_at_most: int = 0
    event_time: str | None = None
    done: bool = False
    stopped: bool = False
    newly_failed: int = 0


class CheckpointFolder:
    """The checkpoints of a job's slices; each attempt (epoch) writes files of its own.

    So a task of an attempt that was replaced, which may live on for a while, can't overwrite what its
    successor has reached.
    """

    def __init__(self, place: Files | Path) -> None:
        self.files = open_files(place)

    def create(self) -> None:
        """Make the folder; one that exists is left as it is."""
        self.files.make()

    def write(self, checkpoint: SliceCheckpoint) -> None:
        """Append to this attempt's checkpoints of the slice; a reader takes the last whole one.

        Cheap enough for every request on a disk, and one write in a bucket. A killed process loses nothing; a
        machine whose disk loses power may forget some, which costs repeated messages and never lost ones.
        """
        line = (json.dumps(asdict(checkpoint), separators=(",", ":")) + "\n").encode()
        self.files.append_latest(_log(checkpoint.slice, checkpoint.epoch), line)

    def read(self, number: int) -> SliceCheckpoint | None:
        """Return the latest attempt's checkpoint of slice ``number``, or None when none ever started."""
        found = [_parse(end) for _, end in self.files.latest(f"{number:06d}.")]
        return max((c for c in found if c is not None), key=lambda c: c.epoch, default=None)

    def read_attempt(self, number: int, epoch: int) -> SliceCheckpoint | None:
        """Return what attempt ``epoch`` reached of slice ``number``, or None when it never started it."""
        try:
            return _parse(self.files.read_latest(_log(number, epoch)))
        except FileNotFoundError:
            return None

    def read_all(self) -> list[SliceCheckpoint]:
        """Return the latest attempt's checkpoint of every slice that ever started."""
        return list(CheckpointReader(self.files).read())


class CheckpointReader:
    """Reads all checkpoints again and again; those of finished slices only once."""

    def __init__(self, place: Files | Path) -> None:
        self._files = open_files(place)
        self._done: dict[int, SliceCheckpoint] = {}

    def read(self) -> Iterable[SliceCheckpoint]:
        """Return the latest attempt's checkpoint of every slice that ever started."""
        latest = dict(self._done)
        for _, end in self._files.latest("", self._is_wanted):
            checkpoint = _parse(end)
            if checkpoint is None:
                continue
            before = latest.get(checkpoint.slice)
            if before is None or before.epoch < checkpoint.epoch:
                latest[checkpoint.slice] = checkpoint
        self._done = {number: c for number, c in latest.items() if c.done}
        return latest.values()

    def _is_wanted(self, name: str) -> bool:
        number = name.split(".", 1)[0]
        return number.isdecimal() and int(number) not in self._done


@dataclass(frozen=True, slots=True)
class Progress:
    """A job's figures; ``selected`` is None until the selection is made, rates until there are two samples."""

    selected: int | None = None
    published: int = 0
    failed: int = 0
    bytes: int = 0
    event_time: str | None = None
    rate_messages_per_second: float | None = None
    eta_seconds: float | None = None
    repeated_at_most: int = 0

    @classmethod
    def of(cls, job: Job) -> Self:
        """Return the latest figures of a backfill."""
        return cls(**job.progress)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as the API shows them."""
        return asdict(self)


@dataclass(slots=True)
class ProgressMeter:
    """Turns checkpoints into figures; the rate is taken over the last 15 seconds in which it ran."""

    _samples: deque[tuple[float, int]] = field(default_factory=deque)

    def measure(
        self, selected: int | None, checkpoints: Iterable[SliceCheckpoint], now: float, *, is_held: bool = False
    ) -> Progress:
        """Return the sum of ``checkpoints`` at ``now``, in seconds of any steady clock.

        ``is_held`` is whether nothing may be published now: such time is no part of the rate.
        """
        found = list(checkpoints)
        published = sum(c.published for c in found)
        failed = sum(c.failed for c in found)
        if published == 0 or is_held:
            # Until the first message the job selects and starts up: no part of its rate.
            self._samples.clear()
        self._samples.append((now, published))
        while len(self._samples) > 2 and self._samples[0][0] < now - _RATE_OVER_SECONDS:  # noqa: PLR2004
            self._samples.popleft()
        (then, before), rate = self._samples[0], None
        if now > then:
            rate = round((published - before) / (now - then), 1)
        left = None if selected is None else selected - published - failed
        eta = 0.0 if left == 0 else round(left / rate, 1) if left is not None and rate else None
        return Progress(
            selected=selected,
            published=published,
            failed=failed,
            bytes=sum(c.bytes for c in found),
            event_time=max((c.event_time for c in found if c.event_time), default=None),
            rate_messages_per_second=rate,
            eta_seconds=eta,
            repeated_at_most=sum(c.repeated_at_most for c in found),
        )


def _log(number: int, epoch: int) -> str:
    return f"{number:06d}.{epoch}.ndjson"


def _parse(end: bytes) -> SliceCheckpoint | None:
    """Return the last whole checkpoint of a log's end, or None when a power cut left none.

    What can't be read counts as never written: its rows are published again, which is safe.
    """
    for line in reversed(end.split(b"\n")):
        try:
            return SliceCheckpoint(**json.loads(line))
        except (ValueError, TypeError):
            continue
    return None
