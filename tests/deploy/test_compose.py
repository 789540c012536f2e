import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from cli.main import app

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


def test_whoever_is_waited_for_is_there_and_says_how_it_is(services: dict[str, Any]) -> None:
    for name, service in services.items():
        for other, wanted in service.get("depends_on", {}).items():
            assert other in services, f"{name} waits for {other}"
            if wanted["condition"] == "service_healthy":
                assert "healthcheck" in services[other], f"{name} waits for the health of {other}"


def test_what_is_published_is_published_on_loopback_only(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert len(ports) == 2
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_every_command_is_one_of_refeeds(services: dict[str, Any]) -> None:
    group: Any = typer.main.get_command(app)
    checked = 0
    for service in services.values():
        if service["image"] != "refeed" or "entrypoint" in service:
            continue
        words = shlex.split(service["command"])
        command = group
        while hasattr(command, "commands") and words and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        assert command is not group
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known
        checked += 1
    assert checked == 8


def test_every_setting_exists(services: dict[str, Any]) -> None:
    known = set(re.findall(r"REFEED_\w+", (ROOT / ".env.example").read_text()))
    used = {name for name in services["api"]["environment"] if name.startswith("REFEED_")}
    assert used
    assert used <= known


def test_every_target_that_is_built_is_in_the_dockerfile(services: dict[str, Any]) -> None:
    stages = set(re.findall(r"^FROM .* AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    wanted = {service["build"]["target"] for service in services.values() if "build" in service}
    assert wanted == {"refeed", "bigquery-standin"}
    assert wanted <= stages


def test_docker_compose_takes_it() -> None:
    ways = (["docker", "compose"], ["docker-compose"])
    for way in ways:
        if shutil.which(way[0]) and run(*way, "version").returncode == 0:
            checked = run(*way, "--file", str(ROOT / "docker-compose.yml"), "config", "--quiet")
            assert checked.returncode == 0, checked.stderr
            return
    pytest.skip("docker compose is not installed")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
