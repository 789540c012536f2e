import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from connectors.bigquery.table_id import TableId
from connectors.bigquery.tables.specs import archive_specs, audits_spec
from model.settings import read_settings

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "terraform"


def terraform(*arguments: str, folder: Path = FOLDER) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["terraform", f"-chdir={folder}", *arguments], capture_output=True, text=True, timeout=170, check=False
    )


needs_terraform = pytest.mark.skipif(shutil.which("terraform") is None, reason="terraform is not installed")


def test_the_tables_are_those_that_refeed_init_creates(tmp_path: Path) -> None:
    settings = read_settings({}, home=tmp_path)
    archive = TableId("p", "backup", "messages")
    specs = [*archive_specs(archive, "day", settings.bigquery), audits_spec(archive, settings.bigquery)]
    assert json.loads((FOLDER / "tables.json").read_text()) == {
        spec.id.table: {
            "description": spec.description,
            "clustering": list(spec.clustering),
            "expiration_days": spec.expiration_days,
            "require_partition_filter": spec.require_partition_filter,
            "schema": [{k: v for k, v in field.to_api_repr().items() if v is not None} for field in spec.schema],
        }
        for spec in specs
    }


def test_its_settings_leave_init_nothing_to_change() -> None:
    """Each attribute that 'refeed init' compares is one that Terraform sets, by a variable that it prints."""
    code = (FOLDER / "main.tf").read_text()
    table = code[code.index('resource "google_bigquery_table" "refeed"') : code.index("# -- topics")]
    for attribute in ("description", "schema", "clustering", "require_partition_filter", "labels"):
        assert re.search(rf"^  {attribute} +=", table, re.MULTILINE), attribute
    assert "expiration_ms" in table
    assert "kms_key_name" in table
    # What 'refeed init' puts on every table beside REFEED_BIGQUERY_LABELS.
    assert 'labels = merge({ app = "refeed" }, var.labels)' in code
    printed = dict(re.findall(r"^    (REFEED_\w+) += (.+)$", (FOLDER / "outputs.tf").read_text(), re.MULTILINE))
    by_variable = {
        "PARTITION_EXPIRATION_DAYS": "retention_days",
        "REQUIRE_PARTITION_FILTER": "require_partition_filter",
        "KMS_KEY": "kms_key_name",
        "LABELS": "labels",
        "LOCATION": "location",
    }
    for setting, variable in by_variable.items():
        assert f"var.{variable}" in printed[f"REFEED_BIGQUERY_{setting}"]


def test_datasets_and_bucket_have_keys_of_their_own_places() -> None:
    bucket = (FOLDER / "dataproc.tf").read_text()
    dataset = (FOLDER / "main.tf").read_text()
    assert "for_each = local.jobs_key ==" in bucket
    assert re.search(r"condition +\= local\.jobs_key .*var\.dataproc_region", bucket)
    assert re.search(r"condition +\= var\.kms_key_name .*local\.key_location", dataset)


def test_the_bucket_of_manifests_tells_of_every_change_and_few_may_write_there() -> None:
    code = (FOLDER / "manifests.tf").read_text()
    assert 'event_types    = ["OBJECT_FINALIZE", "OBJECT_DELETE", "OBJECT_ARCHIVE"]' in code
    members = dict(re.findall(r'role +\= "(roles/[\w.]+)"\n +member +\= (\S+)', code))
    assert members == {
        "roles/pubsub.publisher": "data.google_storage_project_service_account.agent[each.key].member",
        "roles/pubsub.subscriber": 'google_service_account.component["api"].member',
        "roles/storage.objectViewer": 'google_service_account.component["api"].member',
        "roles/storage.objectUser": "each.key",
    }
    for setting in ("uniform_bucket_level_access = true", 'public_access_prevention    = "enforced"'):
        assert setting in code


