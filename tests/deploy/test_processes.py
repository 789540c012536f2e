"""Every way to deploy Refeed runs the processes that docs/deploy.md lists."""

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from cli.main import app
from model.settings import read_settings

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def processes() -> dict[str, list[str]]:
    """What the page's table says: the name that a process runs under, and its command."""
    page = (ROOT / "docs" / "deploy.md").read_text()
    found = dict(re.findall(r"^\| `refeed ([^`]+)` \| `refeed-([^`]+)` \|", page, re.MULTILINE))
    assert {"backup", "pipeline", "api"} <= set(found.values())
    return {name: command.split() for command, name in found.items()}


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


def kubernetes(kind: str) -> dict[str, dict[str, Any]]:
    files = (ROOT / "deploy" / "kubernetes").glob("*.yaml")
    documents = [document for file in files for document in yaml.safe_load_all(file.read_text())]
    return {
        document["metadata"]["name"].removeprefix("refeed-"): document
        for document in documents
        if document["kind"] == kind
    }


def test_compose_runs_them(processes: dict[str, list[str]], services: dict[str, Any]) -> None:
    waited_for = {
        other
        for service in services.values()
        for other, wanted in service.get("depends_on", {}).items()
        if wanted["condition"] == "service_completed_successfully"
    }
    running = {
        name: shlex.split(service["command"])
        for name, service in services.items()
        if service["image"] == "refeed" and name not in waited_for and not name.startswith("spark-")
    }
    assert running.keys() == processes.keys()
    for name, command in processes.items():
        assert running[name][: len(command)] == command
        assert "healthcheck" in services[name]


def test_the_cores_of_the_workers_are_enough_for_all_that_holds_some(services: dict[str, Any]) -> None:
    environment = services["backup"]["environment"]
    each = int(json.loads(environment["REFEED_SPARK_CONF"])["spark.cores.max"])
    offered = sum(int(cores) for cores in re.findall(r"--cores (\d+)", json.dumps(services)))
    # Two streams and a merge, beside the backfills that run at once.
    assert offered >= each * (3 + int(environment["REFEED_MAX_RUNNING"]))


def test_kubernetes_runs_them(processes: dict[str, list[str]]) -> None:
    deployments = kubernetes("Deployment") | kubernetes("StatefulSet")
    assert deployments.keys() == processes.keys()
    for name, command in processes.items():
        pod = deployments[name]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert container["args"][: len(command)] == command
        assert {"startupProbe", "livenessProbe"} <= container.keys()
        assert pod["serviceAccountName"] == f"refeed-{name}"


@pytest.mark.parametrize(("name", "stream"), [("backup", "backup"), ("pipeline", "pipeline-default")])
def test_a_stream_is_probed_under_the_name_that_it_reports_under(name, stream, services):
    (container,) = kubernetes("Deployment")[name]["spec"]["template"]["spec"]["containers"]
    probe = ["python", "-m", "streams.probe", stream]
    assert container["startupProbe"]["exec"]["command"] == probe
    assert container["livenessProbe"]["exec"]["command"] == probe
    assert services[name]["healthcheck"]["test"] == ["CMD", *probe]


def test_what_has_replicas_keeps_one_while_nodes_are_drained() -> None:
    budgets = kubernetes("PodDisruptionBudget")
    for name, deployment in (kubernetes("Deployment") | kubernetes("StatefulSet")).items():
        has_several = deployment["spec"]["replicas"] > 1
        assert (name in budgets) == has_several
        if has_several:
            wanted = budgets[name]["spec"]
            assert wanted["minAvailable"] < deployment["spec"]["replicas"]
            labels = deployment["spec"]["template"]["metadata"]["labels"]
            assert wanted["selector"]["matchLabels"].items() <= labels.items()


def test_each_has_an_account_of_its_own(processes: dict[str, list[str]]) -> None:
    made = json.loads((ROOT / "deploy" / "terraform" / "roles.json").read_text())
    assert made.keys() == processes.keys()
    accounts = kubernetes("ServiceAccount")
    assert accounts.keys() == processes.keys()
    for name, account in accounts.items():
        google = account["metadata"]["annotations"]["iam.gke.io/gcp-service-account"]
        assert google == f"refeed-{name}@my-project.iam.gserviceaccount.com"


