import base64
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any

import pytest

SECRET = "whsec_" + base64.b64encode(b"s" * 32).decode()
DAY = {"type": "DATE", "value": "2026-01-01"}
BODY = {
    "query": "SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE = @day",
    "parameters": {"day": DAY},
    "topic": "replay",
    "description": "why",
}


@pytest.fixture
def heard() -> Iterator[tuple[str, "Queue[dict[str, Any]]"]]:
    """An address, and what is sent there."""
    calls: Queue[dict[str, Any]] = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            calls.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/hook", calls
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_end_of_a_backfill_is_told_where_the_settings_say(
    start_api: Callable[..., Any], heard: tuple[str, "Queue[dict[str, Any]]"]
) -> None:
    url, calls = heard
    api = start_api(REFEED_NOTIFY_URL=url, REFEED_NOTIFY_SECRET=SECRET)
    with api.client() as client:
        made = client.post("/backfills", json=BODY).json()

    said = calls.get(timeout=30)

    assert said["type"] == "backfill.failed"
    assert (said["data"]["id"], said["data"]["created_by"]) == (made["id"], "local")
    assert said["data"]["error"]["code"] == "launch_failed"
    assert "query" not in json.dumps(said["data"])
