from contextlib import closing
from pathlib import Path

import pytest

from jobs.reporter import StoreReporter, open_reporter
from jobs.store import open_store
from model.errors import StoreUnavailableError
from model.settings import read_settings
from model.stream import StreamReport

REPORT = StreamReport("backup", "home-1", "pod-1", 7, "running", {})


def test_a_stream_reports_to_a_store_that_is_not_its_home_s_own_file(tmp_path: Path) -> None:
    """Whoever reads the home's file reads the status beside it; a SQLite file on a shared disk takes no locks."""
    assert open_reporter(read_settings({"REFEED_HOME": str(tmp_path / "home")})) is None
    url = f"sqlite:///{tmp_path / 'shared' / 'jobs.db'}"
    reporter = open_reporter(read_settings({"REFEED_HOME": str(tmp_path / "home"), "REFEED_JOB_STORE": url}))
    assert reporter is not None
    with closing(reporter), closing(open_store(url)) as store:
        reporter.report(REPORT)
        assert [each.report for each in store.list_stream_reports()] == [REPORT]
    assert not (tmp_path / "home").exists()


def test_a_store_that_could_not_be_opened_is_opened_with_a_later_report(tmp_path: Path) -> None:
    folder = tmp_path / "jobs.db"
    folder.mkdir()
    url = f"sqlite:///{folder}"
    with closing(StoreReporter(url)) as reporter:
        with pytest.raises(StoreUnavailableError):
            reporter.report(REPORT)
        folder.rmdir()
        reporter.report(REPORT)
    with closing(open_store(url)) as store:
        assert [each.report for each in store.list_stream_reports()] == [REPORT]
