"""What the processes of streams are given."""

import sqlite3
from contextlib import closing
from functools import partial

import pytest

from app import streams
from connectors.pubsub.client import PubSub
from inventory.streams import read_streams
from jobs.store import open_store
from model.errors import RefeedError, WarehouseError, WarehousePermissionError
from streams.folder import StreamFolder
from streams.status import StatusFile
from tests.waiting import wait_until
from warehouse.lake.warehouse import LakeWarehouse


def test_an_agent_s_stream_does_not_open_the_job_store(open_deployment, monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr("backup.job.run_backup", lambda *parts, **named: given.extend([*parts, named]) or 7)
    settings = open_deployment(REFEED_JOB_STORE=f"sqlite:///{tmp_path / 'shared.db'}").settings
    assert streams.run_backup(settings, instance_id="in_1") == 7
    assert given[0] is settings
    named = given[2]
    assert given[1].name == "lake"
    assert (named["name"], named["instance_id"]) == ("backup", "in_1")
    assert not list(tmp_path.glob("*.db"))


@pytest.mark.parametrize("is_newer", [False, True])
def test_a_stream_without_an_agent_is_reported_to_a_store_that_is_not_its_home_s_own_and_to_a_newer_one_not(
    open_deployment, monkeypatch, tmp_path, is_newer
):
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    with closing(open_store(url)) as store, store._database.write() as connection:
        if is_newer:
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    settings = open_deployment(REFEED_JOB_STORE=url).settings
    folder = StreamFolder.of(settings.home, "pipeline-default")

    def run(*_, **__):
        folder.run.mkdir(parents=True)
        StatusFile(folder.status, instance="home-1").write_last(state="stopped", totals={"messages": 3})
        return 7

    monkeypatch.setenv("REFEED_JOB_STORE", url)
    monkeypatch.setattr("pipeline.job.run_pipeline", run)
    assert streams.run_pipeline(settings, "default") == 7
    with closing(sqlite3.connect(tmp_path / "shared.db")) as connection:
        found = connection.execute(
            "SELECT name, instance, json_extract(report, '$.state') FROM reports"
        ).fetchall()
    assert found == ([] if is_newer else [("pipeline-default", "home-1", "stopped")])
    (shown,) = read_streams(settings.home, None)
    assert (shown.name, shown.state, shown.totals) == ("pipeline-default", "DRAINED", {"messages": 3})


@pytest.mark.parametrize("is_killed_late", [False, True])
def test_a_stream_is_reported_also_after_its_reporter_was_killed(
    open_deployment, monkeypatch, tmp_path, is_killed_late
):
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    open_store(url).close()
    settings = open_deployment(REFEED_JOB_STORE=url).settings
    folder = StreamFolder.of(settings.home, "backup")
    begun = []
    begin = streams._Reporter._begin

    def note(reporter):
        begun.append(begin(reporter))
        return begun[-1]

    def reported():
        with closing(sqlite3.connect(tmp_path / "shared.db")) as connection:
            return connection.execute("SELECT json_extract(report, '$.state') FROM reports").fetchall()

    def run(*_, **__):
        folder.run.mkdir(parents=True)
        status = StatusFile(folder.status, instance="home-1")
        begun[0].kill()
        begun[0].wait()
        if not is_killed_late:
            status.write(state="running", totals={"messages": 1})
            wait_until(reported, "another process reports")
        status.write_last(state="stopped", totals={"messages": 3})
        return 7

    monkeypatch.setattr(streams, "_RESTART_SECONDS", 60.0 if is_killed_late else 0.1)
    monkeypatch.setattr(streams._Reporter, "_begin", note)
    monkeypatch.setenv("REFEED_JOB_STORE", url)
    monkeypatch.setattr("backup.job.run_backup", run)
    assert streams.run_backup(settings) == 7
    assert reported() == [("stopped",)]
    assert [each.poll() is None for each in begun] == [False, False]


@pytest.mark.parametrize(
    "start", [streams.run_backup, streams.run_kinesis, partial(streams.run_pipeline, group="g")]
)
def test_no_stream_is_started_in_a_warehouse_that_does_not_keep_writers_apart(open_deployment, monkeypatch, start):
    def refuse(_):
        raise WarehouseError("If-None-Match")

    monkeypatch.setattr(LakeWarehouse, "check_store", refuse)
    settings = open_deployment().settings
    with pytest.raises(WarehouseError, match="If-None-Match"):
        start(settings)
    assert not list(settings.home.glob("lake*"))


def test_the_pipeline_connects_when_it_asks_and_is_disconnected_at_its_end(open_deployment, monkeypatch):
    opened = []
    closed = []

    def close(pubsub):
        closed.append(pubsub)

    monkeypatch.setattr(PubSub, "close", close)

    def run(settings, group, *, open_pubsub, **parts):
        assert sorted(parts) == ["instance_id", "mapping", "name", "warehouse"]
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
        (WarehouseError("Could not convert 'card 4111'."), "log has the engine's own error"),
    ],
)
def test_a_stream_that_fails_before_it_runs_has_said_why_where_its_agent_reads_it(
    open_deployment, monkeypatch, error, shown
):
    settings = open_deployment().settings
    folder = StreamFolder.of(settings.home, "backup", "in_1")

    def fail(*_, **__):
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


def test_the_end_that_a_stream_wrote_itself_stands(open_deployment, monkeypatch):
    settings = open_deployment().settings
    folder = StreamFolder.of(settings.home, "pipeline-default", "in_1")
    last = {"code": "storage_full", "message": "The disk is full."}

    def fail(*_, **__):
        folder.run.mkdir(parents=True)
        StatusFile(folder.status, instance="in_1").write_last(state="stopped", error=last)
        raise WarehouseError("later")

    monkeypatch.setattr("pipeline.job.run_pipeline", fail)
    with pytest.raises(WarehouseError):
        streams.run_pipeline(settings, "default", name="pipeline-default", instance_id="in_1")
    assert (StatusFile.read(folder.status) or {})["error"] == last


def test_a_stream_without_an_agent_says_why_it_fails_at_its_terminal_alone(open_deployment, monkeypatch):
    settings = open_deployment().settings

    def fail(*_, **__):
        raise WarehouseError("no")

    monkeypatch.setattr("collector.kinesis.run_kinesis", fail)
    with pytest.raises(WarehouseError):
        streams.run_kinesis(settings, name="kinesis-clicks")
    assert not StreamFolder.of(settings.home, "kinesis-clicks").run.exists()
