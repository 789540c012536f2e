"""A driver as a batch: made once, seen as it is, ended, and refusals that say what is missing."""

import os
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from google.cloud.dataproc_v1 import Batch

from connectors.dataproc.batches import Batches, BatchPlace
from jobs import dataproc as launching
from jobs.dataproc import DataprocLauncher
from jobs.files import open_files
from jobs.launcher import Launch
from model.errors import LaunchError
from model.process import DataprocBatch, Process
from tests.standin.dataproc_server import running_dataproc
from tests.standin.gcs_server import running_gcs

PLACE = BatchPlace(
    "shop",
    "europe-west1",
    "europe-docker.pkg.dev/shop/refeed/dataproc:1",
    "2.3",
    7200,
    service_account="refeed-driver@shop.iam.gserviceaccount.com",
    subnetwork="batches",
    history_server="projects/shop/regions/europe-west1/clusters/history",
    labels=(("team", "data"),),
)


@pytest.fixture(scope="module")
def gcs():
    with running_gcs("jobs") as server:
        yield server


@pytest.fixture
def dataproc(tmp_path, gcs):
    """A Dataproc whose batches stay PENDING."""
    with running_dataproc(tmp_path, gcs) as server:
        server.is_held.set()
        yield server


@pytest.fixture
def launcher(dataproc, tmp_path):
    (tmp_path / "jobs").mkdir()
    launcher = DataprocLauncher(
        Batches(replace(PLACE, host=dataproc.host)),
        open_files(tmp_path / "jobs"),
        {"REFEED_PROJECT": "shop"},
        {"spark.executor.cores": "4"},
    )
    yield launcher
    launcher.close()


def launch(launcher: DataprocLauncher, attempt: int = 1) -> DataprocBatch:
    return launcher.launch(Launch("bf_01ABC", "backfill.job", '{"epoch": 1}', Path("unused"), attempt))


def test_a_batch_says_what_runs_where_and_as_whom(launcher, dataproc, tmp_path):
    driver = launch(launcher)
    assert driver.name == "projects/shop/locations/europe-west1/batches/refeed-bf-01abc-1"
    (made,) = dataproc.creates
    batch = made.batch
    assert batch.pyspark_batch.main_python_file_uri == f"{tmp_path}/jobs/dataproc_main.py"
    assert list(batch.pyspark_batch.args) == ["backfill.job", '{"epoch": 1}']
    assert (batch.runtime_config.version, batch.runtime_config.container_image) == ("2.3", PLACE.image)
    assert dict(batch.runtime_config.properties) == {
        "spark.executor.cores": "4",
        "spark.dataproc.driverEnv.REFEED_PROJECT": "shop",
        "spark.executorEnv.REFEED_PROJECT": "shop",
    }
    execution = batch.environment_config.execution_config
    assert execution.service_account == PLACE.service_account
    assert execution.subnetwork_uri == "batches"
    assert execution.ttl.total_seconds() == 7200
    history = batch.environment_config.peripherals_config.spark_history_server_config
    assert history.dataproc_cluster == PLACE.history_server
    assert dict(batch.labels) == {"app": "refeed", "team": "data"}


def test_a_create_whose_answer_was_lost_is_the_same_batch(launcher, dataproc):
    dataproc.refusals.append(("CreateBatch", grpc.StatusCode.UNAVAILABLE, "the connection broke", True))
    driver = launch(launcher)
    again = launch(launcher)
    later = launch(launcher, attempt=2)
    assert driver == again != later
    assert len({made.request_id for made in dataproc.creates}) == 2
    assert [made.batch_id for made in dataproc.creates] == ["refeed-bf-01abc-1"] * 3 + ["refeed-bf-01abc-2"]


def test_an_attempt_whose_batch_is_there_already_is_that_batch(launcher, dataproc):
    driver = launch(launcher)
    # Google forgets request ids sooner than batches.
    dataproc._request_ids.clear()
    assert launch(launcher) == driver
    assert len(dataproc._batches) == 1


def test_a_driver_of_before_is_looked_for_among_the_processes(launcher):
    driver = Process.of(os.getpid())
    assert launcher.exit_reason(driver) is None
    assert "is gone" in launcher.exit_reason(replace(driver, start_ticks=driver.start_ticks + 1))


