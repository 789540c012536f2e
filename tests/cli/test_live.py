"""``refeed doctor --live``, whole, against the stand-ins."""

import io
import json

import pytest

from cli import live
from connectors.bigquery.probes import BigQueryProbes
from connectors.pubsub.client import PubSub
from jobs.launcher import Launch
from model.settings import read_settings

PROJECT = "live-project"


@pytest.fixture(autouse=True)
def cloud(shared_standin, pubsub_server, monkeypatch):
    shared_standin.lead_here(monkeypatch, REFEED_PROJECT=PROJECT)
    monkeypatch.setattr("connectors.bigquery.probes._LOOK_SECONDS", 0.05)
    monkeypatch.setattr("signal.signal", lambda *_: None)


def left(standin, server):
    """What is still there of what a run made."""
    datasets = [found.dataset_id for found in standin.client(PROJECT).list_datasets()]
    with PubSub(PROJECT, server.emulator_host) as pubsub:
        return [*datasets, *pubsub.list_topics(), *(found.id for found in pubsub.list_subscriptions())]


def test_every_question_is_answered_and_nothing_is_left(refeed, shared_standin, pubsub_server):
    result = refeed("doctor", "--live", "--yes", "--json")
    answers = {found["question"]: found for found in json.loads(result.out)["answers"]}
    assert result.code == 0, answers
    states = [found["state"] for found in answers.values()]
    assert states == ["answered"] * 7 + ["skipped"]
    assert answers["one batch on Dataproc"]["answer"] == "REFEED_LAUNCHER is not dataproc"
    assert "all came back" in answers["Arrow append of every type to a PENDING stream"]["answer"]
    assert "1 of 1 rows" in answers["a commit of a stream that is committed"]["answer"]
    assert "5,000 of 5,000 messages" in answers["sizes of unary Pulls with a backlog"]["answer"]
    assert "USD" in result.err
    assert "The command runs no Dataproc batch, because REFEED_LAUNCHER is not dataproc." in result.err
    assert left(shared_standin, pubsub_server) == []


def test_nothing_is_made_before_somebody_says_yes(refeed, shared_standin, pubsub_server, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    shared_standin.clear_log()
    assert refeed("doctor", "--live").code != 0
    assert shared_standin.counts() == {}
    assert left(shared_standin, pubsub_server) == []


def test_ctrl_c_leaves_nothing_behind(shared_standin, pubsub_server, refeed, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(BigQueryProbes, "large_append", interrupt)
    result = refeed("doctor", "--live", "--yes")
    assert result.code == 130
    assert "a commit of a stream that is committed" in result.out, "what was answered before is not lost"
    assert left(shared_standin, pubsub_server) == []


def test_a_question_that_fails_keeps_none_of_the_others_from_being_asked(refeed, shared_standin, pubsub_server):
    shared_standin.fault("BatchCommitWriteStreams", status="PERMISSION_DENIED", resource="/twice")
    result = refeed("doctor", "--live", "--yes", "--json")
    states = [found["state"] for found in json.loads(result.out)["answers"]]
    assert (result.code, states.count("failed"), states.count("answered")) == (1, 1, 6)
    assert left(shared_standin, pubsub_server) == []


class Batches:
    """A launcher of which every batch ends at the third look."""

    def __init__(self):
        self.launched: list[Launch] = []
        self.looks = 0
        self.is_ended = False

    def launch(self, launch):
        self.launched.append(launch)
        return "batch"

    def exit_reason(self, _batch):
        self.looks += 1
        return "The driver ended with code 0." if self.looks > 2 else None

    def kill(self, _batch):
        self.is_ended = True

    def close(self): ...


def test_the_batch_is_waited_for_and_never_left_running(monkeypatch, tmp_path):
    batches = Batches()
    monkeypatch.setattr("app.launchers.open_launcher", lambda _: batches)
    monkeypatch.setattr(live, "_LOOK_SECONDS", 0.01)
    answer = live._run_batch(read_settings({}, home=tmp_path), "refeed_doctor_1")
    assert answer.startswith("The driver ended with code 0.")
    assert [launch.module for launch in batches.launched] == ["connectors.spark.trial"]
    assert (batches.looks, batches.is_ended) == (3, True)


def test_a_lake_is_refused(refeed, monkeypatch):
    monkeypatch.setenv("REFEED_WAREHOUSE", "lake")
    assert refeed("doctor", "--live", "--yes").code == 2
