"""Bodies of which only a part arrives: a caller that dies while it sends has asked for nothing."""

import socket
import time
from typing import Any, Final

import pytest

from tests.api.backfills import api, paused
from tests.waiting import wait_until

__all__ = ["api"]
# Every beginning of it that ends with a line is a manifest too.
_MANIFEST: Final = b"kind: Schedule\nname: merges\ncron: 15 0 * * *\njob: {kind: merge}\ndescription: nightly\n"


@pytest.fixture
def send_part(api):
    """Return what sends a request's head and a part of its body, leaves, and returns when the API has noticed."""

    def send(line, part, *, whole_bytes):
        head = f"{line} HTTP/1.1\r\nHost: 127.0.0.1:{api.port}\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", api.port), timeout=10) as connection:
            connection.sendall(f"{head}Content-Length: {whole_bytes}\r\n\r\n".encode() + part)
            # It is admitted meanwhile, and waits for the rest of its body.
            time.sleep(0.3 if len(part) < whole_bytes else 0)
        time.sleep(0.5)

    return send


def test_the_beginning_of_a_manifest_is_not_applied(client, send_part):
    send_part("POST /manifests:apply", _MANIFEST[: _MANIFEST.index(b"description")], whole_bytes=len(_MANIFEST))
    assert client.get("/manifests/merges").status_code == 404
    answer = client.post("/manifests:apply", content=_MANIFEST, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200, answer.text


def test_a_retry_whose_choice_did_not_arrive_retries_nothing(client, send_part):
    path = f"/jobs/{paused(client)['id']}"
    assert client.post(f"{path}:cancel").status_code == 200
    _wait_for_state(client, path, "CANCELLED")
    send_part(f"POST {path}:retry", b"", whole_bytes=len(b'{"only": "failed"}'))
    assert client.get(path).json()["state"] == "CANCELLED"


def test_a_retry_whose_caller_leaves_at_once_is_not_taken_for_one_of_all(client, send_part):
    path = f"/jobs/{paused(client)['id']}"
    assert client.post(f"{path}:cancel").status_code == 200
    _wait_for_state(client, path, "CANCELLED")
    choice = b'{"only": "failed", "code": "gave_up"}'
    send_part(f"POST {path}:retry", choice, whole_bytes=len(choice))
    # Whether its body was read in time or not: there are no dead letters to send again.
    assert client.get(path).json()["state"] == "CANCELLED"


def test_a_call_without_a_body_counts_although_its_caller_has_left(client, send_part):
    path = f"/jobs/{paused(client)['id']}"
    send_part(f"POST {path}:cancel", b"", whole_bytes=0)
    _wait_for_state(client, path, "CANCELLED")


def _wait_for_state(client: Any, path: str, state: str) -> None:
    wait_until(lambda: client.get(path).json()["state"] == state, f"it is {state}")
