"""Kinds of jobs: what the store, the supervisor and webhooks need of each kind."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.files import open_files
from jobs.folder import JobFolder, JobFolders
from jobs.store import Job, JobStore

# Writes a job's figures to the store if they have changed since the last call.
WriteFigures = Callable[[JobStore, str], None]


@dataclass(frozen=True, slots=True)
class JobKind:
    """One kind of job: ``collection`` is its plural, its ids begin with ``prefix``, its jobs are in ``folder``.

    ``module`` is the driver's, which takes {"folder", "epoch"} as its one JSON argument. ``figures`` returns the
    function that copies a job's figures from its folder to the store. ``describe`` returns the fields that a
    webhook adds to a job's state, and ``waits_for`` the verb that a waiting job needs; neither may quote a message
    or a query. An interrupted job is FAILED, or PENDING again if it ``goes_on_by_itself``. ``done`` is the
    participle of the kind's work, such as "published". If ``is_forgotten``, only records of the last months
    are kept, since schedules create such jobs for years.
    """

    name: str
    collection: str
    prefix: str
    folder: str
    module: str
    figures: Callable[[JobFolder], WriteFigures]
    describe: Callable[[Job], Mapping[str, Any]] = lambda _: {}
    waits_for: Callable[[Job], str] = lambda _: "resume"
    goes_on_by_itself: bool = False
    done: str = "done"
    is_forgotten: bool = False

    def open_folders(self, home: Path, jobs_folder: str | None = None) -> JobFolders:
        """Return the folders of its jobs: in the home, or in ``jobs_folder`` (REFEED_JOBS_FOLDER)."""
        files = open_files(jobs_folder or home).folder(self.folder)
        return JobFolders(files, logs=home / "logs" / self.folder)
