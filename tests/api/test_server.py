import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from api import server as api_server
from api.server import MAX_HEAD_BYTES, Server, check_admission, make_config
from api.state import AppState, put_state, state_of
from cli.processes import free_port
from model.errors import SettingsError
from rollout.child import STOP_SECONDS
from tests.waiting import wait_until

NOT_MEASURED: Any = None


@pytest.fixture(scope="module")
def api(start_api):
    return start_api(REFEED_BODY_TIMEOUT_SECONDS="1")


def split(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(first.split()[1]), headers, body


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_loopback_without_a_key_is_served_only_when_a_person_asks_for_it(host):
    check_admission(host, has_callers=False, is_open=True)
    with pytest.raises(SettingsError, match="--open"):
        check_admission(host, has_callers=False, is_open=False)


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "refeed.example"])
def test_any_other_address_needs_a_key_or_an_issuer(host, is_open):
    check_admission(host, has_callers=True, is_open=is_open)
    with pytest.raises(SettingsError, match="refeed key create"):
        check_admission(host, has_callers=False, is_open=is_open)


def test_an_action_waits_for_a_second_person_only_where_callers_can_be_told_apart():
    check_admission("127.0.0.1", has_callers=True, is_open=False, held=["drain"])
    with pytest.raises(SettingsError, match="REFEED_APPROVE_STREAMS=drain,update needs a second person"):
        check_admission("127.0.0.1", has_callers=False, is_open=True, held=["drain", "update"])


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nbad header\r\n\r\n", 400),
        (b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"POST /backfills HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 2 * MAX_HEAD_BYTES, 431),
        (b"GET /" + b"x" * 2 * MAX_HEAD_BYTES, 431),
    ],
)
def test_what_is_no_request_is_a_problem_too(api, content, status):
    answered, headers, body = split(api.send_raw(content))
    assert answered == status
    assert headers["content-type"] == "application/problem+json"
    assert headers["connection"] == "close"
    problem = json.loads(body)
    assert (problem["status"], problem["code"]) == (status, "http_error")


@pytest.mark.parametrize("beginning", [b"", b"GET /healthz HTTP/1.1\r\nHost: loc"])
def test_a_head_that_never_ends_ends_its_connection(api, beginning):
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", api.port), timeout=20) as connection:
        connection.sendall(beginning)
        assert connection.recv(1000) == b""
    assert 0.9 < time.monotonic() - began < 15


def test_a_head_that_drips_has_no_more_time_than_one_that_stops(api):
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", api.port), timeout=20) as connection:
        connection.settimeout(0.05)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        while time.monotonic() - began < 15:
            try:
                connection.sendall(b"x")
                if connection.recv(1000) == b"":
                    break
            except TimeoutError:
                continue
            except OSError:
                break
    assert time.monotonic() - began < 10


def test_a_connection_is_used_again_after_an_answer(api):
    with socket.create_connection(("127.0.0.1", api.port), timeout=20) as connection:
        for _ in range(3):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
            connection.sendall(b"\r\n")
            answer = b""
            while b"}" not in answer:
                answer += connection.recv(10_000)
            assert answer.startswith(b"HTTP/1.1 200 ")
            # All three take longer than one head may: what counts is each head's own time.
            time.sleep(0.5)


def test_every_answer_says_that_it_is_no_page_to_frame_or_keep(api):
    with api.client() as client:
        for path in ("/healthz", "/nothing", "/docs"):
            headers = client.get(path).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert headers["cache-control"] == "no-store"
            assert "uvicorn" not in headers.get("server", "")


def test_an_endless_answer_does_not_keep_a_server_that_is_to_stop():
    app = FastAPI()
    state = put_state(app, AppState(NOT_MEASURED))

    async def lines():
        while not state.is_stopping:
            yield b"on and on\n"
            await asyncio.sleep(0.05)

    @app.get("/endless")
    def endless():
        return StreamingResponse(lines())

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = Server(state_of(app), make_config(app, head_seconds=5))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/endless"
            wait_until(lambda: server.started, "it listens")
            with httpx.stream("GET", url, timeout=20) as response:
                received = response.iter_lines()
                assert next(received) == "on and on"
                server.should_exit = True
                # Without the word to stop it would be cut off in the middle, ten seconds later.
                assert set(received) <= {"on and on"}
        finally:
            server.should_exit = True
            thread.join(20)
    assert not thread.is_alive()


def test_the_service_ends_before_a_terminal_that_waits_for_it_kills_it():
    assert api_server._SHUTDOWN_SECONDS + api_server._CLOSE_SECONDS < STOP_SECONDS


# One call hangs where the test says: in a request's thread, or in what the app does at its end.
HANGING_SERVICE = """
import sys, threading
from contextlib import asynccontextmanager
from fastapi import FastAPI
import api.server
from api.state import AppState, put_state

api.server._SHUTDOWN_SECONDS, api.server._CLOSE_SECONDS = 0.5, 0.5
port, hangs = int(sys.argv[1]), sys.argv[2]

@asynccontextmanager
async def lifespan(app):
    yield
    if hangs == "closing":
        threading.Event().wait()

app = FastAPI(lifespan=lifespan)
state = put_state(app, AppState(metrics=None))

@app.get("/")
def answer():
    print("asked", flush=True)
    if hangs == "request":
        threading.Event().wait()

api.server.serve(app, host="127.0.0.1", port=port, head_seconds=5)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("hangs", ["request", "closing"])
def test_a_process_that_is_told_to_end_ends_whatever_its_threads_do(hangs, number):
    port = free_port()
    command = [sys.executable, "-c", HANGING_SERVICE, str(port), hangs]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        try:
            deadline = time.monotonic() + 60
            while True:
                assert service.poll() is None
                assert time.monotonic() < deadline, "it does not listen"
                try:
                    connection = socket.create_connection(("127.0.0.1", port), timeout=1)
                except OSError:
                    time.sleep(0.02)
                else:
                    break
            with connection:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                # The log's lines come before it.
                assert "asked\n" in service.stdout
                service.send_signal(number)
                # One second of its own, and a loaded machine's time.
                assert service.wait(30) != 0
                # By the signal itself, or because what hangs kept it.
                assert service.returncode == -number or "was stopped" in service.stdout.read()
        finally:
            service.kill()