def test_the_merge_has_its_time_and_its_datasets_everywhere(services: dict[str, Any]) -> None:
    usual = f"{read_settings({'HOME': '/somewhere'}).merge_at:%H:%M}"
    settings = (ROOT / "deploy" / "kubernetes" / "settings.env").read_text()
    variables = (ROOT / "deploy" / "terraform" / "variables.tf").read_text()
    assert services["api"]["environment"]["REFEED_MERGE_AT"] == usual
    assert f"REFEED_MERGE_AT={usual}\n" in settings
    assert re.search(rf'variable "merge_at" {{[^}}]*default +\= "{usual}"', variables)
    for kind in ("staging", "reporting"):
        assert re.search(rf'variable "{kind}_datasets" {{[^}}]*default +\= \["{kind}"\]', variables)


def test_cron_finds_refeed_and_its_home_where_the_image_has_them(tmp_path: Path) -> None:
    lines = (ROOT / "deploy" / "cron" / "refeed.cron").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if re.match(r"[A-Z_]+=", line))
    dockerfile = (ROOT / "Dockerfile").read_text()
    venv = re.search(r"python -m venv (\S+)", dockerfile)
    # Cron gives its jobs hardly more than this file says.
    assert f"{venv[1]}/bin" in given["PATH"].split(":")
    assert f"REFEED_HOME={given['REFEED_HOME']}\n" in dockerfile

    stub = tmp_path / "refeed"
    stub.write_text('#!/bin/sh\necho "$@"\n')
    stub.chmod(0o755)
    environment = {**given, "PATH": f"{tmp_path}:{given['PATH']}"}
    said = []
    for line in lines:
        if re.match(r"[\d*]", line):
            command = line.split(None, 6)[6].replace("\\%", "%")
            done = subprocess.run(
                ["/bin/sh", "-c", command], env=environment, capture_output=True, text=True, timeout=60, check=True
            )
            said += re.sub(r"20\d\d(-?)\d\d-?\d\d", r"DAY\1", done.stdout).splitlines()
    assert said == [
        "merge create --watch --idempotency-key merge-DAY-",
        "backup snapshot night-DAY",
        "compact",
        "archive vacuum --keep-hours 48",
    ]


@pytest.mark.parametrize(
    ("file", "setting"),
    [
        ("docker-compose.yml", r"^ +(REFEED_\w+):"),
        ("deploy/kubernetes/settings.env", r"^(REFEED_\w+)="),
        ("deploy/terraform/outputs.tf", r"(REFEED_\w+)"),
        ("deploy/cron/refeed.cron", r"^(REFEED_\w+)="),
    ],
)
def test_every_setting_exists(file: str, setting: str) -> None:
    known = set(re.findall(r"REFEED_\w+", (ROOT / ".env.example").read_text()))
    used = set(re.findall(setting, (ROOT / file).read_text(), re.MULTILINE))
    assert used
    assert used <= known


def test_every_command_is_one_of_refeeds(services: dict[str, Any]) -> None:
    lines = (ROOT / "deploy" / "cron" / "refeed.cron").read_text().splitlines()
    cron = [
        part for line in lines if re.match(r"[\d*]", line) for part in line.split(" refeed ", 1)[1].split("&&")
    ]
    # cron ends a line at a % that is not escaped.
    assert not any("%" in text.replace("\\%", "") for text in cron)
    texts = [text.replace("$(date -u", "date").replace(")", "").removeprefix(" refeed ") for text in cron]
    ours = [
        service for service in services.values() if service["image"] == "refeed" and "entrypoint" not in service
    ]
    texts += [service["command"] for service in ours]
    assert (len(cron), len(ours)) == (4, 9)
    for text in texts:
        words = shlex.split(text)
        group: Any = typer.main.get_command(app)
        command = group.commands[words.pop(0)]
        while hasattr(command, "commands") and words and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known
