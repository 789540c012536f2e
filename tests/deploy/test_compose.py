import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from collector.settings import read_collector_settings
from model.settings import read_settings

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def services():
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


def test_every_service_that_another_waits_for_exists_and_has_a_health_check(services):
    for name, service in services.items():
        for other, wanted in service.get("depends_on", {}).items():
            assert other in services, f"{name} waits for {other}"
            if wanted["condition"] == "service_healthy":
                assert "healthcheck" in services[other], f"{name} waits for the health of {other}"


def test_what_is_published_is_published_on_loopback_only(services):
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_every_target_that_is_built_is_in_the_dockerfile(services):
    stages = set(re.findall(r"^FROM .* AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    wanted = {service["build"]["target"] for service in services.values() if "build" in service}
    assert wanted == {"refeed", "bigquery-standin"}
    assert wanted <= stages


def test_docker_compose_takes_it():
    ways = (["docker", "compose"], ["docker-compose"])
    for way in ways:
        if shutil.which(way[0]) and run(*way, "version").returncode == 0:
            checked = run(*way, "--file", str(ROOT / "docker-compose.yml"), "config", "--quiet")
            assert checked.returncode == 0, checked.stderr
            return
    pytest.skip("docker compose is not installed")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_collector_takes_the_settings_that_it_is_given(services, monkeypatch):
    service = services["collector"]
    [mounted] = [volume.split(":") for volume in service["volumes"] if volume.startswith("./")]
    words = shlex.split(service["command"])
    path = words[words.index("--settings") + 1]
    usual = {name: re.fullmatch(r"\$\{\w+:-(.+)\}", text or "") for name, text in service["environment"].items()}
    values = {name: found[1] for name, found in usual.items() if found}
    monkeypatch.setenv("COLLECTOR_KEY", values["COLLECTOR_KEY"])
    file = ROOT / mounted[0] / Path(path).relative_to(mounted[1])
    settings = read_collector_settings(values["REFEED_COLLECTOR_TOPICS"].split(","), file)
    settings.check_host(words[words.index("--host") + 1])


def test_the_lake_is_in_the_shared_home_or_where_the_shell_says_with_its_credentials(services):
    for name in ("backup", "pipeline", "agent", "api", "collector", "spark-worker-1", "init"):
        environment = services[name]["environment"]
        assert environment["REFEED_LAKE"] == "${REFEED_LAKE:-/var/lib/refeed/lake}", name
        # Compose passes a variable without a value on from the shell.
        assert {key for key, value in environment.items() if value is None} == {
            *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_ENDPOINT_URL")
        }
    assert read_settings({"REFEED_HOME": "/var/lib/refeed"}).lake == "/var/lib/refeed/lake"
