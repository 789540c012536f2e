"""Topics and streams in the terminal against the API as it is served: each number is the archive's own."""

import json

import pytest

from connectors.lake.archive import LakeArchive
from model.principal import MESSAGES, PLAN, READ, RUN
from streams.status import StatusFile
from tests.archive import fill_archive, messages, write_commits


@pytest.fixture(scope="module")
def api(start_api):
    api = start_api()
    fill_archive(api.home, {"orders": 7, "members": 2})
    return api


def test_topics_have_the_archive_s_numbers(client, refeed):
    code, text, _ = refeed("get", "topics")
    assert code == 0
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert (rows["orders"][1], rows["orders"][-1], rows["members"][-1]) == ("NO", "7", "2")
    shown = json.loads(refeed("get", "topics", "--json")[1])
    told = client.get("/topics").json()
    for topic in (*shown["topics"], *told["topics"]):
        # Both change with the time of the question.
        del topic["freshness_seconds"], topic["messages_per_second"]
    assert shown == told


@pytest.mark.parametrize(("step", "buckets"), [("minute", 60), ("hour", 24), ("day", 30)])
def test_a_topic_has_each_of_its_messages_in_one_step(refeed, step, buckets):
    code, text, _ = refeed("histogram", "orders", "--step", step)
    assert (code, f"by {step}: 7 archived messages" in text) == (0, True)
    found = json.loads(refeed("histogram", "orders", "--step", step, "--json")[1])
    assert (found["step"], found["messages"], sum(each["messages"] for each in found["buckets"])) == (step, 7, 7)
    assert len(found["buckets"]) in (buckets, buckets + 1)


def test_a_step_of_minutes_is_bounded_like_every_other(refeed):
    code, _, said = refeed("histogram", "orders", "--step", "minute", "--from", "8d")
    assert code == 4
    assert "10,000 are allowed" in said


def test_streams_show_what_the_stream_wrote(api, refeed):
    path = api.home / "streams" / "backup" / "status.json"
    path.parent.mkdir(parents=True)
    # Drained: one that runs would have to report again while this looks.
    StatusFile(path).write(state="stopped", totals={"messages": 9})
    code, text, _ = refeed("get", "streams")
    assert code == 0
    assert text.splitlines()[1].split()[:2] == ["backup", "DRAINED"]
    assert text.splitlines()[1].split()[-1] == "9"
    (stream,) = json.loads(refeed("get", "streams", "--json")[1])["streams"]
    assert stream["totals"] == {"messages": 9}


def test_messages_are_found_by_attribute_and_id_and_shown_whole(client, refeed):
    code, text, _ = refeed("messages", "orders", "-a", "n=3")
    assert code == 0
    assert text.splitlines()[:3] == ["m3  published 2024-03-01T00:00:03Z", "  n=3", '  {"n": 3}']
    code, text, _ = refeed("messages", "members", "--id", "m1", "--full")
    assert '  data       8 bytes, text\n{"n": 1}\n' in text
    code, text, _ = refeed("messages", "orders", "--from", "3h", "--to", "2h")
    assert "No such message of orders" in text
    page = json.loads(refeed("messages", "orders", "--limit", "3", "--json")[1])
    told = client.get("/messages", params={"topic": "orders", "page_size": 3, "as_text": True}).json()
    assert page["messages"] == told["messages"]
    assert [message["message_id"] for message in page["messages"]] == ["m6", "m5", "m4"]
    code, text, _ = refeed("messages", "orders", "--limit", "4", "--page-token", page["next_page_token"])
    assert [line.split()[0] for line in text.splitlines() if "published" in line] == ["m3", "m2", "m1", "m0"]


def test_messages_that_are_asked_for_wrongly_are_refused(client, refeed):
    assert refeed("messages", "orders", "-a", "n")[0] == 2
    code, _, said = refeed("messages", "ordres")
    assert (code, "topic_unknown" in said) == (4, True)
    assert refeed("messages", "orders", "--from", "1h", "--to", "2h")[0] == 2
    for params in ({}, {"topic": "1"}, {"topic": "orders", "attribute": ["n=1", "n=2"]}):
        assert client.get("/messages", params=params).status_code == 422, params


def test_reading_messages_needs_a_scope_of_its_own_and_the_topic(start_api):
    closed = start_api()
    # Before the archive is: who may not read learns nothing of it.
    every = closed.make_key(READ, PLAN, RUN, name="every")
    reader = closed.make_key(MESSAGES, name="reader", topics=["orders"])
    asked = {"topic": "orders"}
    with closed.client() as client:
        assert client.get("/messages", params=asked).status_code == 401
    with closed.client(every) as client:
        refused = client.get("/messages", params=asked)
    assert (refused.status_code, "messages.read" in refused.json()["detail"]) == (403, True)
    fill_archive(closed.home, {"orders": 1, "members": 1})
    with closed.client(reader) as client:
        assert len(client.get("/messages", params=asked).json()["messages"]) == 1
        assert client.get("/messages", params={"topic": "members"}).status_code == 403
        assert client.get("/topics").status_code == 403


