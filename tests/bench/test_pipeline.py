import json
import os

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from bench import decoder, pipeline, pipeline_events
from bench.pipeline_events import Case
from bench.yard import is_wanted, publish_steadily, read_commit_times
from model.message import Message
from pipeline import forms


class Heard:
    """A publisher that keeps what it is given."""

    def __init__(self):
        self.batches = []

    def publish(self, messages):
        self.batches.append([message.data for message in messages])


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setenv("QUICK", "1")
    return monkeypatch


def bodies(case, count):
    return [json.loads(event.data) for event in case.make_events(count)]


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_so_many_are_odd_as_the_case_says_numbers_and_objects_in_turn(share):
    kinds = [type(body["extra"]) for body in bodies(Case("inferred", share), 1_000) if "extra" in body]
    assert len(kinds) == pytest.approx(share * 1_000, rel=0.3)
    assert kinds[:4] == [dict, int, dict, int][: len(kinds)]


@pytest.mark.parametrize("kind", ["protobuf", "inferred"])
def test_native_code_reads_all_messages_but_the_odd_ones(monkeypatch, kind):
    case, read = Case(kind, 0.1), forms.Form.read
    events = case.make_events(200)
    batch = decoder.pull(events)
    decode = decoder.open_decoder(case, [batch])
    for _ in range(3):
        decode(batch)
    found = []
    monkeypatch.setattr(forms.Form, "read", lambda form, data: found.append(read(form, data)) or found[-1])
    decode(batch)
    assert [rows.left for rows in found] == [
        [place for place, event in enumerate(events) if b'"extra"' in event.data]
    ]


def test_each_of_many_types_has_a_field_of_its_own():
    events = Case("inferred", types=3).make_events(6)
    assert [event.attributes["event"] for event in events] == ["kind_0", "kind_1", "kind_2"] * 2
    assert all(event.attributes["event"] in json.loads(event.data) for event in events)


@pytest.mark.parametrize("case", [Case("protobuf"), Case("inferred", 0.01)], ids=lambda case: case.name)
def test_the_decoder_is_measured_beside_itself_and_the_limit(quick, case):
    quick.setattr(decoder, "MESSAGES", 5_000)
    found = decoder.measure(case)
    assert found["refeed"] > found["one_by_one"] > 0
    assert found["ratios"].keys() == {"limit", "one_by_one", *({"without_odd"} if case.odd else ())}
    assert found["cpu_us_per_message"]["limit"] > 0


def test_webhooks_that_are_not_there_are_skipped_and_named(quick, tmp_path, capsys):
    quick.setattr(pipeline_events, "WEBHOOKS", tmp_path / "none")
    quick.setenv("CASES", "webhooks; webhooks, 1% odd")
    assert is_wanted("webhooks, 1% odd")
    assert not is_wanted("inferred")
    assert decoder.run() == pipeline.run() == []
    assert capsys.readouterr().out.count("SKIPPED webhooks") == 3


def test_messages_come_at_their_rate_and_in_turn():
    heard = Heard()
    sent = publish_steadily(heard, [Message(data=b"0"), Message(data=b"1")], 100, 0.2)
    data = [data for batch in heard.batches for data in batch]
    assert data == [str(number % 2).encode() for number in range(sent)]
    assert 1 <= sent <= 20


def test_a_row_s_times_are_its_own_and_its_commit_s(tmp_path):
    for second in (1, 2):
        rows = pa.table({"at": pa.array([second * 1_000_000], pa.timestamp("us", "UTC"))})
        write_deltalake(str(tmp_path), rows, mode="append")
        os.utime(tmp_path / "_delta_log" / f"{second - 1:020}.json", (10 + second, 10 + second))
    published, committed = read_commit_times([tmp_path], "at")
    assert sorted(zip(published, committed, strict=True)) == [(1, 11), (2, 12)]
    published, committed = read_commit_times([tmp_path], "at", since=12)
    assert (list(published), list(committed)) == ([2], [12])
