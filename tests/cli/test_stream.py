"""``refeed stream check``: what it prints; tests/rollout/test_checking.py has what it finds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.store import JobStore
from model.stream_options import StreamKind


@pytest.fixture(autouse=True)
def backup(home: Path) -> None:
    store = JobStore(home / "jobs.db")
    store.launch_stream("backup", StreamKind.BACKUP, actor="test", options={})
    store.close()


def test_a_check_says_what_would_change_and_whether_there_is_a_way_back(refeed: Callable[..., Any]) -> None:
    checked = refeed("stream", "check", "backup", "--slots", "3")
    assert (checked.code, checked.out.splitlines()) == (
        0,
        ["The update may begin.", "  slots becomes 3, was the deployment's setting", "There is a way back."],
    )


def test_a_refused_update_names_each_reason_with_what_to_do_and_fails(refeed: Callable[..., Any]) -> None:
    refused = refeed("stream", "check", "backup", "--map", "orders=sales", "--map", "members=")
    assert refused.code == 1
    assert refused.out.count("mapping_invalid") == 2
    assert "Give the update a mapping of that source, or mend the registry." in refused.out
    document = json.loads(refeed("stream", "check", "backup", "--map", "orders=sales", "--json").out)
    assert not document["passes"]
    assert document["reasons"][0]["remedy"] == "map"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("backup", "--map", "orders"), 2, "is not OLD=NEW"),
        (("backup", "--map", "a=b", "--map", "a=c"), 2, "is given twice"),
        (("backup", "--group", "shop"), 2, "has no option group"),
        (("backup", "--release", "9"), 1, "release_not_found"),
        (("nobody",), 1, "stream_not_found"),
    ],
)
def test_what_is_asked_wrongly_is_said(
    refeed: Callable[..., Any], arguments: tuple[str, ...], code: int, words: str
) -> None:
    wrong = refeed("stream", "check", *arguments)
    assert wrong.code == code
    assert words in wrong.err
