import os
import time
from types import SimpleNamespace

from streams.status import StatusFile


def test_a_status_is_read_by_others_with_who_wrote_it_and_when(tmp_path):
    path = tmp_path / "status.json"
    StatusFile(path).write(state="running", totals={"messages": 3})
    fields = StatusFile.read(path)
    assert fields["pid"] == os.getpid()
    assert fields["state"] == "running"
    assert fields["totals"] == {"messages": 3}
    assert fields["at"] > 0


def test_a_new_state_clears_the_error_of_the_last_one(tmp_path):
    status = StatusFile(tmp_path / "status.json")
    status.write(state="waiting", error={"code": "storage_full"})
    status.write(state="running")
    fields = StatusFile.read(tmp_path / "status.json")
    assert fields["error"] is None


def test_a_status_that_cannot_be_written_stops_nobody_and_one_that_is_missing_is_none(tmp_path):
    StatusFile(tmp_path / "missing" / "status.json").write(state="running")
    assert StatusFile.read(tmp_path / "missing" / "status.json") is None
    for damaged in ("", '{"state": "runn', "[]", "null"):
        (tmp_path / "status.json").write_text(damaged)
        assert StatusFile.read(tmp_path / "status.json") is None


class Clock:
    """A clock that a test moves."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr("streams.status.time", SimpleNamespace(monotonic=lambda: self.now, time=time.time))

    def rates_after(self, seconds, status, path, **fields):
        self.now += seconds
        status.write(**fields)
        found = StatusFile.read(path)
        return found.get("rates"), found.get("rates_over_seconds")


def test_totals_have_rates_of_what_they_grew_by_in_the_last_minute(tmp_path, monkeypatch):
    clock, path = Clock(monkeypatch), tmp_path / "status.json"
    status = StatusFile(path)
    first = clock.rates_after(5.0, status, path, totals={"messages": 10, "by_topic": {"orders": 3}})
    assert first == ({"messages": 2.0}, 5.0), "totals begin at 0 when the process starts"
    assert clock.rates_after(5.0, status, path, totals={"messages": 40}) == ({"messages": 4.0}, 10.0)
    assert clock.rates_after(60.0, status, path, totals={"messages": 340}) == ({"messages": 5.0}, 60.0)
    again = clock.rates_after(60.0, status, path, totals={"messages": 5})
    assert again == ({"messages": 0.0}, 60.0), "a count that began again"


def test_the_first_batch_of_a_process_that_stood_by_is_in_the_rate_of_its_last_minute(tmp_path, monkeypatch):
    clock, path = Clock(monkeypatch), tmp_path / "status.json"
    status = StatusFile(path)
    for _ in range(60):
        assert clock.rates_after(10.0, status, path, state="standby") == (None, None), "it has counted nothing"
    assert clock.rates_after(0.0, status, path, totals={"messages": 600}) == ({"messages": 10.0}, 60.0)
    assert clock.rates_after(30.0, status, path, state="running", totals={"messages": 600}) == (
        {"messages": 10.0},
        60.0,
    )
    assert clock.rates_after(60.0, status, path, totals={"messages": 600}) == ({"messages": 0.0}, 60.0)


def test_nothing_is_written_after_the_last_word(tmp_path):
    path = tmp_path / "status.json"
    status = StatusFile(path)
    status.write(state="draining", totals={"messages": 3})
    status.write_last(state="stopped", not_committed=2)
    status.write(totals={"messages": 5})
    status.note(totals={"messages": 6})
    fields = StatusFile.read(path)
    assert (fields["state"], fields["not_committed"], fields["totals"]) == ("stopped", 2, {"messages": 3})
    assert status.fields()["totals"] == {"messages": 3}
