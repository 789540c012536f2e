"""What a running ``refeed up`` writes to its home, and what other commands make of it."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cli import up
from cli.api import DEFAULT_API_URL, open_api
from cli.invocation import command_settings
from cli.processes import free_port
from cli.running import RunningUp, find_running, record_of, shared_settings
from model.errors import SettingsError
from model.process import Process
from model.settings import read_settings

OWN = Process.of(os.getpid())
assert OWN is not None
RUNNING = RunningUp("http://127.0.0.1:18080", "127.0.0.1:18085", "refeed-local", OWN, {})

SHARED = {
    "REFEED_REGISTRY": "/shop/registry",
    "REFEED_LAKE": "/shop/lake",
    "REFEED_DEAD_LETTER_TABLE": "shop.dead",
}


def write(home: Path, running: RunningUp) -> None:
    record_of(home).parent.mkdir(parents=True, exist_ok=True)
    running.write(record_of(home))


def test_commands_on_the_home_of_a_running_up_find_it_without_any_variable(home):
    write(home, RUNNING)
    assert find_running(os.environ) == RUNNING
    assert command_settings().pubsub_emulator_host == "127.0.0.1:18085"
    with open_api() as api:
        assert api.url == "http://127.0.0.1:18080"


def test_variables_that_are_set_win_over_a_running_up(home, monkeypatch):
    write(home, RUNNING)
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "")
    assert command_settings().pubsub_emulator_host is None
    for url in ("https://refeed.shop.example", "http://[::1]:8080"):
        monkeypatch.setenv("REFEED_API_URL", url)
        with open_api() as api:
            assert api.url == url


def test_an_up_of_another_project_is_not_taken_for_this_one_s_pubsub(home, monkeypatch):
    write(home, RUNNING)
    monkeypatch.setenv("REFEED_PROJECT", "shop-prod")
    assert command_settings().pubsub_emulator_host is None


def test_a_command_without_a_setting_takes_that_of_the_running_up(home, monkeypatch):
    write(home, replace(RUNNING, project="shop-prod", settings=SHARED))
    settings = command_settings()
    assert (settings.project, settings.registry) == ("shop-prod", "/shop/registry")
    assert (settings.lake, settings.dead_letter_table) == ("/shop/lake", "shop.dead")
    monkeypatch.setenv("REFEED_REGISTRY", "/mine")
    assert (command_settings().registry, command_settings().lake) == ("/mine", "/shop/lake")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "other")
    assert command_settings().lake == str(home / "lake"), "an up of another project"


def test_a_secret_of_the_running_up_is_not_noted_but_is_needed(home, monkeypatch):
    environment = {"REFEED_HOME": str(home), "REFEED_SECRET": "s3cret", "REFEED_LAKE": "/shop/lake"}
    stores = ("postgresql://ann:pw@db/refeed", "sqlite:////shop/jobs.db")
    secret, plain = (shared_settings(read_settings(environment | {"REFEED_JOB_STORE": store})) for store in stores)
    assert (secret["REFEED_SECRET"], secret["REFEED_JOB_STORE"], plain["REFEED_JOB_STORE"]) == (
        None,
        None,
        stores[1],
    )
    write(home, replace(RUNNING, settings=secret))
    assert not {"s3cret", "pw"} & set(record_of(home).read_text().replace('"', " ").split())
    with pytest.raises(SettingsError) as refused:
        command_settings()
    assert {fault.split(" is ")[0] for fault in refused.value.details["faults"]} == {
        "REFEED_SECRET",
        "REFEED_JOB_STORE",
    }
    monkeypatch.setenv("REFEED_SECRET", "s3cret")
    monkeypatch.setenv("REFEED_JOB_STORE", stores[0])
    assert command_settings().lake == "/shop/lake"


def test_a_source_that_goes_to_another_registry_than_the_running_up_s_is_not_promised(
    refeed, home, monkeypatch, tmp_path
):
    write(home, replace(RUNNING, settings=SHARED))
    path = tmp_path / "sources.yaml"
    path.write_text("sources: {orders: {topic: orders, schema: inferred}}\n")
    monkeypatch.setenv("REFEED_REGISTRY", str(tmp_path / "mine"))
    result = refeed("source", "publish", path)
    assert "begins to read" not in result.out
    assert "next:" not in result.out
    assert "The running 'refeed up' reads the registry /shop/registry" in " ".join(result.err.split())
    assert "unset REFEED_REGISTRY" in " ".join(result.err.split())
    found = json.loads(refeed("doctor", "--json").out)["findings"]
    assert [(each["state"], each["fix"]) for each in found if each["check"] == "settings"] == [
        ("warning", "unset REFEED_REGISTRY")
    ]


@pytest.mark.parametrize(("is_usual_up", "url"), [(True, DEFAULT_API_URL), (False, RUNNING.api_url)])
def test_once_an_up_has_ended_its_api_is_named_unless_the_usual_one_answers(home, monkeypatch, is_usual_up, url):
    write(home, replace(RUNNING, up=replace(RUNNING.up, pid=2**22 + 1)))
    monkeypatch.setattr("cli.api.is_listening", lambda _: is_usual_up)
    with open_api() as api:
        assert api.url == url
    assert find_running(os.environ) is None


def test_what_a_dead_up_left_is_ignored(home):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as one:
        process = Process.of(one.pid)
        assert process is not None
        write(home, replace(RUNNING, up=process))
        assert find_running(os.environ) is not None
        one.kill()
    assert find_running(os.environ) is None
    assert command_settings().pubsub_emulator_host is None
    for text in ("", "[]", '{"up": 1}', json.dumps({"processes": {}, "up": {}})):
        record_of(home).write_text(text)
        assert find_running(os.environ) is None
        with open_api() as api:
            assert api.url == DEFAULT_API_URL


def test_a_second_up_names_the_first_one_s_process_and_addresses(refeed, home):
    with up._hold_home(home) as record:
        RUNNING.write(record)
        result = refeed("up", "--port", str(free_port()), "--pubsub-port", str(free_port()))
    assert result.code == 1
    assert result.err.startswith(f"error lease_held  Another 'refeed up' (process {os.getpid()}) runs on {home}, ")
    assert "its API at http://127.0.0.1:18080 and Pub/Sub at 127.0.0.1:18085" in result.err


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("127.0.0.1:8080", "write REFEED_API_URL=http://127.0.0.1:8080"),
        ("localhost:8080", "write REFEED_API_URL=http://localhost:8080"),
        ("refeed.shop.example", "write REFEED_API_URL=http://refeed.shop.example"),
        ("ftp://refeed", "such as http://127.0.0.1:8080"),
        ("http://", "such as http://127.0.0.1:8080"),
        ("http://[::1", "is not an address"),
        ("http://api.example:99999", "is not an address"),
        ("http://api.example:x", "is not an address"),
    ],
)
def test_an_api_url_that_is_none_says_what_to_write(refeed, monkeypatch, url, wanted):
    monkeypatch.setenv("REFEED_API_URL", url)
    with pytest.raises(SettingsError, match=wanted):
        open_api()
    result = refeed("get", "streams")
    assert (result.code, result.err.startswith("error settings_invalid  REFEED_API_URL=")) == (2, True)
