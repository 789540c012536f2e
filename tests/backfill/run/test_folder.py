from backfill.run.folder import BackfillFolder
from jobs.folder import JobFolder


def test_the_log_of_a_driver_that_runs_here_stays_where_its_job_has_it(tmp_path):
    folder = JobFolder(tmp_path / "bf_1")
    folder.driver_log = tmp_path / "logs" / "bf_1.log"
    found = BackfillFolder.of(folder)
    assert (found.driver_log, found.location) == (folder.driver_log, folder.location)
