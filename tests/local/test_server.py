import json
import queue
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import grpc
import pytest
from google.pubsub_v1 import types

from local import damage
from local import server as server_module
from local.resources import Resources
from local.server import STATS_METHOD, PubSubServer
from model.errors import LeaseHeldError, PortTakenError, StorageFullError
from tests.waiting import wait_until
from tests.worlds.full_disk import full


def test_a_second_server_on_the_same_folder_is_refused(server):
    with pytest.raises(LeaseHeldError, match="Another Pub/Sub server"):
        PubSubServer(server.data_dir).start()


def test_a_start_that_has_no_space_to_repair_what_is_damaged_says_so_and_leaves_it(tmp_path, monkeypatch):
    resources = Resources(tmp_path)
    resources.create_topic(types.Topic.pb()(name="projects/p/topics/orders"))
    resources.create_subscription(
        types.Subscription.pb()(name="projects/p/subscriptions/all", topic="projects/p/topics/orders")
    )
    resources.close()
    (acks,) = tmp_path.glob("subscriptions/*.acks")
    acks.write_bytes(b"torn")

    monkeypatch.setattr(damage, "replace_file", full)
    with pytest.raises(StorageFullError, match="no space"):
        PubSubServer(tmp_path).start()
    assert acks.read_bytes() == b"torn"
    monkeypatch.undo()
    with PubSubServer(tmp_path) as server:
        assert list(server.read_stats()) == ["projects/p/subscriptions/all"]


@pytest.mark.parametrize("port", ["port", "health_port"])
def test_a_taken_port_is_refused_and_the_folder_is_free_again(tmp_path, port):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(PortTakenError, match=f"--{port.replace('_', '-')}"):
            PubSubServer(tmp_path, **{port: taken.getsockname()[1]}).start()
    with PubSubServer(tmp_path) as running:
        assert running.port


def get(url: str) -> tuple[int, bytes]:
    """Status and body; an error status is an answer too."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, b""


def test_get_on_the_health_port_answers_while_the_server_serves(tmp_path):
    server = PubSubServer(tmp_path, health_port=0)
    server.start()
    url = f"http://127.0.0.1:{server.health_port}"
    try:
        with socket.create_connection(("127.0.0.1", server.health_port)):
            # One that says nothing keeps nobody from asking.
            assert get(url) == (200, b"Ok")
        assert get(f"{url}/other")[0] == 404
    finally:
        server.stop()
    with pytest.raises(urllib.error.URLError):
        get(url)


def test_an_address_of_ip_version_6_is_served(tmp_path):
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
    with PubSubServer(tmp_path, host="::1", health_port=0) as server:
        assert server.emulator_host == f"[::1]:{server.port}"
        assert get(f"http://[::1]:{server.health_port}/") == (200, b"Ok")
        with grpc.insecure_channel(server.emulator_host) as channel:
            assert channel.unary_unary(STATS_METHOD)(b"") == b"{}"


@pytest.mark.parametrize("is_open", [False, True])
def test_serving_for_others_than_this_machine_is_warned_of(tmp_path, monkeypatch, caplog, is_open):
    def end(_):
        raise LeaseHeldError

    for name in ("raise_file_limit", "_keep_freed_memory"):
        monkeypatch.setattr(server_module, name, lambda: None)
    monkeypatch.setattr(server_module.signal, "signal", lambda *_: None)
    monkeypatch.setattr(PubSubServer, "start", end)
    opened, closed = (
        ("0.0.0.0", "::", "10.1.2.3", "pubsub.example"),
        ("127.0.0.1", "127.1.2.3", "::1", "localhost"),
    )
    for host in opened if is_open else closed:
        caplog.clear()
        with pytest.raises(LeaseHeldError):
            server_module.serve(PubSubServer(tmp_path, host))
        assert ("no authentication" in caplog.text) == is_open


def test_stats_are_the_same_in_the_process_and_over_the_wire(server, shop, channel):
    path = shop.subscribe()
    shop.publish(b"a", b"b")
    shop.ack(path, shop.pull(path, 1))
    over_the_wire = json.loads(channel.unary_unary(STATS_METHOD)(b""))
    assert over_the_wire[path]["undelivered_messages"] == 1
    assert over_the_wire[path]["topic"] == shop.topic
    assert server.read_stats()[path].keys() == over_the_wire[path].keys()


def test_stopping_twice_and_starting_again_keeps_everything(tmp_path):
    server = PubSubServer(tmp_path)
    port = server.start()
    server.stop()
    server.stop()
    assert server.start() == port
    server.stop()


def test_a_waiting_pull_and_a_stream_end_at_once_when_the_server_stops(tmp_path):
    server = PubSubServer(tmp_path)
    server.start()
    path, topic = "projects/p/subscriptions/all", "projects/p/topics/orders"
    server._resources.create_topic(types.Topic.pb()(name=topic))
    server._resources.create_subscription(types.Subscription.pb()(name=path, topic=topic))
    working = server._resources.subscription(path).working
    with grpc.insecure_channel(server.emulator_host) as channel:
        request = types.PullRequest.serialize(types.PullRequest(subscription=path, max_messages=1))
        pull = channel.unary_unary("/google.pubsub.v1.Subscriber/Pull").future(request, timeout=30)
        first = types.StreamingPullRequest(subscription=path, stream_ack_deadline_seconds=10)
        requests = queue.SimpleQueue()
        requests.put(types.StreamingPullRequest.serialize(first))
        stream = channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")(iter(requests.get, None))
        wait_until(lambda: len(working._waiting) == 2, "both wait")
        started = time.monotonic()
        server.stop(grace=20)
        assert time.monotonic() - started < 3
        assert pull.result() == b""
        with pytest.raises(grpc.RpcError) as caught:
            list(stream)
        requests.put(None)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_upkeep_goes_on_after_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(server_module, "CLEAN_UP_SECONDS", 0.01)
    with PubSubServer(tmp_path) as running:
        calls = []

        def clean_up():
            calls.append(1)
            raise OSError("no space")

        monkeypatch.setattr(running._resources, "clean_up", clean_up)
        wait_until(lambda: len(calls) > 2, "upkeep is tried again")


def test_a_folder_without_its_catalogue_is_refused_in_one_line(tmp_path):
    (tmp_path / "topics" / "1").mkdir(parents=True)
    (tmp_path / "topics" / "1" / f"{0:020d}.log").write_bytes(b"messages")
    command = [sys.executable, "-m", "local.server", "--port", "0", "--data-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"{tmp_path}/resources.json is missing")
    assert done.stderr.count("\n") == 1
