import errno
import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.pubsub_v1 import types

from local import segments
from local.damage import DamagedError
from local.segments import JUMP, MAX_LOADED_SEGMENTS, MessageLog
from local.status import StatusError
from local.wire import build_records, find_records, read_message
from tests.waiting import wait_until

PubsubMessage = types.PubsubMessage.pb()
FIRST_ID = 10**15


def body(text: str) -> bytes:
    return bytes(PubsubMessage(data=text.encode()).SerializeToString())


def read(log: MessageLog, *seqs: int) -> list[str]:
    wanted = np.array(seqs, dtype=np.int64)
    lengths = log.read_lengths(wanted)
    raw = log.read(wanted, lengths).tobytes()
    texts = []
    for seq, length in zip(seqs, lengths.tolist(), strict=True):
        message = PubsubMessage.FromString(read_message(raw[:length]))
        assert message.message_id == str(FIRST_ID + seq)
        texts.append(message.data.decode())
        raw = raw[length:]
    assert not raw
    return texts


def test_a_log_goes_on_where_it_ended_over_segments_and_restarts(tmp_path: Path) -> None:
    texts = [f"m{n}" for n in range(200)]
    for start in range(0, 200, 20):
        log = MessageLog(tmp_path, FIRST_ID, segment_bytes=300)
        for n in range(start, start + 20):
            assert log.append([body(texts[n])]) == n
    assert len(list(tmp_path.glob("*.log"))) > MAX_LOADED_SEGMENTS
    assert read(log, *range(200)) == texts
    assert read(log, 199, 3, 100) == ["m199", "m3", "m100"]


def test_whole_records_without_an_index_entry_are_kept_and_half_a_record_is_set_aside(tmp_path: Path) -> None:
    MessageLog(tmp_path, FIRST_ID).append([body("kept")])
    (path,) = tmp_path.glob("*.log")
    whole, _ = build_records([body("kept too")], FIRST_ID + 1, 10**15)
    with path.open("ab") as file:
        file.write(whole + b"half a request")
    again = MessageLog(tmp_path, FIRST_ID)
    assert again.append([body("next")]) == JUMP
    assert read(again, 0, 1, JUMP) == ["kept", "kept too", "next"]
    assert path.with_name(path.name + ".damaged-1").read_bytes() == b"half a request"


def log_of_four_requests(folder: Path) -> tuple[MessageLog, list[str]]:
    folder.mkdir(exist_ok=True)
    log = MessageLog(folder, FIRST_ID)
    texts = [f"m{n}" for n in range(9)]
    for start, end in ((0, 1), (1, 4), (4, 5), (5, 9)):
        log.append([body(text) for text in texts[start:end]])
    return log, texts


@pytest.mark.parametrize("check_bytes", [0, 16 * 1024])
def test_any_part_of_any_request_is_read_whole_or_called_damaged(tmp_path, check_bytes, monkeypatch):
    # With 0 no request is read beyond what was asked for.
    monkeypatch.setattr("local.segment._RECORD_CHECK_BYTES", check_bytes)
    # What is in memory is not affected by the disk.
    monkeypatch.setattr("local.segment._MAX_KEPT_BYTES", 0)
    log, texts = log_of_four_requests(tmp_path)
    path = next(tmp_path.glob("*.log"))
    whole = path.read_bytes()
    for hurt in range(9):
        path.write_bytes(whole.replace(texts[hurt].encode(), b"xx"))
        for start, end in itertools.combinations(range(10), 2):
            if start <= hurt < end:
                with pytest.raises(DamagedError) as caught:
                    read(log, *range(start, end))
                assert caught.value.seqs.tolist() == [hurt]
            else:
                assert read(log, *range(start, end)) == texts[start:end]


def test_what_was_just_read_is_not_read_from_disk_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, texts = log_of_four_requests(tmp_path)
    reads: list[int] = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, count, at: reads.append(count) or pread(fd, count, at))
    # The rest of the requests that it begins and ends in comes along.
    assert read(log, *range(2, 7)) == texts[2:7]
    assert len(reads) == 1
    assert read(log, *range(1, 9)) == texts[1:9]
    assert len(reads) == 1
    assert read(log, *range(9)) == texts
    assert len(reads) == 2


