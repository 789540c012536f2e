"""Manifests that came by upload, as records: what each file last held, and what became of it."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class ManifestUpload:
    """A file of a watched folder or bucket; ``generation`` is the newest version that was looked at.

    ``fault`` says why that version is not applied, ``applied_generation`` which one was applied last, and
    ``gone_at`` since when the file is missing; its manifest stays. With an empty ``file`` it is the folder or
    bucket itself, and ``fault`` says why that can't be read.
    """

    source: str
    file: str
    generation: str
    noted_at: datetime
    fault: str | None = None
    applied_generation: str | None = None
    gone_at: datetime | None = None