def test_a_batch_that_waits_lives_and_one_that_was_deleted_is_gone(launcher, dataproc, monkeypatch):
    monkeypatch.setattr(launching, "_LOOK_SECONDS", 0.0)
    driver = launch(launcher)
    assert launcher.exit_reason(driver) is None
    dataproc.forget(driver.name)
    assert "Dataproc has no batch with this id" in (launcher.exit_reason(driver) or "")


def test_a_batch_that_waits_is_cancelled_once_and_says_where_its_log_is(launcher, dataproc):
    driver = launch(launcher)
    assert launcher.exit_reason(driver) is None
    launcher.kill(driver)
    launcher.kill(driver)
    assert dataproc.calls.count("CancelOperation") == 1
    reason = launcher.exit_reason(driver) or ""
    assert "was cancelled" in reason
    assert "https://console.cloud.google.com/dataproc/batches/europe-west1/refeed-bf-01abc-1" in reason
    launcher.kill(DataprocBatch(driver.name + "-unknown"))


@pytest.mark.parametrize(
    ("state", "message", "said"),
    [
        (Batch.State.SUCCEEDED, "", " ended with code 0."),
        (
            Batch.State.FAILED,
            " Job failed with exit code 3\n",
            " failed: Job failed with exit code 3 Its log is at ",
        ),
    ],
)
def test_a_batch_that_ended_says_how(launcher, dataproc, state, message, said):
    driver = launch(launcher)
    dataproc.end(driver.name, state, message)
    assert (launcher.exit_reason(driver) or "").partition(")")[2].startswith(said)


def test_states_are_asked_for_now_and_then(launcher, dataproc):
    driver = launch(launcher)
    for _ in range(10):
        launcher.exit_reason(driver)
    assert dataproc.calls.count("GetBatch") == 1


def test_dataproc_that_does_not_answer_is_no_end(launcher, dataproc):
    driver = launch(launcher)
    dataproc.refusals.append(("GetBatch", grpc.StatusCode.PERMISSION_DENIED, "not now", False))
    assert launcher.exit_reason(driver) is None


@pytest.mark.parametrize(
    ("status", "said", "advice"),
    [
        ("PERMISSION_DENIED", "Permission 'dataproc.batches.create' denied", r"needs roles/dataproc\.editor"),
        (
            "PERMISSION_DENIED",
            "User not authorized to act as service account",
            r"needs roles/iam\.serviceAccountUser on refeed-driver@shop",
        ),
        (
            "PERMISSION_DENIED",
            "Cloud Dataproc API has not been used in project 1 before",
            r"gcloud services enable dataproc\.googleapis\.com --project=shop",
        ),
        ("RESOURCE_EXHAUSTED", "Insufficient 'CPUS' quota", "lower REFEED_MAX_RUNNING"),
        ("NOT_FOUND", "subnetwork batches was not found", "Check the REFEED_DATAPROC_ settings"),
        ("INVALID_ARGUMENT", "Unsupported runtime version", "Check the REFEED_DATAPROC_ settings"),
    ],
)
def test_a_refusal_says_what_is_missing(launcher, dataproc, status, said, advice):
    dataproc.refusals.append(("CreateBatch", grpc.StatusCode[status], said, False))
    with pytest.raises(LaunchError, match=advice) as refused:
        launch(launcher)
    assert said in refused.value.message
    assert dataproc.creates == []


def test_without_a_login_it_says_how_to_get_one(tmp_path, monkeypatch, no_credentials):
    no_credentials()
    (tmp_path / "jobs").mkdir()
    launcher = DataprocLauncher(Batches(PLACE), open_files(tmp_path / "jobs"), {}, {})
    with pytest.raises(LaunchError, match="gcloud auth application-default login") as refused:
        launch(launcher)
    assert refused.value.code == "credentials_missing"


@pytest.fixture
def no_credentials(monkeypatch):
    """Return what makes this a machine where nobody has logged in."""

    def forget():
        import google.auth.exceptions

        def refuse(*_, **__):
            raise google.auth.exceptions.DefaultCredentialsError("Your default credentials were not found.")

        monkeypatch.setattr("google.auth.default", refuse)

    return forget


def test_a_bucket_that_refuses_is_told_before_anything_is_launched(tmp_path):
    launcher = DataprocLauncher(Batches(PLACE), open_files(tmp_path / "not there"), {}, {})
    with pytest.raises(LaunchError, match="can't be written to"):
        launcher.prepare()
