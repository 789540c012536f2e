"""The index of keys beside a reporting table."""

import json
import time

import numpy as np

from connectors.lake.key_index import FOLDER, KeyDays, KeyIndex, join

HASHES = np.array([1, 2, 2**64 - 1], np.uint64)


def test_an_index_that_is_built_again_from_a_table_without_rows_finds_nothing_and_grows(tmp_path):
    index = KeyIndex(str(tmp_path), 0, ["id"]).rebuild(join([]))
    assert len(index.find(HASHES).hashes) == 0
    index = KeyIndex(str(tmp_path), index.number, ["id"]).add(KeyDays(HASHES, np.array([5, 6, 7], np.int32)))
    assert KeyIndex(str(tmp_path), index.number, ["id"]).find(HASHES[1:]).days.tolist() == [6, 7]


def test_an_index_of_other_columns_is_lost_as_is_one_that_does_not_say_which(tmp_path):
    index = KeyIndex(str(tmp_path), 0, ["id"]).add(KeyDays(HASHES, np.array([5, 6, 7], np.int32)))
    assert not KeyIndex(str(tmp_path), index.number, ["id"]).is_lost
    assert KeyIndex(str(tmp_path), index.number, ["shop", "id"]).is_lost
    manifest = tmp_path / FOLDER / f"{index.number}.json"
    manifest.write_text(json.dumps({"runs": json.loads(manifest.read_text())["runs"]}))
    assert KeyIndex(str(tmp_path), index.number, ["id"]).is_lost


def test_two_merges_that_race_while_the_clock_is_behind_make_two_states(tmp_path, monkeypatch):
    base = KeyIndex(str(tmp_path), 0, ["id"]).add(KeyDays(HASHES[:1], np.array([5], np.int32)))
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    one = KeyIndex(str(tmp_path), base.number, ["id"]).add(KeyDays(HASHES[1:2], np.array([6], np.int32)))
    other = KeyIndex(str(tmp_path), base.number, ["id"]).add(KeyDays(HASHES[2:], np.array([7], np.int32)))
    assert KeyIndex(str(tmp_path), one.number, ["id"]).find(HASHES).days.tolist() == [5, 6]
    assert KeyIndex(str(tmp_path), other.number, ["id"]).find(HASHES).days.tolist() == [5, 7]


def test_an_index_of_which_a_part_is_gone_is_lost_and_can_be_built_again(tmp_path):
    made = KeyIndex(str(tmp_path), 0, ["id"]).add(KeyDays(HASHES, np.array([5, 6, 7], np.int32)))
    (run,) = (tmp_path / "_refeed_index").glob("*.run")
    run.unlink()
    found = KeyIndex(str(tmp_path), made.number, ["id"])
    assert found.is_lost
    built = found.rebuild(KeyDays(HASHES, np.array([5, 6, 7], np.int32)))
    assert KeyIndex(str(tmp_path), built.number, ["id"]).find(HASHES).days.tolist() == [5, 6, 7]
