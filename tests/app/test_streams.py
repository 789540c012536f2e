"""What the processes of streams are given."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app import streams
from app.deployment import Deployment
from connectors.pubsub.client import PubSub
from model.errors import RefeedError, WarehouseError, WarehousePermissionError
from streams.folder import StreamFolder
from streams.status import StatusFile


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


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (
            WarehousePermissionError("The account may not write to archive.messages."),
            "may not write to archive.messages",
        ),
        (WarehouseError("Could not convert 'card 4111'."), "log has the engine's words"),
    ],
)
def test_a_stream_that_fails_before_it_runs_has_said_why_where_its_agent_reads_it(
    open_deployment: Callable[..., Deployment], monkeypatch: pytest.MonkeyPatch, error: RefeedError, shown: str
) -> None:
    settings = open_deployment().settings
    folder = StreamFolder.of(settings.home, "backup", "in_1")

    def fail(*_: Any, **__: Any) -> int:
        folder.run.mkdir(parents=True)
        StatusFile(folder.status, instance="in_1").write(state="starting", place={"project": "p"})
        raise error

    monkeypatch.setattr("backup.job.run_backup", fail)
    with pytest.raises(RefeedError, match=error.message):
        streams.run_backup(settings, name="backup", instance_id="in_1")

    status = StatusFile.read(folder.status) or {}
    assert (status["state"], status["error"]["code"], status["instance"]) == ("failed", error.code, "in_1")
    assert shown in status["error"]["message"]
    assert status["place"] == {"project": "p"}


def test_the_end_that_a_stream_wrote_itself_stands(
    open_deployment: Callable[..., Deployment], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = open_deployment().settings
    folder = StreamFolder.of(settings.home, "pipeline-default", "in_1")
    last = {"code": "storage_full", "message": "The disk is full."}

    def fail(*_: Any, **__: Any) -> int:
        folder.run.mkdir(parents=True)
        StatusFile(folder.status, instance="in_1").write_last(state="stopped", error=last)
        raise WarehouseError("later")

    monkeypatch.setattr("pipeline.job.run_pipeline", fail)
    with pytest.raises(WarehouseError):
        streams.run_pipeline(settings, "default", name="pipeline-default", instance_id="in_1")
    assert (StatusFile.read(folder.status) or {})["error"] == last


def test_a_stream_without_an_agent_says_why_it_fails_at_its_terminal_alone(
    open_deployment: Callable[..., Deployment], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = open_deployment().settings

    def fail(*_: Any, **__: Any) -> int:
        raise WarehouseError("no")

    monkeypatch.setattr("collector.kinesis.run_kinesis", fail)
    with pytest.raises(WarehouseError):
        streams.run_kinesis(settings, name="kinesis-clicks")
    assert not StreamFolder.of(settings.home, "kinesis-clicks").run.exists()
