"""What became of a backfill, over real sockets: history, slices, dead letters, logs and watches."""

import json
import time

import pyarrow as pa
import pytest

from backfill.run.dead_letters import DeadLetterWriter
from backfill.run.progress import CheckpointFolder, SliceCheckpoint
from backfill.run.selection import read_slice, write_selection
from tests.api.backfills import api, assert_problem, end, folder_of, paused

__all__ = ["api"]


def test_slices_are_told_one_by_one(client, api):
    made = paused(client)
    assert client.get(f"/jobs/{made['id']}/figures").json() == {"intervals": [], "slices": []}
    folder = folder_of(api, made["id"])
    selection = [{"data": b"x", "attributes": [], "message_id": f"m{n}"} for n in range(30_000)]
    write_selection([pa.RecordBatch.from_pylist(selection[:15_000])] * 2, folder.selection)
    checkpoints = CheckpointFolder(folder.progress)
    checkpoints.create()
    checkpoints.write(SliceCheckpoint(0, 1, offset=1000, published=1000, bytes=5))
    slices = client.get(f"/jobs/{made['id']}/figures").json()["slices"]
    assert [(s["number"], s["state"], s["offset"], s["failed"]) for s in slices][:2] == [
        (0, "begun", 1000, 0),
        (1, "waiting", 0, 0),
    ]
    assert sum(s["rows"] for s in slices) == 30_000
    assert_problem(client.get(f"/jobs/{made['id']}/missing"), 409, "staging_unknown")
    wrong = client.get(f"/jobs/{made['id']}/missing", params={"page_token": "x"})
    assert_problem(wrong, 422, "request_invalid")


def test_dead_letters_are_shown_whole_and_page_by_page(client, api):
    made = paused(client)
    path = f"/dead-letters?job={made['id']}"
    by_reason = f"{path}&group_by=reason"
    assert client.get(path).json() == {"dead_letters": [], "is_cut": False, "next_page_token": None}
    folder = folder_of(api, made["id"])
    rows = pa.RecordBatch.from_pylist(
        [
            {"data": b"\xff", "attributes": [{"key": "k", "value": "v"}], "message_id": f"m{n}", "topic": "orders"}
            for n in range(3)
        ]
    )
    selection = write_selection([rows], folder.selection)
    written = read_slice(folder.selection, selection.slices[0])
    refused = [(0, "gave_up: no answer"), (2, "refused_by_pubsub: too odd")]
    DeadLetterWriter(folder, 1, selection.slices[0]).write(written, refused)
    checkpoints = CheckpointFolder(folder.progress)
    checkpoints.create()
    checkpoints.write(SliceCheckpoint(0, 1, offset=3, published=1, failed=2, done=True))
    first = client.get(f"{path}&page_size=1").json()
    second = client.get(f"{path}&page_size=1&page_token={first['next_page_token']}").json()
    (letter,) = first["dead_letters"]
    assert (letter["row"], letter["message_id"], letter["code"]) == (0, "m0", "gave_up")
    assert letter["reason"] == "no answer"
    assert (letter["data"], letter["encoding"], letter["attributes"]) == ("/w==", "base64", {"k": "v"})
    assert [letter["row"] for letter in second["dead_letters"]] == [2]
    assert (first["is_cut"], second["is_cut"]) == (True, False)
    assert client.get(f"/jobs/{made['id']}/figures").json()["slices"][0]["failed"] == 2
    example = {"messages": 1, "example_row": 0, "example_message_id": "m0", "example_reason": "no answer"}
    reasons = client.get(by_reason).json()["reasons"]
    first = {name: value for name, value in reasons[0].items() if value is not None}
    assert first == {"code": "gave_up", **example}
    assert [reason["code"] for reason in reasons] == ["gave_up", "refused_by_pubsub"]
    DeadLetterWriter(folder, 2, selection.slices[0]).write_published([0])
    assert [reason["code"] for reason in client.get(by_reason).json()["reasons"]] == ["refused_by_pubsub"]
    assert [one["row"] for one in client.get(path).json()["dead_letters"]] == [2]
    (part,) = client.get(f"/jobs/{made['id']}/figures").json()["slices"]
    assert (part["published"], part["failed"]) == (2, 1)


