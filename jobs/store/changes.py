"""Changes that wait for a second person: jobs whose only step is the decision."""

from dataclasses import asdict
from typing import Final

from jobs.store.database import Database
from jobs.store.records import Job
from jobs.store.step_jobs import begin_job, find_active_jobs
from model.change import EXPIRES_AFTER, ChangeRecord, ChangeRequest
from model.typed import read_fields

CHANGE: Final = "change"


class Changes:
    """Keeps requested changes until they are decided; ended changes stay for ever."""

    _database: Database

    def create_change(self, asked: ChangeRequest) -> Job:
        """Create a PENDING change; a waiting change with the same request and caller is returned instead."""
        with self._database.write_now(f"create {CHANGE}") as (connection, now):
            by = asked.requester
            request = {**asdict(asked), "requester": {**asdict(by), "scopes": sorted(by.scopes)}}
            for job in find_active_jobs(connection, CHANGE, asked.subject):
                # The caller's scopes may differ by now: another key can have the same name.
                is_same = {**request, "requester": job.request.get("requester")} == job.request
                if is_same and job.created_by == by.name and now < job.created_at + EXPIRES_AFTER:
                    return job
            return begin_job(
                connection,
                now,
                kind=CHANGE,
                prefix="ch",
                subject=asked.subject,
                step="decide",
                request=request,
                actor=by.name,
            )


def change_of(job: Job) -> ChangeRecord:
    """Return the change of a job of this kind."""
    memory = job.memory
    return ChangeRecord(
        job.id,
        read_fields(ChangeRequest, job.request),
        job.state,
        job.created_at,
        job.finished_at,
        f'"{job.version}"',
        memory.get("decided_by"),
        (job.started_at or job.finished_at) if "decided_by" in memory else None,
        memory.get("reason"),
        memory.get("result"),
        job.error,
    )
