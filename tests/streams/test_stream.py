"""When a stream has its home's lock and its lease, beside a Spark that does nothing."""

import os
import signal
from contextlib import contextmanager
from types import SimpleNamespace
from typing import cast
from unittest.mock import MagicMock

import pytest

from connectors.pubsub.source import PullSource
from model.errors import LeaseHeldError
from model.settings import read_settings
from streams import stream as stream_module
from streams.folder import StreamFolder
from streams.lease import lock_home
from streams.queries import StreamQuery
from streams.status import StatusFile
from streams.stream import StreamWork, run_stream


@pytest.fixture(autouse=True)
def _handlers():
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def run(home, instance, monkeypatch):
    """Run a stream that is told to end as soon as it runs; return what happened, in its order."""
    said, opened = [], []
    folder = StreamFolder.of(home, "backup", instance)

    def stop_spark():
        try:
            with lock_home(folder.state):
                said.append("spark stops, the home is free")
        except LeaseHeldError:
            said.append("spark stops, the home is locked")

    def start_spark(*_):
        folder.scratch.mkdir(parents=True)
        spark = MagicMock()
        spark.stop = stop_spark
        return spark

    @contextmanager
    def open_work(owned):
        opened.append(owned.stream)
        committer = SimpleNamespace(name="backup", status=owned.status)
        yield StreamWork(committer, lambda _: None, lambda: os.kill(os.getpid(), signal.SIGTERM))
        said.append("the lease is given back")

    monkeypatch.setattr(stream_module, "start_spark", start_spark)
    query = StreamQuery(cast("type[PullSource]", MagicMock()), 2, 1.0, 1.0, 1_000, {})
    settings = read_settings({"REFEED_HOME": str(home), "PUBSUB_EMULATOR_HOST": "127.0.0.1:1"})
    run_stream(settings, folder, query, open_work=open_work, place={"project": "p"})
    status = StatusFile.read(folder.status)
    assert (status["state"], status["not_committed"], status["place"]) == ("stopped", 0, {"project": "p"})
    assert [status["instance"]] == ([instance] if instance else opened), "else its id in the home"
    assert not folder.scratch.exists()
    return said


def test_an_instance_lets_go_of_its_home_and_its_lease_before_spark_stops(tmp_path, monkeypatch):
    assert run(tmp_path, "in_1", monkeypatch) == ["the lease is given back", "spark stops, the home is free"]


def test_a_start_by_hand_keeps_its_home_until_sparks_files_are_gone_which_the_next_start_shares(
    tmp_path, monkeypatch
):
    assert run(tmp_path, None, monkeypatch) == ["spark stops, the home is locked", "the lease is given back"]
