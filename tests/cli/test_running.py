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
from cli.running import RunningUp, find_running, record_of
from model.errors import SettingsError
from model.process import Process

OWN = Process.of(os.getpid())
assert OWN is not None
RUNNING = RunningUp("http://127.0.0.1:18080", "127.0.0.1:18085", "refeed-local", OWN, {})


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
