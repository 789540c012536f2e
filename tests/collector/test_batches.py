import gzip
import json

import pytest

from tests.collector.conftest import problem_of

NDJSON = "application/x-ndjson"


def items_of(answer):
    return answer.json()["items"]


def test_an_array_is_a_batch_with_an_answer_for_each_event(yard):
    answer = yard.post(b'[ {"a" : 1.0} , {"b":1,"b":2}, [1, 2] ]', content_type="application/json")
    assert (answer.status_code, answer.json()["taken"], answer.json()["refused"]) == (207, 2, 1)
    first, second, third = items_of(answer)
    assert (first["status"], second["status"], second["code"]) == (200, 422, "request_invalid")
    assert third["status"] == 200
    assert second["errors"][0]["code"] == "json_name_repeated"
    messages = {message.attributes["uuid"]: message for message in yard.pull(2)}
    assert [messages[item["uuid"]].data for item in (first, third)] == [b'{"a" : 1.0}', b"[1, 2]"]
    assert messages[first["uuid"]].attributes["timestamp"] == first["timestamp"]


def test_lines_are_a_batch_too(yard):
    answer = yard.post(b'{"a":1}\r\n\n  \n{"a":\n{"a": 2}', content_type=NDJSON)
    assert [item["status"] for item in items_of(answer)] == [200, 422, 200]
    messages = yard.pull(2)
    assert {message.data for message in messages} == {b'{"a":1}', b'{"a": 2}'}
    assert {message.attributes["content_type"] for message in messages} == {"application/json"}


def test_a_batch_of_nothing_but_faults_has_their_status(yard):
    answer = yard.post(b"{\n}", content_type=NDJSON)
    assert (answer.status_code, answer.json()["taken"]) == (422, 0)
    yard.pull(0)


@pytest.mark.parametrize("body", [b"[]", b" [\n]"])
def test_an_empty_batch_is_refused(yard, body):
    assert problem_of(yard.post(body)) == (422, "request_invalid", ["batch_empty"])


def test_too_many_events_are_refused_as_a_whole(yard):
    assert problem_of(yard.post(b"[" + b"1," * 10_000 + b"1]"))[:2] == (413, "body_too_large")
    yard.pull(0)


def test_a_topic_may_keep_arrays_whole(yard):
    app = yard.collector(yard.settings("topics: {TOPIC: {arrays: event}}"))
    assert "uuid" in yard.post(b"[1, 2]", app=app).json()
    assert yard.pull(1)[0].data == b"[1, 2]"


def test_a_batch_that_pubsub_does_not_take_is_to_be_sent_again(yard):
    app = yard.collector(yard.settings("", "away-for-now"))
    answer = yard.post(b"[1, 2]", app=app, to="/away-for-now")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert [item["code"] for item in items_of(answer)] == ["topic_not_found"] * 2


def test_gzip_is_unpacked_and_what_was_packed_arrives(yard):
    packed = gzip.compress(b'{"a":') + gzip.compress(b"  1}")
    answer = yard.post(packed, content_encoding="gzip", content_type="application/json")
    assert answer.status_code == 200
    assert yard.pull(1)[0].data == b'{"a":  1}'


def test_a_bomb_and_what_is_no_gzip_are_refused(yard):
    app = yard.collector(yard.settings("max_body_bytes: 100000"))
    bomb = gzip.compress(bytes(5_000_000))
    assert problem_of(yard.post(bomb, app=app, content_encoding="gzip"))[:2] == (413, "body_too_large")
    assert problem_of(yard.post(b"{}", content_encoding="gzip"))[2] == ["gzip_invalid"]
    yard.pull(0)


def test_what_a_body_becomes_counts_against_what_all_may_hold(yard):
    settings = yard.settings()
    object.__setattr__(settings, "held_bytes", 1000)
    app = yard.collector(settings)
    packed = gzip.compress(b'"%s"' % (b"x" * 2000))
    assert problem_of(yard.post(packed, app=app, content_encoding="gzip"))[:2] == (503, "queue_full")
    assert [yard.post(b'"%s"' % (b"x" * 900), app=app).status_code for _ in range(2)] == [200, 200]
    yard.pull(2)


def get(yard, query, app=None, **headers):
    async def work(client):
        return await client.get(f"/{yard.topic}?{query}", headers=headers)

    return yard.call(work, app)


def test_a_query_is_an_event_of_texts(yard):
    answer = get(yard, "event=view&page=%C3%A5+b&n=1&uuid=mine&empty=")
    assert (answer.status_code, answer.content) == (204, b"")
    assert "content-length" not in answer.headers
    [message] = yard.pull(1)
    assert json.loads(message.data) == {"event": "view", "page": "å b", "n": "1", "uuid": "mine", "empty": ""}
    assert message.attributes["content_type"] == "application/json"
    assert "event" not in message.attributes
    assert message.attributes["uuid"] != "mine"


def test_an_image_is_shown_to_who_wants_one(yard):
    answer = get(yard, "event=view", accept="image/avif,image/webp,*/*;q=0.8")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/gif")
    assert answer.content[:6] == b"GIF89a"
    assert len(answer.content) == 42
    yard.pull(1)


def test_a_parameter_that_comes_twice_is_refused_or_kept_raw(yard):
    assert problem_of(get(yard, "a=1&a=2"))[2] == ["parameter_repeated"]
    app = yard.collector(yard.settings("topics: {TOPIC: {format: raw}}"))
    assert get(yard, "a=1&a=2", app).status_code == 204
    assert yard.pull(1)[0].data == b"a=1&a=2"
