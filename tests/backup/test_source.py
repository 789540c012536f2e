from pathlib import Path

import pyarrow.parquet as pq

from backup.source import ArchiveTask, PulledPart
from connectors.pubsub.replays import find_replays
from model.message import REPLAY_ATTRIBUTE, replay_token


def run(archive, *batches) -> PulledPart | None:
    encoded = ArchiveTask(archive.writer(), "secret")(iter(batches))
    return None if encoded is None else PulledPart.decode(encoded)


def test_the_ids_stand_in_the_order_of_the_files_rows(archive, pulled):
    found = run(
        archive, pulled("orders", b"o1", b"o2"), pulled("members", b"m1"), pulled("orders", b"o3", first=3)
    )
    table = pq.ParquetFile(Path(archive.uri) / found.part["path"]).read()
    assert found.ids.column("message_id").to_pylist() == table.column("message_id").to_pylist()
    assert found.ids.column("topic").to_pylist() == table.column("topic").to_pylist()
    assert table.column("data").to_pylist() == [b"m1", b"o1", b"o2", b"o3"]
    assert found.ids.column("ack_id").to_pylist() == ["members-1", "orders-1", "orders-2", "orders-3"]


def test_nothing_pulled_makes_no_file(archive):
    assert run(archive) is None
    assert list(Path(archive.uri).glob("*.parquet")) == []


def test_this_deployments_own_replays_are_acknowledged_and_not_written(archive, pulled):
    token = replay_token("secret", "orders")
    found = run(
        archive,
        pulled("orders", b"first"),
        pulled("orders", b"again", first=2, attributes={REPLAY_ATTRIBUTE: token}),
    )
    assert found.ids.column("message_id").to_pylist() == ["1"]
    assert found.replays.column("message_id").to_pylist() == ["2"]


def test_a_batch_of_replays_alone_makes_no_file(archive, pulled):
    token = replay_token("secret", "orders")
    found = run(archive, pulled("orders", b"again", attributes={REPLAY_ATTRIBUTE: token}))
    assert found.part is None
    assert found.replays.num_rows == 1


def test_another_topics_token_or_a_producers_own_tag_is_written_like_any_other(archive, pulled):
    found = run(
        archive,
        pulled("orders", b"a", attributes={REPLAY_ATTRIBUTE: replay_token("secret", "members")}),
        pulled("orders", b"b", first=2, attributes={REPLAY_ATTRIBUTE: "mine"}),
        pulled("orders", b"c", first=3, attributes={"refeed_row": replay_token("secret", "orders")}),
    )
    assert found.ids.num_rows == 3
    assert found.replays.num_rows == 0


def test_only_the_tagged_rows_are_found_and_rows_without_attributes_do_not_shift_them(pulled):
    rows = pulled("orders", b"a").rows.to_pylist()
    rows += pulled("orders", b"b", attributes={REPLAY_ATTRIBUTE: "t", "x": "y"}).rows.to_pylist()
    rows += pulled("orders", b"c", attributes={"x": "t"}).rows.to_pylist()
    batch = type(pulled("orders", b"a").rows).from_pylist(rows, schema=pulled("orders", b"a").rows.schema)
    assert find_replays(batch, "t").to_pylist() == [False, True, False]
    assert find_replays(batch, "other") is None
