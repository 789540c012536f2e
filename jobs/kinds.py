"""Kinds of jobs: everything that the store, the supervisor and webhooks have to know of one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.files import open_files
from jobs.folder import JobFolder, JobFolders
from jobs.store import Job, JobStore

# Writes a job's figures to the store when they have changed since the last call.
WriteFigures = Callable[[JobStore, str], None]


@dataclass(frozen=True, slots=True)
class JobKind:
    """One kind of job; many are its ``collection``, its ids begin with ``prefix``, its jobs lie in ``folder``.

    ``module`` is its driver's, which takes {"folder", "epoch"} as its one JSON argument. ``figures`` makes what
    writes a job's figures from its folder to the store. ``describe`` returns what a webhook says of a job beside
    its state, and ``waits_for`` the verb that a waiting one waits for; neither may quote a message or a query.
    A job that is interrupted is FAILED, or PENDING again when it ``goes_on_by_itself``. One that
    SUCCEEDED has ``done`` everything, as people read it. Of a kind that ``is_forgotten`` only records of the last
    months are kept: schedules make such jobs for years.
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
        """Return where its jobs have their folders: in the home, or in what REFEED_JOBS_FOLDER names."""
        files = open_files(jobs_folder or home).folder(self.folder)
        return JobFolders(files, logs=home / "logs" / self.folder)