def test_the_bucket_of_a_lake_keeps_no_replaced_file_and_deletes_none_by_its_age() -> None:
    code = (FOLDER / "lake.tf").read_text()
    assert re.search(r"versioning \{\n +enabled = false", code)
    assert "retention_duration_seconds = 0" in code
    assert re.findall(r'type = "(\w+)"', code) == ["AbortIncompleteMultipartUpload"]
    (writers,) = re.findall(r"lake_writers = .* toset\((\[.*\])\)", code)
    assert json.loads(writers) == ["agent", "api", "backup", "pipeline"]
    assert re.findall(r'role +\= "(.+)"', code) == ["roles/storage.objectUser"]


def test_the_lake_s_settings_are_those_of_the_pods_without_a_shared_disk() -> None:
    printed = dict(re.findall(r'^    (REFEED_\w+) += "(.+)"$', (FOLDER / "lake.tf").read_text(), re.MULTILINE))
    in_bucket = {name: re.sub(r"\$\{.*\}", "my-project-refeed-lake", value) for name, value in printed.items()}
    lines = (ROOT / "deploy" / "kubernetes-bucket" / "settings.env").read_text().splitlines()
    assert in_bucket == dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    settings = read_settings(in_bucket)
    assert settings.lake.startswith("gs://my-project-refeed-lake/")


def test_a_notification_is_made_after_all_that_it_needs() -> None:
    """Cloud Storage checks at once that its agent may publish; the agent exists only once its API is enabled."""
    code = (FOLDER / "manifests.tf").read_text()
    for needs_api in ("google_storage_bucket", "google_storage_project_service_account"):
        assert depends_on(code, needs_api) == {"google_project_service.manifests"}
    assert depends_on(code, "google_storage_notification") == {
        "google_pubsub_topic_iam_member.manifests",
        "google_storage_bucket_iam_member.manifests_api",
        "google_storage_bucket_iam_member.manifests_uploaders",
    }


def test_every_name_that_is_referred_to_is_declared() -> None:
    code = "\n".join(path.read_text() for path in sorted(FOLDER.glob("*.tf")))
    assert undeclared(code) == set()
    assert undeclared(f"{code}\nx = google_pubsub_topic.manifest.id") == {"google_pubsub_topic.manifest"}
    assert undeclared(f"{code}\nx = var.nobody") == {"var.nobody"}


def depends_on(code: str, kind: str) -> set[str]:
    (block,) = re.findall(rf'^(?:resource|data) "{kind}" .*?^}}', code, re.MULTILINE | re.DOTALL)
    (listed,) = re.findall(r"depends_on = \[(.*?)\]", block, re.DOTALL)
    return {name.strip() for name in listed.split(",") if name.strip()}


def undeclared(code: str) -> set[str]:
    """Return the resources, data, variables and locals that the code refers to and that it does not declare."""
    code = re.sub(r"#.*", "", code)
    declared = {f"{kind}.{name}" for kind, name in re.findall(r'^resource "(\w+)" "(\w+)"', code, re.MULTILINE)}
    declared |= {f"data.{kind}.{name}" for kind, name in re.findall(r'^data "(\w+)" "(\w+)"', code, re.MULTILINE)}
    declared |= {f"var.{name}" for name in re.findall(r'^variable "(\w+)"', code, re.MULTILINE)}
    for block in re.findall(r"^locals \{\n(.*?)^\}", code, re.MULTILINE | re.DOTALL):
        declared |= {f"local.{name}" for name in re.findall(r"^  (\w+) +=", block, re.MULTILINE)}
    referred = re.findall(r"\b(?:data\.google_\w+\.\w+|(?<!data\.)google_\w+\.\w+|(?:var|local)\.\w+)", code)
    return set(referred) - declared


@needs_terraform
def test_it_is_formatted() -> None:
    checked = terraform("fmt", "-check", "-recursive")
    assert checked.returncode == 0, checked.stdout


@needs_terraform
@pytest.mark.cloud
@pytest.mark.timeout(400)
def test_terraform_finds_it_valid(tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDER, tmp_path / "terraform")
    initialised = terraform("init", "-backend=false", "-input=false", "-no-color", folder=folder)
    if initialised.returncode != 0:
        pytest.skip("terraform can't fetch the google provider here: its registry is out of reach")
    checked = terraform("validate", "-json", folder=folder)
    assert json.loads(checked.stdout)["valid"], checked.stdout
