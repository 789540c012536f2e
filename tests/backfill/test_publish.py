"""A task's work against the embedded Pub/Sub server."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backfill.pace import Pace, write_pace
from backfill.publish import publish_chains, publish_piece, unconfirmed_bound
from backfill.selection import SELECTION_SCHEMA, Selection, SelectionSlice, write_selection
from backfill.tagging import Target, tag_messages
from backfill.work import Piece
from connectors.pubsub.client import PubSub
from connectors.pubsub.publish import Publisher
from jobs.folder import Control, JobFolder, Order
from jobs.progress import CheckpointFolder, SliceCheckpoint
from model.errors import TopicNotFoundError
from model.message import REPLAY_TAGS

Rows = Callable[..., pa.RecordBatch]
ATTRIBUTES = SELECTION_SCHEMA.field("attributes").type
TARGET = Target("bf_1", "projects/shop/topics/replay", None, "token")


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    folder = JobFolder(tmp_path / "bf_1")
    folder.write_specification({})
    CheckpointFolder(folder.progress).create()
    let_go(folder, 1)
    return folder


@pytest.fixture
def publisher(pubsub: PubSub, receive: Any) -> Publisher:
    return Publisher(pubsub.channel, pubsub.topic_path("replay"), in_flight=2)


def let_go(folder: JobFolder, epoch: int) -> None:
    """Say what a driver would: the attempt counts and has no limit."""
    folder.write_control(Control(epoch, Order.RUN))
    write_pace(folder, epoch, Pace(beat=1, go=True))


def whole(part: SelectionSlice) -> Piece:
    return Piece(part.number, part, part.rows)


def selection_of(folder: JobFolder, *batches: pa.RecordBatch) -> Selection:
    return write_selection(batches, folder.selection)


def numbers(messages: list[Any]) -> Counter[int]:
    return Counter(int(m.attributes["n"]) for m in messages)


def test_every_row_goes_out_tagged_with_its_own_attributes(
    folder: JobFolder, publisher: Publisher, receive: Callable[[int], list[Any]], rows: Rows
) -> None:
    (part,) = selection_of(folder, rows(2500)).slices

    end = publish_piece(publisher, folder, 1, TARGET, whole(part))

    received = receive(2500)
    assert numbers(received) == Counter(range(2500))
    for message in received:
        n = message.attributes["n"]
        assert message.data == f"data {n}".encode()
        assert message.ordering_key == ""
        assert dict(message.attributes) == {
            "n": n,
            "refeed_replay": "token",
            "refeed_backfill_id": "bf_1",
            "refeed_row": n,
            "refeed_topic": "orders",
            "refeed_message_id": f"m{n}",
            "refeed_publish_time": "2024-03-01T12:00:00.000005Z",
        }
    assert (end.offset, end.published, end.failed, end.done) == (2500, 2500, 0, True)
    assert (end.repeated_at_most, end.event_time) == (0, "2024-03-01T12:00:00.000005Z")
    assert end.bytes > 2500 * 100
    assert CheckpointFolder(folder.progress).read(0) == end


def test_what_goes_out_after_a_pause_is_what_the_running_slices_have_under_way() -> None:
    assert [unconfirmed_bound(slices) for slices in (0, 1, 2)] == [0, 4000, 8000]


def test_a_finished_slice_is_not_published_again(
    folder: JobFolder, publisher: Publisher, receive: Callable[[int], list[Any]], rows: Rows
) -> None:
    (part,) = selection_of(folder, rows(10)).slices
    publish_piece(publisher, folder, 1, TARGET, whole(part))
    let_go(folder, 2)

    end = publish_piece(publisher, folder, 2, TARGET, whole(part))

    assert numbers(receive(10)) == Counter(range(10))
    assert (end.epoch, end.published, end.repeated_at_most, end.done) == (2, 10, 0, True)


@pytest.mark.parametrize("control", [Control(1, Order.STOP), Control(2, Order.RUN)])
def test_a_task_told_to_stop_sends_nothing_more_and_another_goes_on_without_repeating(  # noqa: PLR0917
    folder: JobFolder,
    publisher: Publisher,
    receive: Callable[[int], list[Any]],
    rows: Rows,
    monkeypatch: pytest.MonkeyPatch,
    control: Control,
) -> None:
    (part,) = selection_of(folder, rows(9500)).slices
    write = CheckpointFolder.write

    def stop_at_3000(self: CheckpointFolder, checkpoint: SliceCheckpoint) -> None:
        write(self, checkpoint)
        if checkpoint.offset == 3000:
            folder.write_control(control)

    monkeypatch.setattr(CheckpointFolder, "write", stop_at_3000)
    stopped = publish_piece(publisher, folder, 1, TARGET, whole(part))

    # Two requests are under way at once: one more was when the order came.
    assert (stopped.offset, stopped.published, stopped.done, stopped.stopped) == (4000, 4000, False, True)

    let_go(folder, 3)
    end = publish_piece(publisher, folder, 3, TARGET, whole(part))
    assert numbers(receive(9500)) == Counter(range(9500))
    assert (end.published, end.repeated_at_most, end.done, end.stopped) == (9500, 0, True, False)


def test_after_a_crash_no_row_is_missing_and_what_is_repeated_is_bounded(
    folder: JobFolder,
    publisher: Publisher,
    receive: Callable[[int], list[Any]],
    rows: Rows,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (part,) = selection_of(folder, rows(9500)).slices
    write = CheckpointFolder.write

    def crash_at_3000(self: CheckpointFolder, checkpoint: SliceCheckpoint) -> None:
        if checkpoint.offset == 3000:
            raise KeyboardInterrupt
        write(self, checkpoint)

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFolder, "write", crash_at_3000)
        with pytest.raises(KeyboardInterrupt):
            publish_piece(publisher, folder, 1, TARGET, whole(part))

    let_go(folder, 2)
    end = publish_piece(publisher, folder, 2, TARGET, whole(part))

    found = numbers(receive(9500))
    repeated = found.total() - 9500
    assert set(found) == set(range(9500))
    assert 0 < repeated <= end.repeated_at_most == publisher.max_unconfirmed_messages == 2000
    assert end.published == 9500


def test_what_can_not_be_a_message_is_a_dead_letter_and_the_rest_goes_out(
    folder: JobFolder, publisher: Publisher, receive: Callable[[int], list[Any]], rows: Rows
) -> None:
    attributes = [[{"key": "n", "value": str(n)}] for n in range(2000)]
    attributes[0] += [{"key": f"k{k}", "value": ""} for k in range(95)]
    attributes[1] += [{"key": f"k{k}", "value": ""} for k in range(93)]
    attributes[1500] = [{"key": "n", "value": None}]
    attributes[1700] += [{"key": "googkey", "value": "Pub/Sub keeps goog to itself"}]
    batch = rows(2000, attributes=pa.array(attributes, ATTRIBUTES))
    (part,) = selection_of(folder, batch).slices

    end = publish_piece(publisher, folder, 1, TARGET, whole(part), max_failed=3)

    assert numbers(receive(1997)) == Counter(set(range(2000)) - {0, 1500, 1700})
    assert (end.published, end.failed, end.offset, end.done) == (1997, 3, 2000, True)
    letters = [json.loads(line) for line in (folder.dead_letters / "000000.1.ndjson").read_text().splitlines()]
    assert sorted((letter["row"], letter["code"]) for letter in letters) == [
        (0, "no_room_for_tags"),
        (1500, "attribute_without_text"),
        (1700, "refused_by_pubsub"),
    ]


def test_a_slice_of_dead_letters_alone_is_done(
    folder: JobFolder, publisher: Publisher, receive: Callable[[int], list[Any]], rows: Rows
) -> None:
    crowded = [[{"key": f"k{k}", "value": ""} for k in range(100)]] * 3
    (part,) = selection_of(folder, rows(3, attributes=pa.array(crowded, ATTRIBUTES))).slices

    end = publish_piece(publisher, folder, 1, TARGET, whole(part), max_failed=3)

    assert (end.published, end.failed, end.offset, end.done) == (0, 3, 3, True)
    assert receive(0) == []


def test_a_topic_that_is_gone_fails_the_task(folder: JobFolder, pubsub: PubSub, rows: Rows) -> None:
    (part,) = selection_of(folder, rows(3)).slices
    publisher = Publisher(pubsub.channel, pubsub.topic_path("deleted"))

    with pytest.raises(TopicNotFoundError):
        publish_piece(publisher, folder, 1, TARGET, whole(part))


def test_slices_arrive_as_places_and_leave_as_counts(
    folder: JobFolder, emulator_host: str, receive: Callable[[int], list[Any]], rows: Rows, pubsub: PubSub
) -> None:
    made = selection_of(folder, rows(30_000), rows(20_000))
    target = replace(TARGET, emulator_host=emulator_host)
    chains = tuple((whole(part),) for part in made.slices)
    places = [pa.record_batch({"id": pa.array([n], pa.int64())}) for n in range(len(made.slices))]

    ends = [
        row
        for batch in publish_chains(iter(places), folder=str(folder.path), epoch=1, target=target, chains=chains)
        for row in batch.to_pylist()
    ]

    assert sum(end["published"] for end in ends) == 50_000
    assert all(end["done"] for end in ends)


texts = st.text(max_size=8)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.binary(max_size=20)),
            st.one_of(
                st.none(), st.dictionaries(st.one_of(texts, st.sampled_from(REPLAY_TAGS)), texts, max_size=6)
            ),
            st.booleans(),
        ),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 5),
)
def test_a_message_has_its_own_attributes_and_the_tags_win(
    messages: list[tuple[bytes | None, dict[str, str] | None, bool]], skipped: int
) -> None:
    count = len(messages)
    selected = pa.RecordBatch.from_arrays(
        [
            pa.array(range(count), pa.int64()),
            pa.array([data for data, _, _ in messages], pa.binary()),
            pa.array(
                [
                    None if own is None else [{"key": k, "value": v} for k, v in own.items()]
                    for _, own, _ in messages
                ],
                ATTRIBUTES,
            ),
            pa.array([f"m{n}" for n in range(count)], pa.string()),
            pa.nulls(count, pa.timestamp("us", tz="UTC")),
            pa.array(["orders" if has_topic else None for _, _, has_topic in messages], pa.string()),
            pa.nulls(count, pa.string()),
        ],
        schema=SELECTION_SCHEMA,
    ).slice(min(skipped, count - 1))

    tagged, places, refused = tag_messages(selected, TARGET)

    assert refused == []
    assert places.tolist() == list(range(selected.num_rows))
    for row, (data, own, has_topic) in zip(tagged.to_pylist(), messages[min(skipped, count - 1) :], strict=True):
        tags = {key: value for key, value in row["attributes"] if key in REPLAY_TAGS}
        rest = {key: value for key, value in row["attributes"] if key not in REPLAY_TAGS}
        assert row["data"] == (data or b"")
        assert rest == {k: v for k, v in (own or {}).items() if k not in REPLAY_TAGS}
        assert (tags["refeed_replay"], tags["refeed_backfill_id"]) == ("token", "bf_1")
        assert tags["refeed_message_id"] == f"m{tags['refeed_row']}"
        assert ("refeed_topic" in tags) == has_topic
        assert "refeed_publish_time" not in tags
        assert len(row["attributes"]) == len(tags) + len(rest)
