"""A compaction's driver over a real lake: table by table, over deaths and other compactions."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from backup.compaction.job import main
from backup.compaction.kind import COMPACTION
from connectors.lake.archive import LakeArchive
from jobs.folder import Control, JobFolder, Order
from model.errors import WarehouseError
from model.job import JobState
from model.settings import read_settings
from tests.archive import fill_archive
from warehouse.open import open_warehouse

Run = Callable[..., tuple[JobState, dict[str, Any]]]


@pytest.fixture
def archive(tmp_path):
    """An archive of three small files of one day."""
    for _ in range(3):
        fill_archive(tmp_path, {"orders": 2})
    return LakeArchive(str(tmp_path / "lake"), "backup.messages")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return what runs the next attempt of one job, and gives its end and its findings."""
    monkeypatch.setattr("backup.compaction.job._RETRY_SECONDS", 0.0)
    warehouse = open_warehouse(read_settings({"REFEED_HOME": str(tmp_path)})).to_json()
    folder = JobFolder(tmp_path / "cp_1")
    epochs = iter(range(1, 10))

    def run(*tables):
        epoch = next(epochs)
        folder.write_specification({"id": "cp_1", "tables": list(tables or ["archive"]), "warehouse": warehouse})
        folder.write_control(Control(epoch, Order.RUN))
        main(json.dumps({"folder": folder.location, "epoch": epoch}))
        outcome = folder.read_outcome(epoch)
        return outcome.state, {"error": outcome.error, **folder.read_findings()}

    return run


def test_the_driver_runs_as_the_process_that_a_launcher_starts(archive, run, tmp_path):
    run("staging.orders")
    folder = JobFolder(tmp_path / "cp_1")
    specification = folder.read_specification()
    folder.write_specification({**specification, "tables": ["archive"]})
    folder.write_control(Control(7, Order.RUN))
    argument = json.dumps({"folder": folder.location, "epoch": 7})
    ended = subprocess.run([sys.executable, "-m", COMPACTION.module, argument], timeout=60, check=False)
    assert (ended.returncode, folder.read_findings()) == (0, {"archive": 2})
    assert len(archive.another().data_files()) == 1


def test_small_files_of_the_archive_become_one_and_no_row_changes(archive, run):
    before = sum(file.rows or 0 for file in archive.data_files())
    assert run() == (JobState.SUCCEEDED, {"error": None, "archive": 2})
    after = archive.another().data_files()
    assert (len(after), sum(file.rows or 0 for file in after)) == (1, before)


def test_an_attempt_after_a_death_leaves_alone_what_was_noted_and_does_the_rest(archive, run, tmp_path):
    assert run()[0] is JobState.SUCCEEDED
    fill_archive(tmp_path, {"orders": 1})
    assert run() == (JobState.SUCCEEDED, {"error": None, "archive": 2}), "it is noted"
    JobFolder(tmp_path / "cp_1").write_findings({})
    assert run() == (JobState.SUCCEEDED, {"error": None, "archive": 1}), "a commit without its note is no fault"


def test_a_table_that_is_not_there_fails_with_its_name_after_the_others(archive, run):
    state, found = run("staging.orders", "archive", "staging.returns")
    assert (state, found["archive"], found["error"]["code"]) == (JobState.FAILED, 2, "table_not_found")
    assert "staging.orders" in found["error"]["message"]
    assert "staging.returns" in found["error"]["message"]


def test_a_stream_s_own_compaction_in_between_is_tried_again(archive, run, monkeypatch, tmp_path):
    real = LakeArchive.compact
    faults = [WarehouseError("Another took one of the files away.")] * 4

    def compact(self, **given):
        if faults:
            raise faults.pop()
        return real(self, **given)

    monkeypatch.setattr(LakeArchive, "compact", compact)
    assert run() == (JobState.SUCCEEDED, {"error": None, "archive": 2})
    faults += [WarehouseError("Another took one of the files away.")] * 5
    JobFolder(tmp_path / "cp_1").write_findings({})
    assert run()[0] is JobState.FAILED
