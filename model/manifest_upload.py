"""Manifests that came by upload, as records: what each file last held, and what became of it."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class ManifestUpload:
    """A file of a watched folder or bucket; ``generation`` is the newest version that was looked at.

    ``fault`` says why that version is not applied, and ``applied_generation`` which one was applied last. A file
    that has gone keeps its record: ``gone_at`` is when it was first missed, ``waits`` why its manifest stays until
    somebody approves the removal, by ``approval_id``, and ``removed_at`` when the manifest was removed.
    """

    source: str
    file: str
    generation: str
    noted_at: datetime
    fault: str | None = None
    applied_generation: str | None = None
    gone_at: datetime | None = None
    waits: str | None = None
    approval_id: str | None = None
    removed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class UploadSource:
    """A watched folder or bucket; ``problem`` says why it can't be watched, since ``problem_at``."""

    source: str
    problem: str | None = None
    problem_at: datetime | None = None
