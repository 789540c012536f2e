"""What the API shows of a merge while its driver works; drivers are none here, the tests write their logs."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from jobs.folder import JobFolder
from model.job import JobState, new_job_id
from reporting.kind import MERGE
from reporting.request import MergeRequest


@pytest.fixture(scope="module")
def api(start_api: Callable[..., Any]) -> Any:
    return start_api()


@pytest.fixture
def client(api: Any) -> Iterator[httpx.Client]:
    with api.client() as client:
        yield client


@pytest.fixture
def merge(api: Any) -> str:
    """A merge that nobody launches, and that has not ended."""
    request = {**MergeRequest().to_json(), "sources": ["orders"]}
    made = api.store.insert(new_job_id("mg"), MERGE.name, request, actor="ann", state=JobState.PAUSED)
    folder_of(api, made.id).write_specification({})
    return str(made.id)


def folder_of(api: Any, merge_id: str) -> JobFolder:
    return JobFolder(api.home / "merge-jobs" / merge_id)


def test_a_merge_s_log_is_shown_from_its_end_in_whole_lines(client: httpx.Client, api: Any, merge: str) -> None:
    path = f"/merges/{merge}/logs"
    assert (client.get(path).status_code, client.get(path).text) == (200, "")
    folder_of(api, merge).driver_log.write_text("first line\nsecond\nthird\n")

    assert client.get(path).text == "first line\nsecond\nthird\n"
    assert client.get(path, params={"tail": 13}).text == "second\nthird\n"
    assert client.get(path).headers["content-type"] == "text/plain; charset=utf-8"
    assert client.get(path, params={"tail": -1}).json()["code"] == "request_invalid"


def test_a_merge_s_log_is_followed_until_the_merge_ends(client: httpx.Client, api: Any, merge: str) -> None:
    log = folder_of(api, merge).driver_log
    log.write_text("one\n")

    with client.stream("GET", f"/merges/{merge}/logs", params={"follow": "true"}) as response:
        lines = response.iter_lines()
        assert next(lines) == "one"
        with log.open("a") as file:
            file.write("two\n")
        assert next(lines) == "two"
        api.store.move(merge, JobState.CANCELLING, actor="ann")
        api.store.move(merge, JobState.CANCELLED, actor="refeed")
        assert list(lines) == []


def test_the_log_of_no_merge_is_a_problem(client: httpx.Client) -> None:
    answer = client.get("/merges/mg_00000000000000000000000000/logs", params={"follow": "true"})
    assert (answer.status_code, answer.json()["code"]) == (404, "job_not_found")
