import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from collector.queue import SEGMENT_BYTES
from collector.refused import MAX_REFUSED_BYTES
from collector.settings import read_collector_settings
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


def test_the_image_has_the_user_and_the_home_that_the_pods_expect() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    pod = resources()["Deployment/refeed-api"]["spec"]["template"]["spec"]
    assert f"USER {pod['securityContext']['runAsUser']}" in dockerfile
    assert "REFEED_HOME=/var/lib/refeed" in dockerfile


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_builds_it() -> None:
    built = build(FOLDER)
    kinds = sorted(resource["kind"] for resource in built)
    assert kinds == sorted(["ConfigMap", "ConfigMap", *(r["kind"] for r in resources().values())])
    assert json.dumps(built).count('"image": "refeed:latest"') == 5


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_builds_agents_without_a_shared_disk_that_run_all_streams() -> None:
    built = {
        f"{each['kind']}/{each['metadata']['name']}": each for each in build(ROOT / "deploy" / "kubernetes-bucket")
    }
    assert {name for name in built if name.startswith("Deployment/")} == {
        "Deployment/refeed-agent",
        "Deployment/refeed-api",
    }
    for name in ("refeed-agent", "refeed-api"):
        pod = built[f"Deployment/{name}"]["spec"]["template"]["spec"]
        assert pod["volumes"] == [{"name": "home", "emptyDir": {}}]
    assert not any(name.startswith("PersistentVolumeClaim/") for name in built)
    (settings,) = [each["data"] for name, each in built.items() if name.startswith("ConfigMap/refeed-settings")]
    assert (settings["REFEED_WAREHOUSE"], settings["REFEED_MERGE_AT"]) == ("lake", "00:15")
    assert settings["REFEED_REGISTRY"].startswith("gs://")


def build(folder: Path) -> list[dict]:
    built = subprocess.run(
        ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=60, check=True
    )
    return list(yaml.safe_load_all(built.stdout))


def test_a_collector_keeps_its_queue_on_a_disk_of_its_own() -> None:
    found = resources()["StatefulSet/refeed-collector"]["spec"]
    pod = found["template"]["spec"]
    (container,) = pod["containers"]
    (disk,) = found["volumeClaimTemplates"]
    assert disk["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert {"name": disk["metadata"]["name"], "mountPath": "/var/lib/refeed"} in container["volumeMounts"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    variables = {each["name"]: each["value"] for each in container["env"]}
    queue_bytes = int(variables["REFEED_COLLECTOR_QUEUE_BYTES"])
    gibibytes = int(disk["spec"]["resources"]["requests"]["storage"].removesuffix("Gi"))
    # With a segment for each of a hundred topics, and what is refused.
    assert queue_bytes + 100 * SEGMENT_BYTES + MAX_REFUSED_BYTES < gibibytes * 2**30
    # /readyz fails while Pub/Sub is away, which is what the queue is for.
    assert container["readinessProbe"]["httpGet"]["path"] == "/healthz"


def test_the_collectors_settings_are_mounted_where_it_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    [made] = [each for each in kustomization["configMapGenerator"] if each["name"] == "refeed-collector"]
    [file] = made["files"]
    pod = resources()["StatefulSet/refeed-collector"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    arguments = container["args"]
    settings_file = Path(arguments[arguments.index("--settings") + 1])
    [volume] = [each for each in pod["volumes"] if each["configMap"]["name"] == made["name"]]
    mounted = {"name": volume["name"], "mountPath": str(settings_file.parent)}
    assert mounted in container["volumeMounts"]
    assert settings_file.name == Path(file).name
    monkeypatch.setenv("COLLECTOR_KEY", "a-key-that-is-long-enough")
    topics = re.findall(r"^REFEED_COLLECTOR_TOPICS=(.+)$", (FOLDER / "settings.env").read_text(), re.MULTILINE)
    read_collector_settings(topics[0].split(","), FOLDER / file).check_host("0.0.0.0")


def test_the_second_agent_is_a_standby_that_streams_move_to_over_the_same_home() -> None:
    agents = resources()["Deployment/refeed-agent"]["spec"]
    assert agents["replicas"] == 2
    # The new pods take the streams from the old ones: nothing has to be down in between.
    assert agents.get("strategy", {}).get("type") != "Recreate"
    pod = agents["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > STOP_SECONDS
    assert pod["containers"][0]["livenessProbe"]["exec"]["command"] == ["python", "-m", "rollout.probe"]
