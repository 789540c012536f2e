"""Dead letters over HTTP, of the pipeline and of backfills: listed to be chosen, by those who may see them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from backfill.run.dead_letters import DeadLetterWriter
from backfill.run.selection import read_slice, write_selection
from model.principal import MESSAGES, READ, RUN
from pipeline.registry import Registry
from tests import archive
from tests.api.backfills import assert_problem, folder_of, paused
from tests.backfill.plan.test_redrive import STAGED
from tests.pipeline.conftest import compile_protos

# Everything, a source that has dead letters, and one that has none.
ORIGINS: list[dict[str, str]] = [{}, {"source": "orders"}, {"source": "members"}]


@pytest.fixture(scope="module")
def api(start_api: Callable[..., Any]) -> Any:
    api = start_api()
    now = datetime.now(UTC)
    row = {"data": b"x", "publish_time": now, "topic": "orders", "source": "orders", "error_code": "wrong_type"}
    rows = [
        {**row, "message_id": f"m{n}", "error_message": f"lines[{n}].count: is null.", "ingest_time": now}
        for n in range(3)
    ]
    archive.write_letters(api.home / "lake", rows)
    return api


def test_a_group_has_its_path_and_its_messages_are_listed(api: Any) -> None:
    with api.client() as client:
        (reason,) = client.get("/dead-letters").json()["reasons"]
        chosen = {"source": "orders", "code": reason["code"], "path": reason["path"], "page_size": 2}
        found = client.get("/dead-letters", params=chosen).json()
        none = client.get("/dead-letters", params={"source": "orders", "path": ""}).json()
        grouped = [
            client.get("/dead-letters", params={**of, "group_by": "reason"}).json()["reasons"] for of in ORIGINS
        ]
    assert (reason["path"], reason["messages"]) == ("lines[].count", 3)
    assert ([one["message_id"] for one in found["dead_letters"]], found["is_cut"]) == (["m0", "m1"], True)
    assert none == {"dead_letters": [], "is_cut": False, "next_page_token": None}
    assert [[(each["source"], each["messages"]) for each in of] for of in grouped] == [[("orders", 3)]] * 2 + [[]]


@pytest.mark.parametrize(
    ("path", "params", "wrong"),
    [
        ("/dead-letters", {"job": "bf_1", "source": "orders", "path": ""}, "path"),
        ("/dead-letters", {"job": "bf_1", "group_by": "reason", "page_token": "1"}, "page_token"),
        ("/dead-letters", {"source": "orders", "page_token": "1"}, "page_token"),
        ("/dead-letters", {"code": "gave_up", "preview_bytes": 9}, "code"),
        ("/dead-letters/1/data", {"job": "bf_1", "from": "2026-01-01T00:00:00Z"}, "from"),
        ("/dead-letters/1/data", {"source": "orders"}, "job"),
    ],
)
def test_parameters_that_do_not_go_together_are_refused(api: Any, path: str, params: Any, wrong: str) -> None:
    with api.client() as client:
        problem = assert_problem(client.get(path, params=params), 422, "request_invalid")
    assert [each["pointer"] for each in problem["errors"]] == [f"query:{wrong}"]


def test_who_may_not_read_sees_none(api: Any) -> None:
    with api.client(api.make_key(RUN, name="runner")) as client:
        assert_problem(client.get("/dead-letters", params={"source": "orders"}), 403, "forbidden")


def test_a_redrive_leaves_out_what_is_a_row_by_now_and_no_other_query_reads_staging(start_api, tmp_path):
    api = start_api()
    (tmp_path / "shop.proto").write_text('syntax = "proto3"; package shop; message Order { int64 id = 1; }')
    sources = b"sources: {orders: {topic: orders, message: shop.Order}}"
    files = {"shop.desc": compile_protos(tmp_path, "shop.proto"), "sources.yaml": sources}
    Registry(str(api.home / "registry")).publish(files)
    api.pubsub.create_topic("orders")
    now = datetime.now(UTC)
    row = {"data": b"x", "publish_time": now, "topic": "orders", "source": "orders", "error_code": "not_json"}
    rows = [
        {**row, "message_id": f"m{n}", "error_message": "It is no JSON.", "ingest_time": now} for n in range(3)
    ]
    archive.write_letters(api.home / "lake", rows)
    staged, dry = {"_topic": "orders", "_message_id": "m1", "ingest_time": now}, {"validate_only": "true"}
    archive.write_table(api.home / "lake", "staging.orders", [staged], STAGED)
    with api.client() as client:
        (reason,) = client.get("/dead-letters").json()["reasons"]
        plan = client.post("/backfills", params=dry, json=reason["request"]).json()
        own = {**reason["request"], "query": reason["request"]["query"].replace("NOT EXISTS", "EXISTS")}
        assert_problem(client.post("/backfills", params=dry, json=own), 422, "query_refused")
    assert (reason["messages"], reason["repaired"], plan["rows"]) == (3, 1, 2)


@dataclass(frozen=True)
class Letters:
    """Dead letters of one origin: how they are listed, and how each one's payload is downloaded."""

    origin: dict[str, str]
    names: tuple[str, ...]
    where: dict[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return next(iter(self.origin))

    def list(self, client: Any, **params: Any) -> Any:
        return client.get("/dead-letters", params={**self.origin, **params})

    def download(self, client: Any, name: str, **params: str) -> Any:
        return client.get(f"/dead-letters/{name}/data", params={**self.origin, **self.where, **params})


@pytest.fixture(params=["pipeline", "backfill"])
def write_letters(request: pytest.FixtureRequest, api: Any) -> Callable[..., Letters]:
    """Write dead letters of a pipeline's source, or of a backfill: the same payloads have to be shown alike."""
    return {"pipeline": write_pipelines, "backfill": write_backfills}[request.param]


def write_pipelines(api: Any, source: str, payloads: Sequence[bytes]) -> Letters:
    now = datetime.now(UTC)
    row = {"publish_time": now, "topic": "orders", "source": source, "error_code": "gave_up", "ingest_time": now}
    row |= {"attributes": [{"key": "k", "value": "v"}], "error_message": "no answer"}
    rows = [{**row, "data": data, "message_id": f"m{n}"} for n, data in enumerate(payloads)]
    archive.write_letters(api.home / "lake", rows)
    names = tuple(f"m{n}" for n in range(len(payloads)))
    return Letters({"source": source}, names, {"topic": "orders"})


def write_backfills(api: Any, topic: str, payloads: Sequence[bytes]) -> Letters:
    api.pubsub.create_topic(topic)
    with api.client(api.make_key(READ, RUN, name=f"maker of {topic}")) as client:
        made = paused(client, topic=topic)
    folder = folder_of(api, made["id"])
    row = {"attributes": [{"key": "k", "value": "v"}], "topic": "orders"}
    rows = [{**row, "data": data, "message_id": f"m{n}"} for n, data in enumerate(payloads)]
    selection = write_selection([pa.RecordBatch.from_pylist(rows)], folder.selection)
    written = read_slice(folder.selection, selection.slices[0])
    refused = [(n, "gave_up: no answer") for n in range(len(payloads))]
    DeadLetterWriter(folder, 1, selection.slices[0]).write(written, refused)
    return Letters({"job": made["id"]}, tuple(str(n) for n in range(len(payloads))))


NUMBER = b'{"id": 9007199254740993, "n": 1.10}'
PAYLOADS = [NUMBER, b"", "\u00e5".encode() * 3, b"\xff\xfe", *[b"x" * 6_000_000] * 3]


def test_payloads_are_cut_where_the_caller_says_and_downloaded_whole(api, write_letters):
    letters = write_letters(api, "payloads", PAYLOADS)
    with api.client(api.make_key(READ, MESSAGES, name=f"whole {letters.kind}")) as client:
        answer = letters.list(client, preview_bytes=5)
        whole = [letters.download(client, name).content for name in letters.names[:5]]
        for wrong in (0, 4097):
            assert_problem(letters.list(client, preview_bytes=wrong), 422, "request_invalid")
        assert_problem(letters.download(client, "99"), 404, "message_not_found")
    shown = answer.json()["dead_letters"]
    # A cut goes through no character, and large payloads end no page early.
    assert [(each["data"], each["encoding"], each["data_bytes"], each["is_cut"]) for each in shown] == [
        ('{"id"', "text", 35, True),
        ("", "text", 0, False),
        ("\u00e5\u00e5", "text", 6, True),
        ("//4=", "base64", 2, False),
        *[("xxxxx", "text", 6_000_000, True)] * 3,
    ]
    assert len(answer.content) < 4_000
    assert {each["attributes"]["k"] for each in shown} == {"v"}
    assert whole == PAYLOADS[:5]


def test_a_pipeline_s_letters_are_shown_without_payloads_and_found_in_their_topic_alone(api: Any) -> None:
    letters = write_pipelines(api, "plain", PAYLOADS[:2])
    with api.client(api.make_key(READ, MESSAGES, name="plain")) as client:
        plain = letters.list(client).json()["dead_letters"]
        assert_problem(letters.download(client, "m0", topic="members"), 404, "message_not_found")
        found = letters.list(client, preview_bytes=5).json()
        assert letters.list(client, preview_bytes=5, code="gave_up", path="").json() == found
        whole = letters.download(client, "m0", **{"from": found["dead_letters"][0]["at"]})
    assert {each[name] for each in plain for name in ("data", "encoding", "data_bytes", "is_cut")} == {None}
    assert whole.content == NUMBER


def test_payloads_are_hidden_from_who_may_not_read_them_and_reads_are_audited(api, write_letters):
    letters = write_letters(api, "hidden", [b"secret"])
    (name,) = letters.names
    keys = {
        "blind": api.make_key(READ, name=f"blind {letters.kind}"),
        "clicks": api.make_key(READ, MESSAGES, name=f"clicks {letters.kind}", topics=["clicks"]),
    }
    for key in keys.values():
        with api.client(key) as client:
            (letter,) = letters.list(client, preview_bytes=9).json()["dead_letters"]
            assert_problem(letters.download(client, name), 403, "forbidden")
        assert (letter["data"], letter["encoding"], letter["attributes"]) == (None, None, None)
        assert letter["reason"] == "no answer"
    with api.client(api.make_key(READ, MESSAGES, name=f"reader {letters.kind}")) as client:
        (letter,) = letters.list(client, preview_bytes=9).json()["dead_letters"]
        assert (letter["data"], letter["attributes"]) == ("secret", {"k": "v"})
        assert letters.download(client, name).content == b"secret"
    lines: dict[str, list[Any]] = {}
    for each in api.audit():
        who, _, kind = each.actor.removeprefix("key:").partition(" ")
        if kind == letters.kind:
            lines.setdefault(who, []).append(each)
    assert [(each.action, each.why) for each in lines["reader"]] == [
        ("listDeadLetters", "200 1 dead letters of orders"),
        ("downloadDeadLetter", "200 6 bytes of orders, message m0"),
    ]
    assert {each.outcome for who in keys for each in lines[who]} == {"refused"}


def test_who_may_read_payloads_alone_downloads_none(api: Any) -> None:
    letters = write_pipelines(api, "alone", [b"secret"])
    with api.client(api.make_key(MESSAGES, name="unread")) as client:
        assert_problem(letters.download(client, "m0"), 403, "forbidden")
