"""``refeed topics``, ``topic``, ``streams`` against the API as it is served: each number is the archive's own."""

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from cli.main import main
from jobs.stream.status import StatusFile
from tests.api.archive import fill_archive

Refeed = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def api(start_api: Callable[..., Any]) -> Any:
    api = start_api()
    fill_archive(api.home, {"orders": 7, "members": 2})
    return api


@pytest.fixture
def refeed(api: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refeed:
    """Runs ``refeed ARGUMENTS`` against the API: exit code, stdout and stderr."""
    monkeypatch.setenv("REFEED_API_URL", api.url)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["refeed", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        # The service is in this process, and logs in colour.
        own = [line for line in captured.out.splitlines(keepends=True) if not line.startswith("\x1b[")]
        return int(ended.value.code or 0), "".join(own), captured.err

    return run


def test_topics_have_the_archive_s_numbers(api: Any, refeed: Refeed) -> None:
    code, text, _ = refeed("topics")
    assert code == 0
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert (rows["orders"][1], rows["orders"][-1], rows["members"][-1]) == ("NO", "7", "2")
    shown = json.loads(refeed("topics", "--json")[1])
    with api.client() as client:
        told = client.get("/topics").json()
    for topic in (*shown["topics"], *told["topics"]):
        topic.pop("freshness_seconds")
    assert shown == told


@pytest.mark.parametrize(("step", "buckets"), [("minute", 60), ("hour", 24), ("day", 30)])
def test_a_topic_has_each_of_its_messages_in_one_step(refeed: Refeed, step: str, buckets: int) -> None:
    code, text, _ = refeed("topic", "orders", "--step", step)
    assert (code, f"by {step}: 7 archived messages" in text) == (0, True)
    found = json.loads(refeed("topic", "orders", "--step", step, "--json")[1])
    assert (found["step"], found["messages"], sum(each["messages"] for each in found["buckets"])) == (step, 7, 7)
    assert len(found["buckets"]) in (buckets, buckets + 1)


def test_a_step_of_minutes_is_bounded_like_every_other(refeed: Refeed) -> None:
    code, _, said = refeed("topic", "orders", "--step", "minute", "--from", "8d")
    assert code == 4
    assert "10,000 are allowed" in said


def test_streams_show_what_the_stream_wrote(api: Any, refeed: Refeed) -> None:
    path = api.home / "streams" / "backup" / "status.json"
    path.parent.mkdir(parents=True)
    # Drained: one that runs would have to report again while this looks.
    StatusFile(path).write(state="stopped", totals={"messages": 9})
    code, text, _ = refeed("streams")
    assert code == 0
    assert text.splitlines()[1].split()[:2] == ["backup", "DRAINED"]
    assert text.splitlines()[1].split()[-1] == "9"
    (stream,) = json.loads(refeed("streams", "--json")[1])["streams"]
    assert stream["totals"] == {"messages": 9}