def test_the_log_s_end_is_shown_in_whole_lines(client, api):
    made = paused(client)
    path = f"/jobs/{made['id']}/logs"
    empty = client.get(path)
    assert (empty.status_code, empty.text) == (200, "")
    folder_of(api, made["id"]).driver_log.write_text("first line\nsecond\nthird\n")
    assert client.get(path).text == "first line\nsecond\nthird\n"
    assert client.get(path, params={"tail": 2}).text == "second\nthird\n"
    assert client.get(path, params={"tail": 1}).text == "third\n"
    assert client.get(path, params={"tail": 0}).text == ""
    assert client.get(path).headers["content-type"] == "text/plain; charset=utf-8"
    assert_problem(client.get(path, params={"tail": -1}), 422, "request_invalid")


def test_a_watch_tells_history_and_progress_until_the_end(client, api):
    made = paused(client)
    with client.stream("GET", f"/jobs/{made['id']}:watch") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = read_events(response)
        name, first_id, data = next(events)
        assert (name, data["what"]) == ("history", "created")
        name, number, data = next(events)
        assert (name, number, data["state"]) == ("progress", first_id, "PAUSED")
        client.patch(f"/jobs/{made['id']}", json={"description": "changed"})
        name, second_id, data = next(events)
        assert (name, data["what"]) == ("history", "changed description")
        assert second_id > first_id
        assert next(events)[2]["description"] == "changed"
        end(api, made["id"])
        assert next(events)[2]["what"] == "PAUSED -> CANCELLED"
        name, _, data = next(events)
        assert (name, data["state"]) == ("end", "CANCELLED")
        assert list(events) == []


@pytest.mark.parametrize("how", ["header", "parameter"])
def test_a_watch_goes_on_behind_the_last_line_that_was_seen(client, api, how):
    made = paused(client)
    seen = client.get("/events", params={"object": made["id"]}).json()["events"][0]["number"]
    end(api, made["id"])
    given = {"headers": {"Last-Event-ID": str(seen)}} if how == "header" else {"params": {"after": seen}}
    with client.stream("GET", f"/jobs/{made['id']}:watch", **given) as response:
        told = [(name, data.get("what")) for name, _, data in read_events(response)]
    assert told == [("history", "PAUSED -> CANCELLED"), ("end", None)]
    assert_problem(client.get(f"/jobs/{made['id']}:watch", params={"after": 10**30}), 422, "request_invalid")


def test_a_silent_watch_says_that_it_lives(client, api, monkeypatch):
    monkeypatch.setattr("api.watching._HEARTBEAT_SECONDS", 0.0)
    made = paused(client)
    with client.stream("GET", f"/jobs/{made['id']}:watch") as response:
        beat = next(line for line in response.iter_lines() if line.startswith(":"))
        end(api, made["id"])
    assert beat == ": the connection lives"


def read_events(response):
    fields = {}
    for line in response.iter_lines():
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        else:
            yield fields["event"], int(fields["id"]), json.loads(fields["data"])
            fields = {}


def test_many_who_watch_keep_nobody_waiting(api, client):
    made = paused(client)
    clients = [api.client() for _ in range(60)]
    try:
        opened = [one.stream("GET", f"/jobs/{made['id']}:watch") for one in clients]
        responses = [stream.__enter__() for stream in opened]
        assert {response.status_code for response in responses} == {200}
        asked = time.monotonic()
        assert client.get(f"/jobs/{made['id']}").status_code == 200
        assert time.monotonic() - asked < 5
        end(api, made["id"])
        for stream, response in zip(opened, responses, strict=True):
            assert [name for name, _, _ in read_events(response)][-1] == "end"
            stream.__exit__(None, None, None)
    finally:
        for one in clients:
            one.close()
