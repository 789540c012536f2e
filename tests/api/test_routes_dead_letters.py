"""Dead letters of the pipeline over HTTP: listed to be chosen, by those who may see them."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from model.principal import MESSAGES, READ, RUN
from tests.api.backfills import assert_problem
from tests.backfill.plan.test_redrive import LETTERS, write


@pytest.fixture(scope="module")
def api(start_api: Callable[..., Any]) -> Any:
    api = start_api()
    now = datetime.now(UTC)
    row = {"data": b"x", "publish_time": now, "topic": "orders", "source": "orders", "error_code": "wrong_type"}
    rows = [
        {**row, "message_id": f"m{n}", "error_message": f"lines[{n}].count: is null.", "ingest_time": now}
        for n in range(3)
    ]
    write(api.home / "lake", "backup.dead_letters", LETTERS, rows)
    return api


def test_a_group_has_its_path_and_its_messages_are_listed(api: Any) -> None:
    with api.client() as client:
        (reason,) = client.get("/dead-letters").json()["reasons"]
        chosen = {"source": "orders", "code": reason["code"], "path": reason["path"], "page_size": 2}
        found = client.get("/dead-letters/messages", params=chosen).json()
        none = client.get("/dead-letters/messages", params={"source": "orders", "path": ""}).json()
        assert_problem(client.get("/dead-letters/messages"), 422, "request_invalid")
    assert (reason["path"], reason["messages"]) == ("lines[].count", 3)
    assert ([one["message_id"] for one in found["messages"]], found["is_cut"]) == (["m0", "m1"], True)
    assert none == {"messages": [], "is_cut": False}


def test_who_may_not_read_sees_none(api: Any) -> None:
    with api.client(api.make_key(RUN, name="runner")) as client:
        assert_problem(client.get("/dead-letters/messages", params={"source": "orders"}), 403, "forbidden")


NUMBER = b'{"id": 9007199254740993, "n": 1.10}'
PAYLOADS = [NUMBER, b"", "\u00e5".encode() * 3, b"\xff\xfe", b"x" * 5_000_000]


def write_payloads(api: Any, source: str, payloads: Sequence[bytes], topic: str = "orders") -> None:
    now = datetime.now(UTC)
    row = {"publish_time": now, "topic": topic, "source": source, "error_code": "not_json", "ingest_time": now}
    row |= {"attributes": [{"key": "k", "value": "v"}], "error_message": "It is none."}
    rows = [{**row, "data": data, "message_id": f"{source}{n}"} for n, data in enumerate(payloads)]
    write(api.home / "lake", "backup.dead_letters", LETTERS, rows)


def test_payloads_are_cut_where_the_caller_says_and_downloaded_whole(api: Any) -> None:
    write_payloads(api, "payloads", PAYLOADS)
    asked = {"source": "payloads"}
    with api.client(api.make_key(READ, MESSAGES, name="whole")) as client:
        plain = client.get("/dead-letters/messages", params=asked).json()["messages"]
        answer = client.get("/dead-letters/messages", params={**asked, "preview_bytes": 5})
        chosen = {"preview_bytes": 5, "code": "not_json", "path": ""}
        again = client.get("/dead-letters/messages", params={**asked, **chosen}).json()
        whole = [
            client.get(f"/dead-letters/messages/{n}/data", params={**asked, "topic": "orders"}).content
            for n in (f"payloads{n}" for n in range(len(PAYLOADS)))
        ]
        for wrong in (0, 4097):
            problem = client.get("/dead-letters/messages", params={**asked, "preview_bytes": wrong})
            assert_problem(problem, 422, "request_invalid")
        for message_id, topic in (("payloads0", "members"), ("none", "orders")):
            path = f"/dead-letters/messages/{message_id}/data"
            problem = client.get(path, params={**asked, "topic": topic})
            assert_problem(problem, 404, "message_not_found")
    names = ("data", "encoding", "data_bytes", "is_cut")
    # A cut goes through no character.
    assert [tuple(each[name] for name in names) for each in answer.json()["messages"]] == [
        ('{"id"', "text", 35, True),
        ("", "text", 0, False),
        ("\u00e5\u00e5", "text", 6, True),
        ("//4=", "base64", 2, False),
        ("xxxxx", "text", 5_000_000, True),
    ]
    assert again == answer.json()
    assert {each["attributes"]["k"] for each in again["messages"]} == {"v"}
    assert {each[name] for each in plain for name in (*names, "attributes")} == {None}
    assert whole == PAYLOADS


def test_payloads_are_hidden_from_who_may_not_read_them_and_reads_are_audited(api: Any) -> None:
    write_payloads(api, "hidden", [b"secret"])
    path, asked = "/dead-letters/messages", {"source": "hidden", "preview_bytes": 9}
    data, of_it = f"{path}/hidden0/data", {"source": "hidden", "topic": "orders"}
    hidden = []
    for key in (
        api.make_key(READ, name="blind"),
        api.make_key(READ, MESSAGES, name="clicks", topics=["clicks"]),
    ):
        with api.client(key) as client:
            hidden += client.get(path, params=asked).json()["messages"]
            assert_problem(client.get(data, params=of_it), 403, "forbidden")
    assert [(each["data"], each["encoding"], each["attributes"]) for each in hidden] == [(None, None, None)] * 2
    assert [each["reason"] for each in hidden] == ["It is none."] * 2
    with api.client(api.make_key(MESSAGES, name="unread")) as client:
        assert_problem(client.get(data, params=of_it), 403, "forbidden")
    with api.client(api.make_key(READ, MESSAGES, name="reader")) as client:
        (letter,) = client.get(path, params=asked).json()["messages"]
        assert (letter["data"], letter["attributes"]) == ("secret", {"k": "v"})
        assert client.get(data, params={**of_it, "from": letter["ingest_time"]}).content == b"secret"
        client.get(path, params={"source": "hidden"})
    lines = [(each.action, each.why) for each in api.audit() if each.actor == "key:reader"]
    assert lines == [
        ("listDeadLetters", "200 1 dead letters of orders"),
        ("downloadDeadLetter", "200 6 bytes of orders, message hidden0"),
    ]
    others = [each for each in api.audit() if each.actor in {"key:blind", "key:clicks"}]
    assert {each.outcome for each in others} == {"refused"}
