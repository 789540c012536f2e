"""What the processes of streams are given."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app import streams
from app.deployment import Deployment
from connectors.pubsub.client import PubSub


@pytest.mark.parametrize("shared", [False, True])
def test_a_stream_reports_to_a_store_that_is_not_its_home_s_own_and_does_not_open_it(
    open_deployment: Callable[..., Deployment], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shared: bool
) -> None:
    store = {"REFEED_JOB_STORE": f"sqlite:///{tmp_path / 'shared.db'}"} if shared else {}
    given: list[Any] = []
    monkeypatch.setattr("backup.job.run_backup", lambda *parts, **named: given.extend([*parts, named]) or 7)
    settings = open_deployment(**store).settings

    assert streams.run_backup(settings, instance_id="in_1") == 7

    assert given[0] is settings
    named = given[2]
    assert (given[1].name, named["reporter"] is not None) == ("lake", shared)
    assert (named["name"], named["instance_id"]) == ("backup", "in_1")
    assert not list(tmp_path.glob("*.db"))


def test_the_pipeline_connects_when_it_asks_and_is_disconnected_at_its_end(
    open_deployment: Callable[..., Deployment], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[PubSub] = []
    closed: list[PubSub] = []

    def close(pubsub: PubSub) -> None:
        closed.append(pubsub)

    monkeypatch.setattr(PubSub, "close", close)

    def run(settings: Any, group: str, *, open_pubsub: Callable[[], PubSub], **parts: Any) -> int:
        assert sorted(parts) == ["instance_id", "mapping", "name", "reporter", "warehouse"]
        opened.append(open_pubsub())
        assert opened[0].list_topics() == ["replay"]
        assert closed == []
        return 7

    monkeypatch.setattr("pipeline.job.run_pipeline", run)
    assert streams.run_pipeline(open_deployment().settings, "default") == 7
    assert closed == opened
    monkeypatch.undo()
    opened[0].close()
