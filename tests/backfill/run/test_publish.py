"""A task's work against the embedded Pub/Sub server."""

import threading
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from backfill.plan.options import RunOptions
from backfill.run.dead_letters import list_dead_letters
from backfill.run.folder import BackfillFolder
from backfill.run.pace import Pace, write_pace
from backfill.run.progress import CheckpointFolder, SliceCheckpoint
from backfill.run.publish import publish_chains, publish_piece, unconfirmed_bound
from backfill.run.selection import SELECTION_SCHEMA, Selection, SelectionSlice, write_selection
from backfill.run.tagging import Target
from backfill.run.work import Piece, link_pieces, plan_work
from connectors.pubsub.publish import Publisher
from jobs.folder import Control, Order

ATTRIBUTES = SELECTION_SCHEMA.field("attributes").type
TARGET = Target("bf_1", "projects/shop/topics/replay", None, "token")


@pytest.fixture
def folder(tmp_path):
    folder = BackfillFolder(tmp_path / "bf_1")
    folder.write_specification({})
    CheckpointFolder(folder.progress).create()
    let_go(folder, 1)
    return folder


@pytest.fixture
def publisher(pubsub, receive):
    return Publisher(pubsub.channel, pubsub.topic_path("replay"), in_flight=2)


def let_go(folder: BackfillFolder, epoch: int) -> None:
    """Say what a driver would: the attempt counts and has no limit."""
    folder.write_control(Control(epoch, Order.RUN))
    write_pace(folder, epoch, Pace(beat=1, go=True))


def whole(part: SelectionSlice) -> Piece:
    return Piece(part.number, part, part.rows)


def selection_of(folder: BackfillFolder, *batches: pa.RecordBatch) -> Selection:
    return write_selection(batches, folder.selection)


def numbers(messages: list[Any]) -> Counter[int]:
    return Counter(int(m.attributes["n"]) for m in messages)


def test_every_row_goes_out_tagged_with_its_own_attributes(folder, publisher, receive, rows):
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


def test_what_goes_out_after_a_pause_is_what_the_running_slices_have_under_way():
    assert [unconfirmed_bound(slices) for slices in (0, 1, 2)] == [0, 4000, 8000]


@pytest.mark.parametrize("control", [Control(1, Order.STOP), Control(2, Order.RUN)])
def test_a_task_told_to_stop_sends_nothing_more_and_another_goes_on_without_repeating(
    folder, publisher, receive, rows, monkeypatch, *, control
):
    (part,) = selection_of(folder, rows(9500)).slices
    write = CheckpointFolder.write

    def stop_at_3000(self, checkpoint):
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
    folder, publisher, receive, rows, monkeypatch
):
    (part,) = selection_of(folder, rows(9500)).slices
    write = CheckpointFolder.write

    def crash_at_3000(self, checkpoint):
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


def test_what_can_not_be_a_message_is_a_dead_letter_and_the_rest_goes_out(folder, publisher, receive, rows):
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
    assert letters_of(folder) == {0: "no_room_for_tags", 1500: "attribute_without_text", 1700: "refused_by_pubsub"}


def letters_of(folder: BackfillFolder) -> dict[int, str]:
    return {letter.row: letter.code for letter in list_dead_letters(folder, limit=1000).letters}


def test_one_failure_too_many_stops_a_piece_and_the_rest_is_not_sent(folder, publisher, receive, rows):
    attributes = [[{"key": "n", "value": str(n)}] for n in range(5000)]
    for bad in (0, 1, 7, *range(1000, 3000)):
        attributes[bad] = [{"key": "n", "value": None}]
    (part,) = selection_of(folder, rows(5000, attributes=pa.array(attributes, ATTRIBUTES))).slices
    end = publish_piece(publisher, folder, 1, TARGET, whole(part), max_failed=3)
    assert (end.failed, end.newly_failed, end.done, end.stopped) == (4, 4, False, True)
    assert end.offset == end.published + 4 < 5000
    assert len(letters_of(folder)) == 4
    assert len(receive(end.published)) == end.published


def test_dead_letters_that_are_sent_again_leave_the_list_and_the_sums_stay_true(folder, publisher, receive, rows):
    attributes = [[{"key": "n", "value": str(n)}] for n in range(100)]
    for bad in (3, 50, 99):
        attributes[bad] += [{"key": f"k{k}", "value": ""} for k in range(92)]
    attributes[99] += [{"key": "one", "value": "more"}] * 2
    selection = selection_of(folder, rows(100, attributes=pa.array(attributes, ATTRIBUTES)))
    crowding = replace(TARGET, attributes=(("a", "1"), ("b", "2")))
    first = publish_piece(publisher, folder, 1, crowding, whole(selection.slices[0]), max_failed=10)
    assert (first.published, first.failed) == (97, 3)
    let_go(folder, 2)
    (again, _) = plan_work(folder, selection, RunOptions(), {0: first}, 2)
    second = publish_piece(publisher, folder, 2, TARGET, again)
    # What fails again is no new failure: the budget is not for it.
    assert (second.published, second.failed, second.newly_failed, second.done) == (2, -2, 0, True)
    assert letters_of(folder) == {99: "no_room_for_tags"}
    assert numbers(receive(99)) == Counter(set(range(100)) - {99})


