import json
import socket
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from local import server as server_module
from local.server import STATS_METHOD, PubSubServer
from model.errors import LeaseHeldError, PortTakenError


def test_a_second_server_on_the_same_folder_is_refused(server: PubSubServer) -> None:
    with pytest.raises(LeaseHeldError, match="Another Pub/Sub server"):
        PubSubServer(server.data_dir).start()


def test_a_taken_port_is_refused_and_the_folder_is_free_again(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(PortTakenError, match="--port"):
            PubSubServer(tmp_path, port=taken.getsockname()[1]).start()
    with PubSubServer(tmp_path) as running:
        assert running.port


def test_stats_are_the_same_in_the_process_and_over_the_wire(
    server: PubSubServer, shop, channel: grpc.Channel
) -> None:
    path = shop.subscribe()
    shop.publish(b"a", b"b")
    shop.ack(path, shop.pull(path, 1))
    over_the_wire = json.loads(channel.unary_unary(STATS_METHOD)(b""))
    assert over_the_wire[path]["undelivered_messages"] == 1
    assert over_the_wire[path]["topic"] == shop.topic
    assert server.read_stats()[path].keys() == over_the_wire[path].keys()


def test_stopping_twice_and_starting_again_keeps_everything(tmp_path: Path) -> None:
    server = PubSubServer(tmp_path)
    port = server.start()
    server.stop()
    server.stop()
    assert server.start() == port
    server.stop()


def test_upkeep_goes_on_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_until) -> None:
    monkeypatch.setattr(server_module, "CLEAN_UP_SECONDS", 0.01)
    with PubSubServer(tmp_path) as running:
        calls: list[int] = []

        def clean_up() -> None:
            calls.append(1)
            raise OSError("no space")

        monkeypatch.setattr(running._resources, "clean_up", clean_up)
        wait_until(lambda: len(calls) > 2, "upkeep is tried again")


def test_the_module_says_what_it_takes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "local.server", "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "--data-dir" in done.stdout
