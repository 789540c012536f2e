"""What goes from a home's disk, and what stays."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jobs import cleaning
from jobs.cleaning import clean_folders
from jobs.folder import JobFolder
from jobs.store import Job, JobStore
from model.errors import SelectionGoneError
from model.job import JobState, new_job_id

KEEP = timedelta(days=30)
NOW = datetime.now(UTC)


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    return tmp_path / "backfills"


def create(store: JobStore, folders: Path) -> str:
    job_id = new_job_id("bf")
    folder = JobFolder(folders / job_id)
    folder.write_specification({})
    selection = folder.files.folder("selection")
    selection.make()
    selection.write("rows.parquet", b"PAR1")
    return store.insert(job_id, "backfill", {}, actor="ann").id


def test_only_folders_of_jobs_that_ended_long_ago_go_and_their_rows_stay(store: JobStore, folders: Path) -> None:
    ended, active = create(store, folders), create(store, folders)
    store.move(ended, JobState.CANCELLED, actor="ann")

    assert clean_folders(store, folders, keep=KEEP, now=NOW + timedelta(days=29)) == []
    assert clean_folders(store, folders, keep=KEEP, now=NOW + timedelta(days=31)) == [ended]

    assert [path.name for path in folders.iterdir()] == [active]
    assert store.get(ended).state is JobState.CANCELLED
    assert len(store.list_events(ended)) == 2
    with pytest.raises(SelectionGoneError, match="make a new one"):
        JobFolder(folders / ended).read_specification()


def test_a_folder_without_a_job_goes_when_it_is_a_day_old(store: JobStore, folders: Path) -> None:
    for name in ("plan-pl_1", new_job_id("bf")):
        (folders / name).mkdir(parents=True)
        (folders / name / "spill").write_text("x")

    assert clean_folders(store, folders, keep=KEEP, now=NOW + timedelta(hours=23)) == []
    assert len(clean_folders(store, folders, keep=KEEP, now=NOW + timedelta(hours=25))) == 2
    assert list(folders.iterdir()) == []


def test_a_folder_that_is_in_use_without_a_job_stays(store: JobStore, folders: Path) -> None:
    (folders / "plan-pl_1").mkdir(parents=True)
    os.utime(folders / "plan-pl_1", (NOW.timestamp(), NOW.timestamp()))

    assert clean_folders(store, folders, keep=KEEP, now=NOW) == []


def test_a_job_that_is_retried_in_the_same_moment_keeps_its_folder(
    store: JobStore, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = create(store, folders)
    store.move(job_id, JobState.CANCELLED, actor="ann")
    find = cleaning._find
    asked: list[str] = []

    def find_and_retry(its_store: JobStore, name: str) -> Job | None:
        found = find(its_store, name)
        if not asked:
            store.move(job_id, JobState.PENDING, actor="ann")
        asked.append(name)
        return found

    monkeypatch.setattr(cleaning, "_find", find_and_retry)

    assert clean_folders(store, folders, keep=KEEP, now=NOW + timedelta(days=31)) == []
    assert JobFolder(folders / job_id).read_specification() == {}


def test_what_a_dying_service_had_begun_to_remove_is_removed(store: JobStore, folders: Path) -> None:
    (folders / ".removed-bf_1").mkdir(parents=True)

    clean_folders(store, folders, keep=KEEP, now=NOW)

    assert list(folders.iterdir()) == []


def test_a_home_without_backfills_is_clean(store: JobStore, folders: Path) -> None:
    assert clean_folders(store, folders, keep=KEEP, now=NOW) == []
