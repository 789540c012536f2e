import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import structlog

from cli.processes import free_port, is_listening
from cli.services import configure_logging
from rollout.child import Child
from tests.cli.conftest import count_openings


def test_pubsub_serves_until_it_is_asked_to_stop(home):
    port = free_port()
    command = [sys.executable, "-m", "cli.main", "pubsub", "--port", str(port)]
    child = Child("pubsub", command, environment=os.environ, log=home / "pubsub.log").start()
    try:
        child.wait_until(lambda: is_listening(f"127.0.0.1:{port}"), seconds=30, what="begun to listen")
        assert (home / "pubsub" / "lock").exists()
        child.ask_to_stop()
        assert child.stop(seconds=30) == 0
    finally:
        child.kill()


def test_pubsub_passes_its_options_on(refeed, home, tmp_path, monkeypatch):
    served = []
    monkeypatch.setattr("local.server.serve", served.append)
    assert refeed("pubsub").code == 0
    options = ["--host", "10.0.0.7", "--port", "1", "--health-port", "2", "--fsync", "--data-dir", str(tmp_path)]
    assert refeed("pubsub", *options).code == 0
    assert [(each.port, each.data_dir, each.host, each._fsync, each.health_port) for each in served] == [
        (8085, home / "pubsub", "127.0.0.1", False, None),
        (1, tmp_path, "10.0.0.7", True, 2),
    ]


@pytest.mark.parametrize("command", ["pubsub", "api"])
def test_a_taken_port_is_said_with_the_way_out(refeed, pubsub_server, command):
    is_open = ["--open"] if command == "api" else []
    result = refeed(command, *is_open, "--port", str(pubsub_server.port))
    assert result.code == 1
    assert "port_taken" in result.err
    assert "--port" in result.err


def test_a_service_warns_of_a_setting_that_it_does_not_know(refeed, monkeypatch, caplog):
    monkeypatch.setenv("REFEED_APPROVE_ROWS", "1000")
    said = "Refeed has no setting REFEED_APPROVE_ROWS. Did you mean REFEED_APPROVAL_ROWS"
    monkeypatch.setattr("cli.stack.Stack.start", lambda *_, **__: None)
    monkeypatch.setattr("cli.up._print_addresses", lambda _: signal.raise_signal(signal.SIGINT))
    assert said in refeed("up", "--port", str(free_port()), "--pubsub-port", str(free_port())).err
    monkeypatch.setattr("cli.services.check_port_free", lambda *_: sys.exit(0))
    monkeypatch.setattr("cli.services.configure_logging", lambda _: None)
    refeed("api", "--open")
    assert said in caplog.text


def test_an_api_without_credentials_says_what_to_do_in_one_line(refeed, monkeypatch, tmp_path):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    result = refeed("api", "--open", "--port", str(free_port()))
    assert result.code == 1
    assert result.err.startswith("error credentials_missing")
    assert "Start a local server with 'refeed up'" in " ".join(result.err.split())
    assert "PUBSUB_EMULATOR_HOST" in result.err
    assert "Traceback" not in result.err


def test_the_api_s_process_opens_the_job_store_once(refeed, pubsub_server, monkeypatch):
    # Somebody else's Spark, which nothing here needs.
    monkeypatch.setenv("REFEED_CONNECT_URL", "sc://127.0.0.1:9")
    opened = count_openings(monkeypatch)
    statuses = []

    async def ask(app):
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
        ):
            paths = ("/readyz", "/metrics", "/backfills", "/jobs", "/audit")
            statuses.extend([(await client.get(path)).status_code for path in paths])

    def serve(app, **_):
        asyncio.run(ask(app))

    monkeypatch.setattr("api.server.serve", serve)
    assert refeed("api", "--open", "--port", str(free_port())).code == 0
    assert statuses == [200] * 5
    assert len(opened) == 1


def test_every_log_line_is_one_json_object_on_stderr(capfd):
    configure_logging()
    structlog.get_logger("ours").info("archived", rows=3)
    logging.getLogger("theirs").warning("slow %s", "disk")
    structlog.get_logger("ours").error("failed", exc_info=ValueError("broken"))
    captured = capfd.readouterr()
    lines = [json.loads(line) for line in captured.err.splitlines()]
    assert captured.out == ""
    assert [(line["event"], line["level"]) for line in lines] == [
        ("archived", "info"),
        ("slow disk", "warning"),
        ("failed", "error"),
    ]
    assert lines[0]["rows"] == 3
    assert lines[1]["logger"] == "theirs"
    assert lines[2]["exception"][0]["exc_value"] == "broken"
    assert all(line["timestamp"].endswith("Z") for line in lines)


def test_the_level_says_how_much_is_logged(capfd, monkeypatch):
    monkeypatch.setenv("REFEED_LOG_LEVEL", "error")
    configure_logging()
    structlog.get_logger("ours").warning("not this")
    logging.getLogger("theirs").warning("nor this")
    structlog.get_logger("ours").error("but this")
    assert [json.loads(line)["event"] for line in capfd.readouterr().err.splitlines()] == ["but this"]


def test_a_log_on_a_full_disk_stops_nobody():
    code = (
        "import structlog; from cli.services import configure_logging; configure_logging(); "
        "structlog.get_logger('backup').warning('pull_failed', subscription='s'); print('went on')"
    )
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
            # With it the interpreter itself would keep nothing back.
            env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
            check=True,
            timeout=60,
        )
    assert done.stdout == "went on\n"


@pytest.mark.parametrize("words", [[], ["--open", "--host", "0.0.0.0"]])
def test_an_api_without_keys_starts_only_when_a_person_says_so_and_for_this_machine_alone(refeed, words):
    refused = refeed("api", *words, "--port", str(free_port()))
    assert (refused.code, "refeed key create" in refused.err) == (2, True)
    assert ("--open" in refused.err) is (not words)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_an_error_in_the_log_says_where_and_not_with_what(monkeypatch, capfd, is_terminal):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    configure_logging()
    token = "rf_" + "secret"
    try:
        _ = len(token) // 0
    except ZeroDivisionError:
        structlog.get_logger().exception("it failed")
    said = capfd.readouterr().err
    assert "ZeroDivisionError" in said
    assert "test_services.py" in said
    assert "rf_secret" not in said
