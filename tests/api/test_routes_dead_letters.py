"""Dead letters of the pipeline over HTTP: listed to be chosen, by those who may see them."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from model.principal import RUN
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
