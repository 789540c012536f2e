"""A backfill's figures on their way from its tasks' checkpoints to the store."""

import time
from types import SimpleNamespace

import pytest

from backfill.run.folder import BackfillFolder
from backfill.run.progress import CheckpointFolder, Progress, SliceCheckpoint
from backfill.run.selection import write_selection
from backfill.steer.kind import BACKFILL, BackfillFigures
from jobs.supervisor import JobSupervisor
from model.errors import StoreUnavailableError
from model.job import JobState, new_job_id
from tests.reaching import ending
from tests.waiting import wait_until


def leave(folder: BackfillFolder, published: int) -> None:
    """Write what a task writes that has published so many messages."""
    checkpoints = CheckpointFolder(folder.progress)
    checkpoints.create()
    checkpoints.write(SliceCheckpoint(0, 1, offset=published, published=published))


def test_what_is_published_is_in_the_store_within_a_second(store, launcher, tmp_path, rows):
    supervisor = JobSupervisor(BACKFILL, store, launcher, BACKFILL.open_folders(tmp_path), max_running=1)
    job_id = new_job_id("bf")
    folder = BackfillFolder.of(supervisor.folder(job_id))
    folder.write_specification({})
    write_selection([rows(100)], folder.selection)
    store.insert(job_id, BACKFILL.name, {}, actor="ann")
    supervisor.start()
    with ending(supervisor):
        wait_until(lambda: store.get(job_id).state is JobState.RUNNING, "it runs", seconds=60)
        seconds: list[float] = []
        for published in range(1, 6):
            # Each begins when the one before is just seen: it waits for a whole look.
            leave(folder, published)
            began = time.monotonic()

            def is_seen(wanted: int = published) -> bool:
                return store.get(job_id).progress.get("published") == wanted

            wait_until(is_seen, "it is in the store", seconds=60)
            seconds.append(time.monotonic() - began)
    # The quickest: a loaded machine may hold any one of them up, and never all.
    assert min(seconds) < 1.0, seconds


def test_time_at_another_rate_limit_is_no_part_of_the_rate(store, tmp_path, monkeypatch):
    job_id = store.insert(new_job_id("bf"), BACKFILL.name, {}, actor="ann").id
    folder = BackfillFolder(tmp_path / job_id)
    figures = BackfillFigures(folder)
    clock = iter([0.0, 10.0, 11.0, 12.0])
    monkeypatch.setattr("backfill.steer.kind.time", SimpleNamespace(monotonic=lambda: next(clock)))
    rates = []
    for published, limit in ((1, None), (1001, None), (1002, 5.0), (1007, 5.0)):
        store.change(job_id, actor="ann", what="changed", options={"rate_limit_messages_per_second": limit})
        leave(folder, published)
        figures(store, job_id)
        rates.append(store.get(job_id).progress["rate_messages_per_second"])
    assert rates == [None, 100.0, None, 5.0]


def test_figures_that_the_store_did_not_take_are_written_the_next_time(store, tmp_path, monkeypatch):
    job_id = store.insert(new_job_id("bf"), BACKFILL.name, {}, actor="ann").id
    folder = BackfillFolder(tmp_path / job_id)
    leave(folder, 7)
    figures = BackfillFigures(folder)

    def fail(_job_id: str, _progress: Progress) -> None:
        raise StoreUnavailableError

    with monkeypatch.context() as away:
        away.setattr(store, "set_progress", fail)
        with pytest.raises(StoreUnavailableError):
            figures(store, job_id)
    # Nothing has changed since, as after a job's end.
    monkeypatch.setattr("backfill.run.progress.ProgressMeter.measure", lambda *_, **__: Progress(published=7))
    figures(store, job_id)
    assert store.get(job_id).progress.get("published") == 7
