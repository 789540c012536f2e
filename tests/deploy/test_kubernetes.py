import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from rollout.child import STOP_SECONDS

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"


def resources() -> dict[str, dict]:
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    found = {}
    for name in kustomization["resources"]:
        for resource in yaml.safe_load_all((FOLDER / name).read_text()):
            found[f"{resource['kind']}/{resource['metadata']['name']}"] = resource
    return found


def test_every_file_is_in_the_kustomization() -> None:
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(p.name for p in FOLDER.glob("*.yaml") if p.name != "kustomization.yaml")


@pytest.mark.parametrize("name", ["refeed-backup", "refeed-pipeline", "refeed-agent", "refeed-api"])
def test_a_pod_runs_without_rights_and_keeps_the_home(name: str) -> None:
    pod = resources()[f"Deployment/{name}"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["serviceAccountName"] == name
    assert f"ServiceAccount/{name}" in resources()
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert container["volumeMounts"] == [{"name": "home", "mountPath": "/var/lib/refeed"}]


def test_every_setting_exists() -> None:
    known = set(re.findall(r"REFEED_\w+", (ROOT / ".env.example").read_text()))
    used = set(re.findall(r"^(REFEED_\w+)=", (FOLDER / "settings.env").read_text(), re.MULTILINE))
    assert used
    assert used <= known


def test_the_image_has_the_user_and_the_home_that_the_pods_expect() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    pod = resources()["Deployment/refeed-api"]["spec"]["template"]["spec"]
    assert f"USER {pod['securityContext']['runAsUser']}" in dockerfile
    assert "REFEED_HOME=/var/lib/refeed" in dockerfile


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_builds_it() -> None:
    built = subprocess.run(
        ["kubectl", "kustomize", str(FOLDER)], capture_output=True, text=True, timeout=60, check=True
    )
    kinds = sorted(resource["kind"] for resource in yaml.safe_load_all(built.stdout))
    assert kinds == ["ConfigMap", *sorted(r["kind"] for r in resources().values())]
    assert json.dumps(list(yaml.safe_load_all(built.stdout))).count('"image": "refeed:latest"') == 4


def test_the_second_agent_is_a_standby_that_streams_move_to_over_the_same_home() -> None:
    agents = resources()["Deployment/refeed-agent"]["spec"]
    assert agents["replicas"] == 2
    # The new pods take the streams from the old ones: nothing has to be down in between.
    assert agents.get("strategy", {}).get("type") != "Recreate"
    pod = agents["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > STOP_SECONDS
    assert pod["containers"][0]["livenessProbe"]["exec"]["command"] == ["python", "-m", "rollout.probe"]
