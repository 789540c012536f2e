"""Versions of a job that a caller names: a call is refused if the job is at none of them."""

from collections.abc import Collection

from jobs.store import Job
from model.errors import JobChangedError

# None is any version.
Versions = Collection[int] | None


def check_version(job: Job, versions: Versions) -> None:
    """Raise unless the job is at one of the versions.

    Raises:
        JobChangedError: it is not.
    """
    if versions is not None and job.version not in versions:
        raise JobChangedError(f"{job.id} is at version {job.version}.", version=job.version)


def expected_version(job: Job, versions: Versions) -> int | None:
    """Return the version that the store must find: the version read, if the caller named any."""
    return None if versions is None else job.version
