"""Homes of the version before: no checksum in a record, crc32 of each request in the index."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import structlog
from google.pubsub_v1 import types
from structlog.testing import capture_logs

from local import damage
from local.damage import DamagedError
from local.indexes import HEADER
from local.segments import JUMP, MessageLog
from local.wire import find_records, read_message

PubsubMessage = types.PubsubMessage.pb()
FIRST_ID = 10**15
TIME = 1_700_000_000_000_000


@pytest.fixture(autouse=True)
def fresh_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A logger that no earlier test of the process has configured and cached: what it says is captured."""
    monkeypatch.setattr(damage, "_LOG", structlog.get_logger())


def old_record(text: str, seq: int) -> bytes:
    """A record byte by byte, for texts that keep every length below 128."""
    body = b"\x0a" + bytes([len(text)]) + text.encode()
    message = body + b"\x1a\x10%d" % (FIRST_ID + seq) + b"\x22\x06\x08\x80\xe2\xcf\xaa\x06"
    inner = b"\x0a\x20" + b"0" * 32 + b"\x12" + bytes([len(message)]) + message
    return b"\x0a" + bytes([len(inner)]) + inner


def old_entry(*records: bytes) -> bytes:
    joined = b"".join(records)
    body = struct.pack("<IQIq", len(records), len(joined), zlib.crc32(joined), TIME)
    body += b"".join(struct.pack("<I", len(record)) for record in records)
    return struct.pack("<I", zlib.crc32(body)) + body


def write_old(folder: Path, *requests: list[str], first: int = 0) -> tuple[Path, Path]:
    log, index = folder / f"{first:020d}.log", folder / f"{first:020d}.idx"
    seq = first
    records, entries = b"", b""
    for texts in requests:
        made = [old_record(text, seq + n) for n, text in enumerate(texts)]
        seq += len(texts)
        records += b"".join(made)
        entries += old_entry(*made)
    log.write_bytes(records)
    index.write_bytes(entries)
    return log, index


def read(log: MessageLog, *seqs: int) -> list[str]:
    texts = []
    for seq in seqs:
        one = np.array([seq], dtype=np.int64)
        message = PubsubMessage.FromString(read_message(log.read(one, log.read_lengths(one)).tobytes()))
        assert message.message_id == str(FIRST_ID + seq)
        assert message.publish_time.ToMicroseconds() == TIME or seq >= 5
        texts.append(message.data.decode())
    return texts


def test_a_home_of_the_version_before_is_read_and_gets_checksums(tmp_path: Path) -> None:
    write_old(tmp_path, ["a", "b"], ["c"])
    old, index = write_old(tmp_path, ["d"], ["e"], first=3)
    with capture_logs() as said:
        log = MessageLog(tmp_path, FIRST_ID)
    assert not said
    assert read(log, *range(5)) == ["a", "b", "c", "d", "e"]
    assert log.append([PubsubMessage(data=b"new").SerializeToString()]) == 5
    assert index.read_bytes().startswith(HEADER)
    assert all(record.is_checked for record in find_records(old.read_bytes()))
    assert read(MessageLog(tmp_path, FIRST_ID), *range(6))[-1] == "new"


def test_an_upgrade_that_a_crash_ended_is_made_again(tmp_path: Path) -> None:
    first, index = write_old(tmp_path, ["a", "b"], ["c"])
    old_bytes, old_index = first.read_bytes(), index.read_bytes()
    MessageLog(tmp_path, FIRST_ID)
    new_bytes = first.read_bytes()
    for place in range(0, len(old_bytes), 7):
        first.write_bytes(new_bytes[:place] + old_bytes[place:])
        index.write_bytes(old_index)
        with capture_logs() as said:
            log = MessageLog(tmp_path, FIRST_ID)
        assert read(log, 0, 1, 2) == ["a", "b", "c"]
        assert not said


def test_a_request_of_the_version_before_that_does_not_fit_is_set_aside_whole(tmp_path: Path) -> None:
    path, _ = write_old(tmp_path, ["a"], ["b", "c"], ["d"])
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"\x0a\x01c", b"\x0a\x01C"))
    with capture_logs() as said:
        log = MessageLog(tmp_path, FIRST_ID)
    assert read(log, 0, 3) == ["a", "d"]
    with pytest.raises(DamagedError):
        read(log, 1)
    damaged = next(each for each in said if each["event"] == "log_damaged")
    assert damaged["messages"] == 2
    assert Path(damaged["kept"]).read_bytes() == old_record("b", 1) + old_record("C", 2)


@pytest.mark.parametrize("index_bytes", [0, 20, 40])
def test_records_of_the_version_before_without_an_index_are_served_and_said_to_be_unchecked(tmp_path, index_bytes):
    path, index = write_old(tmp_path, ["a"], ["b"], ["c"])
    index.write_bytes(index.read_bytes()[:index_bytes])
    with path.open("ab") as file:
        file.write(b"torn")
    with capture_logs() as said:
        log = MessageLog(tmp_path, FIRST_ID)
    assert read(log, 0, 1, 2) == ["a", "b", "c"]
    assert log.next_seq == JUMP
    unchecked = next(each for each in said if each["event"] == "messages_not_checked")
    assert unchecked["messages"] == (2 if index_bytes == 40 else 3)
    assert path.with_name(path.name + ".damaged-1").read_bytes() == b"torn"
