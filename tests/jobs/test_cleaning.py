"""What goes from a home's disk, and what stays."""

from datetime import UTC, datetime, timedelta

import pytest

from jobs.cleaning import clean_folders
from jobs.folder import JobFolder
from model.errors import SelectionGoneError
from model.job import JobState, new_job_id
from tests.work import counted

KEEP = timedelta(days=30)
NOW = datetime.now(UTC)


@pytest.fixture
def folders(tmp_path):
    return tmp_path / "backfills"


def create(store, folders):
    job_id = new_job_id("bf")
    folder = JobFolder(folders / job_id)
    folder.write_specification({})
    selection = folder.files.folder("selection")
    selection.make()
    selection.write("rows.parquet", b"PAR1")
    return store.insert(job_id, "backfill", {}, actor="ann").id


def test_only_folders_of_jobs_that_ended_long_ago_go_and_their_rows_stay(store, folders):
    ended, active = create(store, folders), create(store, folders)
    store.move(ended, JobState.CANCELLED, actor="ann")
    assert clean_folders(store, folders, keep=KEEP, now=NOW + timedelta(days=29)) == []
    assert clean_folders(store, folders, keep=KEEP, now=NOW + timedelta(days=31)) == [ended]
    assert [path.name for path in folders.iterdir()] == [active]
    assert store.get(ended).state is JobState.CANCELLED
    assert len(store.list_events(ended)) == 2
    with pytest.raises(SelectionGoneError, match="Create a new job"):
        JobFolder(folders / ended).read_specification()


def test_a_folder_without_a_job_goes_when_it_is_a_day_old(store, folders):
    for name in ("plan-pl_1", new_job_id("bf")):
        (folders / name).mkdir(parents=True)
        (folders / name / "spill").write_text("x")
    assert clean_folders(store, folders, keep=KEEP, now=NOW + timedelta(hours=23)) == []
    assert len(clean_folders(store, folders, keep=KEEP, now=NOW + timedelta(hours=25))) == 2
    assert list(folders.iterdir()) == []


def test_a_job_that_is_retried_in_the_same_moment_keeps_its_folder(store, folders, monkeypatch):
    job_id = create(store, folders)
    store.move(job_id, JobState.CANCELLED, actor="ann")
    find_ends = store.find_ends
    asked = []

    def find_and_retry(job_ids):
        found = find_ends(job_ids)
        if not asked:
            store.move(job_id, JobState.PENDING, actor="ann")
        asked.append(job_ids)
        return found

    monkeypatch.setattr(store, "find_ends", find_and_retry)
    assert clean_folders(store, folders, keep=KEEP, now=NOW + timedelta(days=31)) == []
    assert JobFolder(folders / job_id).read_specification() == {}


def test_a_look_at_many_folders_asks_the_store_as_often_as_one_at_one_folder(store, folders):
    create(store, folders)
    with counted(store) as one:
        assert clean_folders(store, folders, keep=KEEP, now=NOW + timedelta(days=31)) == []
    for _ in range(20):
        create(store, folders)
    with counted(store) as many:
        assert clean_folders(store, folders, keep=KEEP, now=NOW + timedelta(days=31)) == []
    assert many.statements == one.statements


def test_what_a_dying_service_had_begun_to_remove_is_removed(store, folders):
    (folders / ".removed-bf_1").mkdir(parents=True)
    clean_folders(store, folders, keep=KEEP, now=NOW)
    assert list(folders.iterdir()) == []


def test_a_home_without_backfills_is_clean(store, folders):
    assert clean_folders(store, folders, keep=KEEP, now=NOW) == []