def test_a_closed_segment_that_is_last_has_lost_the_next_one(tmp_path: Path) -> None:
    log = MessageLog(tmp_path, FIRST_ID, segment_bytes=1)
    log.append([body("a")])
    log.append([body("b")])
    for path in tmp_path.glob("*1.*"):
        path.unlink()
    again = MessageLog(tmp_path, FIRST_ID)
    assert again.append([body("new")]) == JUMP
    assert read(again, 0, JUMP) == ["a", "new"]


def test_a_full_disk_stores_nothing_and_the_next_publish_works(tmp_path, monkeypatch):
    log = MessageLog(tmp_path, FIRST_ID)
    log.append([body("before")])
    real = os.pwrite
    for failing_call in (1, 2, 3):
        calls = iter(range(1, 10))

        def full(fd: int, data: bytes, offset: int, failing: int = failing_call, calls: object = calls) -> int:
            if next(calls) == failing:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(fd, data[: max(1, len(data) // 2)], offset)

        monkeypatch.setattr(segments.os, "pwrite", full)
        with pytest.raises(StatusError) as caught:
            log.append([body("lost")])
        assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        monkeypatch.setattr(segments.os, "pwrite", real)
    assert log.append([body("after")]) == 1
    assert read(MessageLog(tmp_path, FIRST_ID), 0, 1) == ["before", "after"]


def test_an_io_error_answers_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = MessageLog(tmp_path, FIRST_ID)

    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(segments.os, "pwrite", broken)
    with pytest.raises(StatusError) as caught:
        log.append([body("lost")])
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE


def test_consumed_segments_are_deleted_and_the_others_stay_readable(tmp_path: Path) -> None:
    log = MessageLog(tmp_path, FIRST_ID, segment_bytes=1)
    for n in range(10):
        log.append([body(f"m{n}")])
    assert log.delete_before(5) == 5
    assert log.first_seq == 5
    assert read(log, 5, 9) == ["m5", "m9"]
    assert log.delete_before(100) == 4
    assert MessageLog(tmp_path, FIRST_ID).next_seq == 10
    with pytest.raises(StatusError, match="retention"):
        read(log, 4)


def test_a_reader_of_a_deleted_segment_can_finish(tmp_path: Path) -> None:
    log = MessageLog(tmp_path, FIRST_ID, segment_bytes=1)
    log.append([body("a")])
    log.append([body("b")])
    segment = log._segment_of(0)
    log.delete_before(1)
    assert b"a" in os.pread(segment.fd, 1000, 0)


def test_publish_times_never_run_back_and_lead_to_their_messages(tmp_path, monkeypatch):
    clock = iter([5_000, 9_000, 7_000, 12_000, 11_000])
    monkeypatch.setattr(segments.time, "time_ns", lambda: next(clock) * 1000)
    log = MessageLog(tmp_path, FIRST_ID, segment_bytes=80)
    for n in range(4):
        log.append([body(f"m{n}"), body(f"n{n}")])
    assert [log.publish_time(seq) for seq in range(8)] == [5_000] * 2 + [9_000] * 4 + [12_000] * 2
    times = (0, 5_000, 5_001, 9_000, 9_001, 12_000, 12_001)
    assert [log.first_seq_since(t) for t in times] == [0, 0, 2, 2, 6, 6, 8]
    again = MessageLog(tmp_path, FIRST_ID)
    again.append([body("late")])
    assert again.publish_time(8) == 12_000


class Disk:
    """Notes how much of a log is durable: what it held when a flush that has ended began."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.flushes = 0
        self.durable: dict[int, int] = {}
        self.open = threading.Event()
        self.open.set()
        self.fault: OSError | None = None
        monkeypatch.setattr(segments.os, "fdatasync", self.flush)

    def flush(self, descriptor: int) -> None:
        number, size = os.fstat(descriptor).st_ino, os.fstat(descriptor).st_size
        assert self.open.wait(10)
        if self.fault is not None:
            raise self.fault
        self.flushes += 1
        self.durable[number] = max(size, self.durable.get(number, 0))

    def holds(self, text: str) -> bool:
        return any(
            text.encode() in path.read_bytes()[: self.durable.get(path.stat().st_ino, 0)]
            for path in self.folder.glob("*.log")
        )

    def size(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob("*.log"))

    def count(self) -> int:
        """Return how many whole records are written; their sizes differ, as a shorter time takes fewer bytes."""
        return sum(len(list(find_records(path.read_bytes()))) for path in self.folder.glob("*.log"))


def test_publishes_that_wait_for_the_disk_share_one_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, disk = MessageLog(tmp_path, FIRST_ID, fsync=True), Disk(tmp_path, monkeypatch)
    log.append([body("0")])
    flushes = disk.flushes
    disk.open.clear()
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(log.append, [body(str(n))]) for n in range(1, 9)]
        wait_until(lambda: disk.count() == 9, "all are written while the first flush is under way")
        assert not any(answer.done() for answer in answers)
        assert log.next_seq == log.answered_seq == 1
        disk.open.set()
        assert sorted(answer.result() for answer in answers) == list(range(1, 9))
    # Two files each: a flush for the first one, and one for the seven that came meanwhile.
    assert disk.flushes - flushes == 4


def test_with_fsync_every_answer_follows_a_flush_of_its_bytes_over_segments(tmp_path, monkeypatch):
    log, disk = MessageLog(tmp_path, FIRST_ID, fsync=True, segment_bytes=500), Disk(tmp_path, monkeypatch)

    def publish(name: int) -> None:
        for n in range(20):
            text = f"<{name}-{n}>"
            log.append([body(text)])
            assert disk.holds(text)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(publish, range(4)))
    assert len(list(tmp_path.glob("*.log"))) > 5
    again = MessageLog(tmp_path, FIRST_ID)
    assert len(set(read(again, *range(80)))) == 80


def test_a_flush_that_fails_refuses_all_who_waited_and_leaves_nothing_of_theirs(tmp_path, monkeypatch):
    log, disk = MessageLog(tmp_path, FIRST_ID, fsync=True), Disk(tmp_path, monkeypatch)
    log.append([body("kept")])
    one = disk.size()
    disk.open.clear()
    disk.fault = OSError(errno.EIO, "Input/output error")
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(log.append, [body("gone")], is_answered=False) for _ in range(3)]
        wait_until(lambda: disk.count() == 4, "all are written while the flush is under way")
        disk.open.set()
        for answer in answers:
            with pytest.raises(StatusError, match="could not write"):
                answer.result()
    disk.fault = None
    assert disk.size() == one
    assert log.append([body("next")]) == 1
    assert not log.is_answering
    for each in (log, MessageLog(tmp_path, FIRST_ID)):
        assert each.next_seq == 2
        assert read(each, 0, 1) == ["kept", "next"]


def test_with_fsync_the_names_of_new_files_are_durable_too(tmp_path, monkeypatch):
    synced: list[int] = []
    monkeypatch.setattr(segments.os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    log = MessageLog(tmp_path / "1", FIRST_ID, fsync=True, segment_bytes=1)
    outer, inner = tmp_path.stat().st_ino, log.folder.stat().st_ino
    assert synced == [outer, inner]
    log.append([body("a")])
    log.append([body("b")])
    assert synced == [outer, inner, inner]


def test_publishes_answered_out_of_order_are_released_in_order(tmp_path: Path) -> None:
    log = MessageLog(tmp_path, FIRST_ID)
    log.append([body("a")])
    first = log.append([body("b"), body("c")], is_answered=False)
    second = log.append([body("d")], is_answered=False)
    log.append([body("e")])
    assert (log.next_seq, log.answered_seq, log.is_answering) == (5, 1, True)
    log.release(second)
    assert log.answered_seq == 1
    log.release(first)
    assert (log.answered_seq, log.is_answering) == (5, False)
