"""Manifests that were applied, and the runs of schedules, as records."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final


class RunState(StrEnum):
    """Where a run of a schedule stands; a QUEUED one waits for the run before it, a SKIPPED one never ran."""

    QUEUED = "QUEUED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    SKIPPED = "SKIPPED"

    @property
    def is_final(self) -> bool:
        """Whether nothing more comes of it."""
        return self not in LIVING_RUNS


LIVING_RUNS: Final = (RunState.QUEUED, RunState.STARTING, RunState.RUNNING)


@dataclass(frozen=True, slots=True)
class ManifestRecord:
    """A manifest that was applied; ``document`` is what was written, ``source`` who owns the name.

    ``scopes`` and ``topics`` are those of ``applied_by``, and what it starts has no others. Of a schedule, every
    slot until ``settled_until`` is decided, and ``paused`` says why none is due.
    """

    name: str
    kind: str
    document: Mapping[str, Any]
    digest: str
    source: str
    version: int
    applied_by: str
    scopes: frozenset[str]
    topics: tuple[str, ...] | None
    settled_until: datetime
    created_at: datetime
    changed_at: datetime
    paused: str | None = None
    removed_at: datetime | None = None

    @property
    def etag(self) -> str:
        """The version, as If-Match takes it."""
        return f'"{self.version}"'


@dataclass(frozen=True, slots=True)
class ScheduleRun:
    """One slot of a schedule, known by ``slot``, its UTC instant; ``request`` is the job's, as it then was.

    One that somebody asked for is known by the instant of that. Its ``request`` has who asked, and the end of the
    slot that it covers.
    """

    schedule: str
    slot: datetime
    slot_start: datetime
    state: RunState
    request: Mapping[str, Any]
    created_at: datetime
    job_kind: str | None = None
    job_id: str | None = None
    why: str | None = None
    finished_at: datetime | None = None

    @property
    def asked_by(self) -> str | None:
        """Who asked for it; None where its slot was due."""
        asked: Mapping[str, Any] = self.request.get("asked_by", {})
        return asked.get("name")

    @property
    def slot_end(self) -> datetime:
        """The end of the slot that it covers: ``slot``, unless somebody asked for it."""
        end = self.request.get("slot_end")
        return self.slot if end is None else datetime.fromisoformat(end)


@dataclass(frozen=True, slots=True)
class NewRun:
    """A slot that is due, and how its run begins."""

    slot: datetime
    slot_start: datetime
    state: RunState
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Settlement:
    """What becomes of a schedule's slots until ``until``; ``missed`` says which ones get no run."""

    until: datetime
    runs: tuple[NewRun, ...]
    request: Mapping[str, Any]
    missed: str | None = None
