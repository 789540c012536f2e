import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from model.errors import CheckpointCorruptError, SettingsError, StorageFullError
from streams.positions import Positions, ShardPosition

MOMENT = datetime(2026, 1, 3, 10, 0, 0, 5000, UTC)


def opened(folder: Path, stream: str = "eu-west-1/orders") -> Positions:
    return Positions(folder / "positions.json", stream)


@pytest.mark.parametrize("origin", [None, MOMENT])
def test_positions_and_the_origin_are_there_after_a_restart(tmp_path: Path, origin: datetime | None) -> None:
    positions = opened(tmp_path)
    assert positions.is_new
    positions.begin(origin)
    positions.advance("a", ShardPosition("7", 3))
    positions.advance("b", ShardPosition("9", None, is_ended=True))
    again = opened(tmp_path)
    assert not again.is_new
    assert again.origin == origin
    assert [again.find(shard) for shard in "abc"] == [
        ShardPosition("7", 3),
        ShardPosition("9", None, is_ended=True),
        ShardPosition(),
    ]


def test_only_ended_shards_that_are_no_longer_listed_are_forgotten(tmp_path: Path) -> None:
    positions = opened(tmp_path)
    positions.begin(None)
    for shard, is_ended in (("gone", True), ("listed", True), ("open", False)):
        positions.advance(shard, ShardPosition("1", is_ended=is_ended))
    positions.forget_ended(["listed"])
    assert set(json.loads((tmp_path / "positions.json").read_text())["shards"]) == {"listed", "open"}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"format": 1}', '{"format": 99, "stream": "eu-west-1/orders", "origin": null, "shards": {}}'],
)
def test_a_damaged_file_is_an_error_that_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / "positions.json").write_text(text)
    with pytest.raises(CheckpointCorruptError, match="publishes all records since then again"):
        opened(tmp_path)


def test_positions_of_another_stream_are_never_taken(tmp_path: Path) -> None:
    opened(tmp_path).begin(None)
    with pytest.raises(SettingsError, match="eu-west-1/orders"):
        opened(tmp_path, "eu-west-1/members")


def test_what_can_not_be_written_does_not_count(tmp_path: Path) -> None:
    positions = opened(tmp_path)
    positions.begin(None)
    (tmp_path / "positions.tmp").mkdir()
    with pytest.raises(StorageFullError):
        positions.advance("a", ShardPosition("1"))
    assert opened(tmp_path).find("a") == ShardPosition()


def test_threads_that_advance_at_the_same_time_each_find_their_position_on_disk(tmp_path: Path) -> None:
    positions = opened(tmp_path)
    positions.begin(None)
    faults: list[str] = []

    def advance(shard: str) -> None:
        for number in range(20):
            positions.advance(shard, ShardPosition(str(number)))
            found = json.loads((tmp_path / "positions.json").read_text())["shards"][shard]["sequence_number"]
            if found != str(number):
                faults.append(f"{shard}: {found}, not {number}")

    threads = [threading.Thread(target=advance, args=(str(number),), daemon=True) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert faults == []


def test_a_position_is_of_the_shard_that_began_where_it_did(tmp_path: Path) -> None:
    positions = opened(tmp_path)
    positions.begin(None)
    positions.note_stream(MOMENT, {"a": "100", "b": "100"})
    assert positions.is_of(MOMENT, {"a": "100", "b": "100", "c": "300"})
    positions.note_stream(MOMENT, {"a": "100", "b": "100", "c": "300"})
    again = opened(tmp_path)
    assert again.is_of(MOMENT, {"a": "100", "c": "300", "d": "400"})
    assert again.is_of(None, {"a": "100"})
    assert not again.is_of(MOMENT + timedelta(seconds=1), {})
    assert not again.is_of(MOMENT, {"c": "301"})
    again.begin(None)
    assert again.is_of(MOMENT + timedelta(days=1), {"a": "900"})


def test_a_creation_time_that_is_known_later_is_kept(tmp_path: Path) -> None:
    positions = opened(tmp_path)
    positions.begin(None)
    positions.note_stream(None, {"a": "100"})
    assert positions.is_of(MOMENT, {"a": "100"})
    positions.note_stream(MOMENT, {"a": "100"})
    assert not opened(tmp_path).is_of(MOMENT + timedelta(seconds=1), {"a": "100"})


def test_a_position_without_a_beginning_is_not_of_a_shard_that_began_after_it(tmp_path: Path) -> None:
    """Positions that an earlier Refeed wrote have neither beginnings nor the stream's creation time."""
    (tmp_path / "positions.json").write_text(
        '{"format": 1, "stream": "eu-west-1/orders", "origin": null, "shards": '
        '{"a": {"sequence_number": "99", "subsequence": null, "is_ended": true}}}'
    )
    positions = opened(tmp_path)
    assert positions.is_of(MOMENT, {"a": "98"})
    assert not positions.is_of(MOMENT, {"a": "100"})


def test_beginnings_are_forgotten_with_the_shards_that_are_no_longer_listed(tmp_path: Path) -> None:
    positions = opened(tmp_path)
    positions.begin(None)
    positions.note_stream(None, {"gone": "1", "listed": "2"})
    positions.forget_ended(["listed"])
    assert json.loads((tmp_path / "positions.json").read_text())["beginnings"] == {"listed": "2"}
