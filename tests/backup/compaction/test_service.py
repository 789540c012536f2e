"""Compactions as jobs: launched again when a driver dies, and refused without a lake."""

import time
from dataclasses import replace

import pytest

from backup.compaction.kind import COMPACTION
from backup.compaction.service import CompactionService
from jobs.folder import JobFolder, Outcome
from jobs.store import JobStore
from model.errors import JobStateError, RequestInvalidError
from model.job import JobState
from model.principal import SCOPES, Principal
from model.settings import Settings, read_settings
from tests.backfill.conftest import FakeLauncher
from warehouse.open import open_warehouse

ANN = Principal("ann", frozenset(SCOPES))


class Yard:
    """A service and its launcher; the test ticks its supervisor."""

    def __init__(self, settings: Settings) -> None:
        self.launcher = FakeLauncher()
        self.store = JobStore(settings.job_store)
        warehouse = open_warehouse(settings)
        self.service = CompactionService(settings, warehouse=warehouse, store=self.store, launcher=self.launcher)

    def folder(self, job_id: str) -> JobFolder:
        return self.service._supervisor.folder(job_id)

    def reach(self, job_id: str, state: JobState, restarts: int = 0) -> None:
        deadline = time.monotonic() + 20
        while True:
            self.service._supervisor.tick()
            job = self.store.get(job_id)
            if (job.state, job.restarts) == (state, restarts):
                return
            assert time.monotonic() < deadline, f"{job_id} is not {state} within 20 s: it is {job.state}"
            time.sleep(0.01)

    def close(self) -> None:
        self.service.stop()
        self.service.join()
        self.store.close()
        self.launcher.end_all()


@pytest.fixture
def yard(tmp_path, monkeypatch):
    monkeypatch.setattr("jobs.supervisor._RESTART_WAITS_SECONDS", (0.0, 0.0, 0.0))
    made = Yard(read_settings({"REFEED_HOME": str(tmp_path)}))
    yield made
    made.close()


def test_a_driver_that_dies_is_replaced_and_the_job_ends_with_its_figures(yard):
    made = yard.service.create(["archive"], principal=ANN)
    yard.reach(made.id, JobState.RUNNING)
    (launch,) = yard.launcher.launched
    assert launch.module == "backup.compaction.job"
    assert yard.folder(made.id).read_specification()["tables"] == ["archive"]
    yard.launcher.kill(yard.launcher.drivers[0])
    yard.reach(made.id, JobState.RUNNING, restarts=1)
    folder = yard.folder(made.id)
    folder.write_findings({"archive": 7})
    folder.write_outcome(Outcome(len(yard.launcher.launched), JobState.SUCCEEDED))
    yard.launcher.kill(yard.launcher.drivers[-1])
    yard.reach(made.id, JobState.SUCCEEDED, restarts=1)
    done = yard.service.get(made.id, principal=ANN)
    assert done.files_removed == {"archive": 7}
    assert COMPACTION.describe(yard.store.get(made.id)) == {"tables": ["archive"], "files_removed": {"archive": 7}}
    assert "archive compacted: 7 files fewer" in [each.what for each in yard.store.list_events(made.id)]
    with pytest.raises(JobStateError):
        yard.service.cancel(made.id, principal=ANN)


def test_bigquery_compacts_by_itself_so_that_a_compaction_is_refused(yard, tmp_path):
    settings = replace(read_settings({"REFEED_HOME": str(tmp_path)}), warehouse="bigquery")
    service = CompactionService(
        settings, warehouse=open_warehouse(settings), store=yard.store, launcher=yard.launcher
    )
    with pytest.raises(RequestInvalidError, match="The warehouse bigquery compacts its tables by itself"):
        service.create(["archive"], principal=ANN)
    assert yard.store.list_active() == []
