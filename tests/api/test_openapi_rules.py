"""The OpenAPI document by the rules of others: Redocly's, and those of a client that is generated from it."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.api.test_openapi import NOW, write_archive
from tests.document import openapi_document
from tests.npm import install_packages
from tests.worlds.pypi import install

pytestmark = pytest.mark.cloud

GENERATOR = "openapi-python-client==0.29.1"
CONFIGURATION = "content_type_overrides: {application/yaml: application/octet-stream}\n"
# What somebody writes who has the generated client alone.
SCRIPT = """
import sys, time
from refeed_api.client import Client
from refeed_api.api.backfills import create_backfill
from refeed_api.api.jobs import cancel_job, get_job, list_jobs
from refeed_api.models import BackfillCreate, JobState, PlanOut

client = Client(base_url=sys.argv[1], raise_on_unexpected_status=True)
wanted = {"source_topic": "orders", "from": sys.argv[2], "to": sys.argv[3], "topic": "replay"}
plan = create_backfill.sync(client=client, body=BackfillCreate.from_dict(wanted), validate_only=True)
assert isinstance(plan, PlanOut), plan
assert plan.rows == 20, plan
made = create_backfill.sync(
    client=client,
    body=BackfillCreate.from_dict({**wanted, "plan_id": plan.plan_id, "start_paused": True}),
    idempotency_key="once",
)
assert (made.kind, made.state, made.topic) == ("backfill", JobState.PAUSED, "replay"), made
assert [each.id for each in list_jobs.sync(client=client, topic="replay").jobs] == [made.id]
cancel_job.sync(made.id, client=client, if_match=made.etag)
deadline = time.monotonic() + 20
while (job := get_job.sync(made.id, client=client)).finished_at is None:
    assert time.monotonic() < deadline, job
    time.sleep(0.1)
print(job.state)
"""


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    place = tmp_path_factory.mktemp("document") / "openapi.json"
    place.write_text(json.dumps(openapi_document()))
    return place


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_COLOR": "1", **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)


def test_the_document_breaks_no_rule_of_redocly_s(document):
    done = run("node", install_packages() / "openapi.js", document)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_a_generated_client_plans_creates_follows_and_cancels(document, start_api, tmp_path):
    packages = install(GENERATOR)
    (tmp_path / "configuration.yaml").write_text(CONFIGURATION)
    client = tmp_path / "refeed_api"
    options = ["--path", document, "--output-path", client, "--meta", "none", "--fail-on-warning"]
    options += ["--config", tmp_path / "configuration.yaml"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    made = run(
        sys.executable, "-m", "openapi_python_client", "generate", *options, PYTHONPATH=str(packages), PATH=path
    )
    assert made.returncode == 0, made.stdout + made.stderr

    api = start_api()
    write_archive(api.home)
    # The messages were published before the module was read.
    window = [each.isoformat() for each in (NOW - timedelta(hours=1), datetime.now(UTC))]
    done = run(sys.executable, "-c", SCRIPT, api.url, *window, PYTHONPATH=f"{tmp_path}{os.pathsep}{packages}")
    assert (done.returncode, done.stdout) == (0, "CANCELLED\n"), done.stdout + done.stderr
