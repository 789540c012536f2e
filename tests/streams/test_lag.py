"""A stream's lag at Google: the latest sample of Cloud Monitoring, or nothing, and never a reason to stop."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.pubsub.backlog import BacklogSample, MonitoredBacklogs
from model.errors import MonitoringMissingError, PubSubError, RefeedError
from streams import lag as lag_module
from streams.lag import measuring
from streams.status import StatusFile

SAMPLE = BacklogSample(12.0, 40, 1_700_000_000.0)


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    said: list[str] = []

    class Log:
        def warning(self, _event: str, *, code: str, **_: Any) -> None:
            said.append(code)

    monkeypatch.setattr(lag_module, "_log", Log())
    monkeypatch.setattr(MonitoredBacklogs, "every_seconds", 0.01)
    monkeypatch.setattr(MonitoredBacklogs, "open", lambda project: object.__new__(MonitoredBacklogs))
    monkeypatch.setattr(MonitoredBacklogs, "close", lambda _: None)
    yield said
    assert "lag" not in {thread.name for thread in threading.enumerate()}


def wait_for(condition: Callable[[], bool], why: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, why
        time.sleep(0.005)


def test_the_latest_sample_goes_with_the_next_status_and_is_no_sign_of_life(
    tmp_path: Path, logged: list[str]
) -> None:
    status = StatusFile(tmp_path / "status.json")
    status.write(state="running")
    written = status.fields()["at"]
    with measuring(status, "shop", None, lambda _: SAMPLE):
        wait_for(lambda: status.fields().get("backlog") is not None, "nobody measures")
    assert status.fields()["at"] == written
    status.write()
    found = StatusFile.read(tmp_path / "status.json")
    assert found is not None
    assert found["backlog"] == {"oldest_unacked_seconds": 12.0, "messages": 40, "sampled_at": 1_700_000_000.0}


def test_what_can_t_be_measured_any_more_is_unknown_and_the_reason_is_said_once(
    tmp_path: Path, logged: list[str]
) -> None:
    status = StatusFile(tmp_path / "status.json")
    reads: list[int] = []

    def read(_: MonitoredBacklogs) -> BacklogSample | None:
        reads.append(1)
        if len(reads) > 2:
            raise PubSubError("Cloud Monitoring refused: 403")
        return SAMPLE

    with measuring(status, "shop", None, read):
        wait_for(lambda: len(reads) > 5, "nobody measures")
    assert status.fields()["backlog"] is None
    assert logged == [PubSubError.code]


def test_a_client_that_is_not_installed_leaves_the_lag_unknown(
    tmp_path: Path, logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def fail(_project: str) -> MonitoredBacklogs:
        tried.append(1)
        raise MonitoringMissingError

    monkeypatch.setattr(MonitoredBacklogs, "open", fail)
    status = StatusFile(tmp_path / "status.json")
    with measuring(status, "shop", None, lambda _: SAMPLE):
        wait_for(lambda: len(tried) > 2, "nobody measures")
    assert status.fields()["backlog"] is None
    assert logged == ["monitoring_missing"]
    assert issubclass(MonitoringMissingError, RefeedError)


def test_a_local_server_is_not_sampled_because_the_api_asks_it_itself(tmp_path: Path, logged: list[str]) -> None:
    status = StatusFile(tmp_path / "status.json")
    with measuring(status, "shop", "127.0.0.1:8085", lambda _: SAMPLE):
        assert "lag" not in {thread.name for thread in threading.enumerate()}
    assert "backlog" not in status.fields()