def test_what_a_task_said_of_rows_before_it_died_is_forgotten_when_they_go_out(folder, publisher, receive, rows):
    attributes = [[{"key": "n", "value": str(n)}] for n in range(10)]
    attributes[4] += [{"key": f"k{k}", "value": ""} for k in range(93)]
    (part,) = selection_of(folder, rows(10, attributes=pa.array(attributes, ATTRIBUTES))).slices
    crowding = replace(TARGET, attributes=(("a", "1"),))
    publish_piece(publisher, folder, 1, crowding, whole(part), max_failed=10)
    assert letters_of(folder) == {4: "no_room_for_tags"}
    # The dead letter is written, the checkpoint that counts it is not.
    for name in folder.progress.list():
        folder.progress.remove(name)
    let_go(folder, 2)
    end = publish_piece(publisher, folder, 2, TARGET, whole(part))
    assert (end.published, end.failed) == (10, 0)
    assert letters_of(folder) == {}
    receive(19)


def test_a_piece_sends_no_further_than_its_driver_lets_it(folder, publisher, receive, rows):
    attributes = [[{"key": "n", "value": str(n)}] for n in range(3000)]
    for bad in range(10, 500):
        attributes[bad] = [{"key": "n", "value": None}]
    (part,) = selection_of(folder, rows(3000, attributes=pa.array(attributes, ATTRIBUTES))).slices
    write_pace(folder, 1, Pace(beat=1, go=True, until={0: 612}))

    def order_once_it_waits():
        deadline = time.monotonic() + 20
        checkpoints = CheckpointFolder(folder.progress)
        while (checkpoints.read(0) or SliceCheckpoint(0, 1)).offset < 612 and time.monotonic() < deadline:
            time.sleep(0.01)
        folder.write_control(Control(1, Order.PAUSE))

    ordering = threading.Thread(target=order_once_it_waits, daemon=True)
    ordering.start()
    end = publish_piece(publisher, folder, 1, TARGET, whole(part), max_failed=1000)
    ordering.join()
    assert (end.offset, end.published, end.failed, end.stopped) == (612, 122, 490, True)
    assert numbers(receive(122)) == Counter([*range(10), *range(500, 612)])
    assert folder.running_slices(1) == []


def test_by_key_messages_keep_their_keys_and_nothing_overtakes_what_failed(folder, publisher, receive, rows):
    keys = ["", "", *"aaaabbbb", "c"]
    attributes = [[{"key": "n", "value": str(n)}] for n in range(11)]
    for bad in (0, 3):
        attributes[bad] += [{"key": f"k{k}", "value": ""} for k in range(93)]
    attributes[7] += [{"key": "googkey", "value": "Pub/Sub keeps goog to itself"}]
    batch = rows(11, attributes=pa.array(attributes, ATTRIBUTES), ordering_key=keys)
    selection = write_selection([batch], folder.selection, by_key=True)
    by_key = replace(TARGET, by_key=True)
    crowding = replace(by_key, attributes=(("a", "1"),))
    first = publish_piece(publisher, folder, 1, crowding, whole(selection.slices[0]), max_failed=20)
    assert letters_of(folder) == {
        0: "no_room_for_tags",
        3: "no_room_for_tags",
        **dict.fromkeys((4, 5), "ordering_key_stopped"),
        7: "refused_by_pubsub",
        **dict.fromkeys((8, 9), "ordering_key_stopped"),
    }
    sent = {(int(m.attributes["n"]), m.ordering_key) for m in receive(4)}
    assert sent == {(1, ""), (2, "a"), (6, "b"), (10, "c")}
    let_go(folder, 2)
    (again, _) = plan_work(folder, selection, RunOptions(ordering="by_key"), {0: first}, 2)
    publish_piece(publisher, folder, 2, by_key, again)
    assert sorted(int(m.attributes["n"]) for m in receive(4)) == [0, 3, 4, 5]
    assert letters_of(folder) == {7: "refused_by_pubsub", 8: "ordering_key_stopped", 9: "ordering_key_stopped"}


def test_by_key_a_key_that_failed_in_one_slice_is_held_in_the_next(
    folder, publisher, receive, rows, monkeypatch, *, emulator_host
):
    monkeypatch.setattr("backfill.run.selection._SLICE_ROWS", 10)
    attributes = [[{"key": "n", "value": str(n)}] for n in range(25)]
    attributes[7] = [{"key": "n", "value": None}]
    batch = rows(25, attributes=pa.array(attributes, ATTRIBUTES), ordering_key=["a"] * 20 + ["b"] * 5)
    selection = write_selection([batch], folder.selection, by_key=True)
    chains = tuple(link_pieces(map(whole, selection.slices), selection, by_key=True))
    target = replace(TARGET, emulator_host=emulator_host, by_key=True)
    places = [pa.record_batch({"id": pa.array([n], pa.int64())}) for n in range(len(chains))]
    list(
        publish_chains(iter(places), folder=str(folder.path), epoch=1, target=target, chains=chains, max_failed=25)
    )
    assert letters_of(folder) == {7: "attribute_without_text"} | dict.fromkeys(
        range(8, 20), "ordering_key_stopped"
    )
    assert sorted(int(m.attributes["n"]) for m in receive(12)) == [*range(7), *range(20, 25)]
