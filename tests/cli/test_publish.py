import io
import json

import pytest

from cli.demo.archive import receive
from connectors.pubsub.client import PubSub


def write_lines(path, *lines):
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return str(path)


def test_messages_arrive_as_the_lines_say_and_missing_topics_are_made(refeed, pubsub_server, tmp_path):
    with PubSub("refeed-local", pubsub_server.emulator_host) as pubsub:
        pubsub.create_topic("orders")
        pubsub.create_subscription("all", "orders")
        lines = [{"topic": "orders", "data": n, "attributes": {"n": str(n)}} for n in range(1500)]
        file = write_lines(tmp_path / "m", *lines, {"topic": "members", "data_base64": "/w=="})
        result = refeed("publish", file, "--json")
        assert result.code == 0
        assert json.loads(result.out) == {"published": 1501, "topics": {"orders": 1500, "members": 1}}
        got = receive(
            pubsub.channel, pubsub.subscription_path("all"), want=1500, idle_seconds=10, note=lambda _: None
        )
        assert sorted((m.data, m.attributes["n"]) for m in got) == sorted(
            (str(n).encode(), str(n)) for n in range(1500)
        )
        assert pubsub.list_topics() == ["members", "orders"]


def test_a_topic_that_nothing_backs_up_is_named(refeed, pubsub_server, tmp_path):
    file = write_lines(tmp_path / "m", {"topic": "orders", "data": 1}, {"topic": "members", "data": 1})
    assert refeed("attach", "orders").code == 0
    said = refeed("publish", file).err
    assert "No backup is attached to members, so" in said
    assert "refeed attach members\n" in said
    assert refeed("attach", "members").code == 0
    assert "No backup" not in refeed("publish", file).err


def test_what_stands_before_a_bad_line_is_published(refeed, pubsub_server, tmp_path):
    file = write_lines(
        tmp_path / "m", {"topic": "orders", "data": 1}, {"topic": "orders"}, {"topic": "x1", "data": 1}
    )
    result = refeed("publish", file, "--json")
    assert result.code == 1
    assert "line 2" in result.err
    assert json.loads(result.out) == {"published": 1, "topics": {"orders": 1}}


def test_a_topic_that_is_no_name_is_a_wrong_command_line_and_nothing_is_read(refeed, tmp_path):
    result = refeed("publish", write_lines(tmp_path / "m", {"data": 1}), "--topic", "goog.x")
    assert result.code == 2
    assert "name_invalid" in result.err


@pytest.mark.parametrize(("name", "said"), [("not there", "does not exist"), ("", "is a folder")])
def test_what_is_no_file_is_a_wrong_command_line(refeed, tmp_path, name, said):
    result = refeed("publish", str(tmp_path / name))
    assert (result.code, said in result.err) == (2, True)


def test_a_dash_is_what_comes_through_a_pipe(refeed, pubsub_server, monkeypatch):
    piped = io.TextIOWrapper(io.BufferedReader(io.BytesIO(b'{"topic": "orders", "data": 1}\n')))  # type: ignore[arg-type]
    monkeypatch.setattr("sys.stdin", piped)
    assert json.loads(refeed("publish", "-", "--json").out) == {"published": 1, "topics": {"orders": 1}}


def test_nobody_there_is_unavailable(refeed, tmp_path, monkeypatch):
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "127.0.0.1:1")
    result = refeed("publish", write_lines(tmp_path / "m", {"topic": "orders", "data": 1}))
    assert result.code == 3
    assert "pubsub_unavailable" in result.err
