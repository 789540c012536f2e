"""The supervisor of merge jobs: which driver they have, and what of their findings the history shows."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from jobs.files import open_files
from jobs.folder import JobFolder, JobFolders
from jobs.launcher import Launcher
from jobs.store import JobStore
from jobs.supervisor import DRIVER, LEASE_SECONDS, Chores, JobKind, JobSupervisor
from model.errors import CheckpointCorruptError
from model.settings import Settings

KIND: Final = "merge"
_MODULE: Final = "reporting.job"
# Two merges of one source would only undo each other's work, and one job merges as many sources as are wanted.
_MAX_RUNNING: Final = 1


class MergeSupervisor(JobSupervisor):
    """Drives the merges of a job store, one at a time over all replicas; the others wait for their turn."""

    def __init__(
        self,
        store: JobStore,
        launcher: Launcher,
        chores: Chores,
        folders: JobFolders,
        *,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        super().__init__(
            JobKind(KIND, _MODULE, folders, Figures),
            store,
            launcher,
            chores,
            max_running=_MAX_RUNNING,
            lease_seconds=lease_seconds,
        )


class Figures:
    """What a merge has found out, source by source, out of its folder."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._latest: dict[str, Any] = {}

    def __call__(self, store: JobStore, job_id: str) -> None:
        """Write it to the store, with a line in the history, when it has changed since the last call."""
        # What can't be read now is read at the next look; it must not keep a job from its end.
        with suppress(CheckpointCorruptError):
            found = self._folder.read_findings()
            if not found or found == self._latest:
                return
            before = (store.get(job_id).verification or {}).get("sources", {})
            if found != before:
                what, why = _describe(before, found)
                store.change(job_id, actor=DRIVER, what=what, why=why, verification={"sources": found})
            # After the store has it: what got lost on the way is written the next time.
            self._latest = found


def merge_folders(settings: Settings) -> JobFolders:
    """Return the folders of a deployment's merge jobs."""
    files = open_files(settings.jobs_folder or settings.home).folder("merge-jobs")
    return JobFolders(files, logs=settings.home / "logs" / "merge-jobs")


def _describe(before: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return what has changed, and the figures behind it."""
    new = [source for name, source in found.items() if source != before.get(name)]
    what = ", ".join(f"{source['source']} {source['state']}" for source in new)
    return what, "; ".join(filter(None, map(_figures, new))) or None


def _figures(source: Mapping[str, Any]) -> str:
    if source["state"] == "failed":
        return f"{source['source']}: {source['error']['message']}"
    if source["state"] == "merged":
        counts = (
            f"{source['changed']} keys staged, {source['newer']} newer, {len(source['partitions'])} partitions"
        )
        return f"{source['source']}: {counts}"
    return ""
