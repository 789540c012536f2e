import pyarrow as pa
import pytest

from connectors.lake.buckets import BucketWriter, read_batches
from model.errors import WarehouseError

SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string())])


def batch(*numbers: int) -> pa.RecordBatch:
    rows = [{"number": number, "text": str(number) * number} for number in numbers]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def test_a_bucket_is_read_without_the_others(tmp_path):
    # A large batch is compressed, a small one is not.
    written = {"a": [batch(1, 2), batch(3)], "b": [batch(*range(500))], None: [batch(5, 6)]}
    path = tmp_path / "rows.arrow"
    with BucketWriter[str | None](path, SCHEMA) as writer:
        for bucket, number in (("a", 0), ("b", 0), (None, 0), ("a", 1)):
            writer.write(bucket, written[bucket][number])
    for bucket, batches in written.items():
        assert list(read_batches(path, writer.batches[bucket], SCHEMA)) == batches
    assert list(read_batches(tmp_path / "missing", (), SCHEMA)) == []


@pytest.mark.parametrize("rows", [100, 500])
def test_a_file_that_is_cut_is_an_error(tmp_path, rows):
    path = tmp_path / "rows.arrow"
    with BucketWriter[str](path, SCHEMA) as writer:
        writer.write("a", batch(*range(rows)))
    path.write_bytes(path.read_bytes()[:-1_000])
    with pytest.raises(WarehouseError, match=r"reading rows\.arrow"):
        list(read_batches(path, writer.batches["a"], SCHEMA))