def test_a_payload_is_found_by_its_text_and_downloaded_bit_for_bit(start_api):
    own = start_api()
    fill_archive(own.home, {"orders": 3})
    exact = b'{"id": 9007199254740993, "n": 1.10}\n'
    large, small = (messages(2, data=[exact, b"\x00\xff" * times]) for times in (500_000, 1))
    write_commits(LakeArchive(str(own.home / "lake"), "backup.messages"), {"large": large, "small": small})
    before = len(own.audit())
    with own.client() as client:
        # The first query of a service, on a machine that has other work to do.
        client.timeout = 60
        asked = {"topic": "large", "text": "740993", "preview_bytes": 8}
        (found,) = client.get("/messages", params=asked).json()["messages"]
        where = {"topic": "large", "from": found["ingest_time"]}
        small = client.get(f"/messages/{found['message_id']}/data", params=where)
        large = client.get("/messages/m1/data", params=where)
        missing = client.get("/messages/m7/data", params=where)
        # One search through a megabyte is enough.
        none = client.get("/messages", params={"topic": "small", "text": "\xff"}).json()["messages"]
        (shown,) = client.get("/messages", params={"topic": "small", "text": "740993"}).json()["messages"]
    assert (found["data"], found["is_cut"], found["data_bytes"]) == ('{"id": 9', True, len(exact))
    assert (small.content, small.headers["Content-Type"]) == (exact, "application/octet-stream")
    assert small.headers["Content-Disposition"] == "attachment"
    assert large.content == b"\x00\xff" * 500_000
    assert (missing.status_code, missing.json()["code"], none) == (404, "message_not_found", [])
    assert (shown["data"], shown["encoding"]) == (exact.decode(), "text")
    lines = own.audit()[before:]
    assert [line.action for line in lines] == [
        "listMessages",
        "downloadMessage",
        "downloadMessage",
        "listMessages",
        "listMessages",
    ]
    assert lines[0].why.startswith("200 1 of large from ")
    # Where the window ends is when the call came.
    size, _, end = lines[1].why.partition(f" bytes of large from {found['ingest_time']} to 2")
    assert (lines[1].target, size) == ("/messages/m0/data", f"200 {len(exact)}")
    assert end.partition(",")[2] == " message m0"
    assert "740993" not in "".join(line.why for line in lines)


def test_a_home_without_a_pipeline_has_no_dead_letters(client, refeed):
    answer = client.get("/dead-letters")
    assert (answer.status_code, answer.json()) == (200, {"reasons": []})
    assert refeed("dead-letters") == (0, "The pipeline has no dead letters in this period.\n", "")


def test_volumes_are_those_of_every_topic_in_one_answer(client, refeed):
    answer = client.get("/volumes")
    found = answer.json()
    again = client.get("/volumes", headers={"If-None-Match": f'"other", {answer.headers["ETag"]}'})
    plain = client.get("/volumes", headers={"Accept-Encoding": "identity"})
    packed = [client.get("/volumes", headers={"Accept-Encoding": each}) for each in ("gzip;q=0.5", "br, GZIP")]
    refusing = [
        client.get("/volumes", headers={"Accept-Encoding": each}) for each in ("gzip;q=0", "gzip; q=0.00, br")
    ]
    by_day = client.get("/volumes", params={"step": "day", "topic": ["orders", "quiet"]}).json()
    refused = client.get("/volumes", params={"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"})
    totals = {topic["topic"]: (topic["total_messages"], topic["total_bytes"]) for topic in found["topics"]}
    assert totals == {"members": (2, 16), "orders": (7, 56)}
    assert (len(found["starts"]), answer.headers["Content-Encoding"]) == (336, "gzip")
    assert (plain.json(), "Content-Encoding" in plain.headers) == (found, False)
    assert [each.headers.get("Content-Encoding") for each in packed] == ["gzip", "gzip"]
    assert [each.headers.get("Content-Encoding") for each in refusing] == [None, None]
    assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", answer.headers["ETag"])
    assert [(topic["topic"], sum(topic["messages"])) for topic in by_day["topics"]] == [
        ("orders", 7),
        ("quiet", 0),
    ]
    assert (refused.status_code, refused.json()["code"]) == (422, "request_invalid")
    code, text, _ = refeed("volumes")
    rows = {line.split()[0]: line.split() for line in text.splitlines()[2:] if line}
    assert (code, rows["orders"][1:4], rows["members"][1:4]) == (0, ["7", "56", "0"], ["2", "16", "0"])
    assert json.loads(refeed("volumes", "--step", "day", "orders", "--json")[1])["topics"] == by_day["topics"][:1]
