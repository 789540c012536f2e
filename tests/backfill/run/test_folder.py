from pathlib import Path

from backfill.run.folder import BackfillFolder
from jobs.folder import JobFolder


def test_the_slices_that_tasks_work_on_are_those_of_their_attempt(tmp_path: Path) -> None:
    folder = BackfillFolder(tmp_path / "bf_1")
    assert folder.running_slices(2) == []
    for number in (12, 3):
        folder.enter_slice(number, 2)
    folder.enter_slice(5, 1)
    assert folder.running_slices(2) == [3, 12]
    folder.leave_slice(12, 2)
    folder.leave_slice(12, 2)
    assert folder.running_slices(2) == [3]


def test_the_log_of_a_driver_that_runs_here_stays_where_its_job_has_it(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "bf_1")
    folder.driver_log = tmp_path / "logs" / "bf_1.log"
    found = BackfillFolder.of(folder)
    assert (found.driver_log, found.location) == (folder.driver_log, folder.location)
