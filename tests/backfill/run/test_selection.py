import pyarrow as pa
import pytest

from backfill.plan.options import SelectionBounds
from backfill.run import selection as module
from backfill.run.selection import SELECTION_SCHEMA, read_selection, read_slice, write_selection
from model.errors import CheckpointCorruptError, QueryError, SelectionTooLargeError, StorageFullError


def rows_of(folder):
    selection = read_selection(folder)
    return [row for part in selection.slices for row in read_slice(folder, part).to_pylist()]


def test_rows_are_numbered_in_the_order_they_come(tmp_path, rows):
    folder = tmp_path / "selection"
    made = write_selection([rows(30_000), rows(0), rows(25_000)], folder)
    found = rows_of(folder)
    assert [row["refeed_row"] for row in found] == list(range(55_000))
    assert [row["message_id"] for row in found] == [f"m{n}" for n in (*range(30_000), *range(25_000))]
    assert made == read_selection(folder)
    assert (made.rows, made.rows_by_topic) == (55_000, {"orders": 55_000})
    assert made.bytes == sum(len(row["data"]) for row in found)
    assert made.first_publish_time == made.last_publish_time == "2024-03-01T12:00:00.000005Z"


def test_a_slice_is_small_in_rows_and_in_bytes(tmp_path, rows, monkeypatch):
    monkeypatch.setattr(module, "_SLICE_ROWS", 10)
    monkeypatch.setattr(module, "_SLICE_BYTES", 5000)
    monkeypatch.setattr(module, "_FILE_SLICES", 3)
    data = pa.array([b"x" * 1000] * 40 + [b""] * 60 + [b"y" * 20_000], pa.large_binary())
    made = write_selection([rows(101, data=data)], tmp_path / "selection")
    assert all(part.rows <= 10 for part in made.slices)
    for part in made.slices:
        sizes = [len(row["data"]) for row in read_slice(tmp_path / "selection", part).to_pylist()]
        assert sum(sizes) <= 5000 or len(sizes) == 1
    assert len({part.file for part in made.slices}) > 3
    assert [row["refeed_row"] for row in rows_of(tmp_path / "selection")] == list(range(101))


def test_by_key_a_slice_ends_where_a_key_does_unless_the_key_is_larger(tmp_path, rows, monkeypatch):
    monkeypatch.setattr(module, "_SLICE_ROWS", 10)
    keys = [None, "", "", *"aaaaaaab", *"c" * 35, *"dde"]
    batch = rows(len(keys), ordering_key=pa.array(keys, pa.string()))
    made = write_selection([batch.slice(0, 20), batch.slice(20)], tmp_path / "selection", by_key=True)
    slices = [
        ("".join(row["ordering_key"] or "-" for row in read_slice(tmp_path / "selection", part).to_pylist()), part)
        for part in made.slices
    ]
    assert "".join(keys for keys, _ in slices) == "---" + "".join(keys[3:])
    for number, (text, part) in enumerate(slices):
        assert part.continues == (number > 0 and slices[number - 1][0][-1] == text[0])
        assert len(text) <= 20
    # Only the key that fits in no slice is in several.
    assert {text[0] for text, part in slices if part.continues} == {"c"}
    assert read_selection(tmp_path / "selection") == made


def test_a_selection_that_is_too_large_is_not_made(tmp_path, rows):
    assert write_selection([rows(10)], tmp_path / "fits", max_rows=10).rows == 10
    with pytest.raises(SelectionTooLargeError, match="more than 10 rows") as caught:
        write_selection([rows(6), rows(5)], tmp_path / "large", max_rows=10)
    assert caught.value.details == {"max_rows": 10}
    assert read_selection(tmp_path / "large") is None


def test_columns_that_the_query_does_not_give_are_null(tmp_path, rows):
    least = rows(3).select(["data", "attributes", "message_id"])
    made = write_selection([least], tmp_path / "selection")
    assert {(r["topic"], r["publish_time"], r["ordering_key"]) for r in rows_of(tmp_path / "selection")} == {
        (None, None, None)
    }
    assert (made.rows_by_topic, made.first_publish_time) == ({}, None)


def test_the_case_of_a_column_does_not_matter_and_others_are_left_out(tmp_path, rows):
    named = rows(1, extra=[1]).rename_columns(
        ["DATA", "Attributes", "Message_Id", "publish_time", "topic", "ordering_key", "extra"]
    )
    write_selection([named], tmp_path / "selection")
    (row,) = rows_of(tmp_path / "selection")
    assert list(row) == SELECTION_SCHEMA.names
    assert (row["data"], row["message_id"]) == (b"data 0", "m0")


def test_a_column_of_another_type_is_an_error(tmp_path, rows):
    wrong = rows(1, publish_time=pa.array([[1]]))
    with pytest.raises(QueryError, match="publish_time"):
        write_selection([wrong], tmp_path / "selection")


def test_a_selection_is_there_whole_or_not_at_all(tmp_path, rows):
    folder = tmp_path / "selection"

    def broken():
        yield rows(30_000)
        raise QueryError("in the middle")

    with pytest.raises(QueryError):
        write_selection(broken(), folder)
    assert read_selection(folder) is None
    write_selection([rows(2)], folder)
    assert len(rows_of(folder)) == 2


def test_a_query_without_rows_is_an_empty_selection(tmp_path):
    made = write_selection([], tmp_path / "selection")
    assert (made.rows, made.slices) == (0, ())
    assert read_selection(tmp_path / "selection") == made


def test_a_damaged_selection_is_named(tmp_path, rows):
    folder = tmp_path / "selection"
    made = write_selection([rows(2)], folder)
    (folder / made.slices[0].file).write_bytes(b"PAR1")
    with pytest.raises(CheckpointCorruptError, match=r"00000\.parquet"):
        read_slice(folder, made.slices[0])
    (folder / "manifest.json").write_text("{")
    with pytest.raises(CheckpointCorruptError):
        read_selection(folder)


@pytest.mark.parametrize(
    ("bounds", "setting"),
    [
        (SelectionBounds(max_rows=10), "REFEED_SELECTION_MAX_ROWS"),
        (SelectionBounds(max_bytes=2000), "REFEED_SELECTION_MAX_BYTES"),
    ],
)
def test_more_than_the_deployment_allows_leaves_no_selection(tmp_path, rows, bounds, setting):
    with pytest.raises(SelectionTooLargeError, match=setting):
        write_selection([rows(10), rows(1), rows(100)], tmp_path / "selection", bounds=bounds)
    assert list(tmp_path.iterdir()) == []
    assert write_selection([rows(10)], tmp_path / "selection", bounds=bounds).rows == 10


def test_a_selection_stops_before_the_disk_has_too_little_room(tmp_path, rows):
    bounds = SelectionBounds(min_free_bytes=10**15)
    with pytest.raises(StorageFullError, match="REFEED_MIN_FREE_DISK_BYTES"):
        write_selection([rows(10)], tmp_path / "selection", bounds=bounds)
    assert list(tmp_path.iterdir()) == []
