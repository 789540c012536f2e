"""Jobs with a driver as people see them: one shape for the API and for ``--json``."""

from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

from jobs.store import Job
from model.fault import FaultRecord
from model.job import JobState
from model.moment import render_moment


@dataclass(frozen=True, kw_only=True)
class DrivenJob:
    """What people see of every job with a driver; a kind adds its own fields. Times are aware UTC."""

    id: str
    kind: str
    state: JobState
    created_by: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    restarts: int
    error: FaultRecord | None
    etag: str

    @staticmethod
    def fields_of(job: Job) -> dict[str, Any]:
        """Return the values of these fields."""
        names = [each.name for each in fields(DrivenJob) if each.name != "etag"]
        return {**{name: getattr(job, name) for name in names}, "etag": f'"{job.version}"'}

    def to_json(self) -> dict[str, Any]:
        """Return it in the API's shape."""
        shown = {
            name: render_moment(value) if isinstance(value, datetime) else value
            for name, value in asdict(self).items()
        }
        return {**shown, "state": self.state.value}
