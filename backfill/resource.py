"""A backfill as people see it: one shape for the API and for ``--json``."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Self

from jobs.progress import Progress
from jobs.store import Job, JobError
from model.job import JobState


@dataclass(frozen=True, slots=True)
class Backfill:
    """One backfill; times are aware UTC, ``window`` the ingestion times its query may read."""

    id: str
    state: JobState
    query: str
    parameters: dict[str, Any]
    topic: str
    description: str
    labels: dict[str, str]
    created_by: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    window: dict[str, str]
    progress: Progress
    error: JobError | None
    etag: str

    @classmethod
    def from_job(cls, job: Job) -> Self:
        """Return the backfill that a job of kind ``backfill`` is."""
        asked = job.request
        return cls(
            id=job.id,
            state=job.state,
            query=asked["query"],
            parameters=asked["parameters"],
            topic=asked["topic"],
            description=asked["description"],
            labels=asked["labels"],
            created_by=job.created_by,
            created_at=job.created_at,
            started_at=job.started_at,
            finished_at=job.finished_at,
            window=asked["window"],
            progress=job.progress,
            error=job.error,
            etag=f'"{job.version}"',
        )

    def to_json(self) -> dict[str, Any]:
        """Return it in the API's shape."""
        times = ("created_at", "started_at", "finished_at")
        return {
            **asdict(self),
            "state": self.state.value,
            **{name: render_moment(getattr(self, name)) for name in times},
        }


def render_moment(moment: datetime | None) -> str | None:
    """Return ``moment`` as RFC 3339 with Z.

    Example:
        >>> render_moment(datetime(2026, 1, 1, tzinfo=UTC))
        '2026-01-01T00:00:00Z'
    """
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
