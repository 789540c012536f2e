"""Backfills as a kind of job: their driver, their figures, and their webhooks' contents."""

import time
from contextlib import suppress
from typing import Any, Final

from backfill.run.folder import BackfillFolder
from backfill.run.progress import CheckpointReader, Progress, ProgressMeter
from backfill.run.selection import read_selection
from backfill.steer.approval import exceeds_approval
from jobs.folder import JobFolder
from jobs.kinds import JobKind
from jobs.store import Job, JobStore
from model.errors import CheckpointCorruptError
from model.job import JobState


class BackfillFigures:
    """The figures of one backfill, out of its slices' checkpoints."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = BackfillFolder.of(folder)
        self._reader = CheckpointReader(self._folder.progress)
        self._meter = ProgressMeter()
        self._selected: int | None = None
        self._limit: float | None = None
        self._latest: Progress | None = None

    def __call__(self, store: JobStore, job_id: str) -> None:
        """Write them to the store when they have changed since the last call."""
        # What can't be read now is read at the next look; it must not keep a job from its end.
        with suppress(CheckpointCorruptError):
            if self._selected is None:
                selection = read_selection(self._folder.selection)
                self._selected = None if selection is None else selection.rows
        job, before = store.get(job_id), self._limit
        self._limit = job.options.get("rate_limit_messages_per_second")
        # Paused by a person or by its canary, or under another limit: such time is no part of the rate, nor of the
        # time that is left.
        is_held = job.state is JobState.PAUSED or self._limit != before
        progress = self._meter.measure(self._selected, self._reader.read(), time.monotonic(), is_held=is_held)
        if progress != self._latest:
            store.set_progress(job_id, progress.to_json())
            # After the store has it: a figure that got lost on the way is written the next time.
            self._latest = progress


def describe_backfill(job: Job) -> dict[str, Any]:
    """Return a webhook's fields of a backfill beside its state, without its query and parameters."""
    progress = Progress.of(job)
    return {
        "topic": job.request.get("topic"),
        "description": job.options.get("description", job.request.get("description", "")),
        "labels": job.labels,
        "selected": progress.selected,
        "published": progress.published,
        "failed": progress.failed,
    }


def _waits_for(job: Job) -> str:
    return "approval" if exceeds_approval(job) else "resume"


BACKFILL: Final = JobKind(
    name="backfill",
    collection="backfills",
    prefix="bf",
    folder="backfills",
    module="backfill.job",
    figures=BackfillFigures,
    describe=describe_backfill,
    waits_for=_waits_for,
    done="published",
)
