import os

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


def test_totals_have_rates_of_what_they_grew_by(tmp_path):
    path = tmp_path / "status.json"
    status = StatusFile(path)
    status.write(totals={"messages": 10, "by_topic": {"orders": 3}})
    first = StatusFile.read(path)
    status.write(totals={"messages": 1_000_010, "by_topic": {"orders": 3}})
    second = StatusFile.read(path)
    assert first is not None
    assert second is not None
    assert (first["rates"], first["rates_over_seconds"]) == ({}, 0.0), "one look has no rate"
    assert second["rates"].keys() == {"messages"}
    assert second["rates"]["messages"] > 0
    status.write(totals={"messages": 5})
    assert StatusFile.read(path)["rates"] == {"messages": 0.0}, "a count that began again"


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
