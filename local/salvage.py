"""Repairs a damaged segment: finds its whole messages, writes them as whole segments, keeps the rest aside."""

import os
import struct
import zlib
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from google_crc32c import extend

from local.damage import keep_aside, report_damage
from local.files import replace_file
from local.indexes import HEADER, parse_index, render_entry
from local.seqset import Seqs
from local.wire import Record, add_checksums, find_records, remove_checksums

# An index entry of the version before: crc32 of the rest of the entry, messages, record bytes, crc32 of the
# records, publish time in microseconds; then the length of each record.
_OLD_ENTRY: Final = struct.Struct("<IIQIq")
_CHECKED: Final = 4


class Salvaged(NamedTuple):
    """The first numbers of the segments that are there now, and the end of the numbers that were given.

    ``is_damaged`` is false when nothing was wrong but the age of the files.
    """

    firsts: list[int]
    end: int
    is_damaged: bool


class _Run(NamedTuple):
    """Whole records, consecutive in numbers and in bytes."""

    first_seq: int
    records: list[Record]

    @property
    def end_seq(self) -> int:
        return self.first_seq + len(self.records)

    @property
    def start(self) -> int:
        return self.records[0].start

    @property
    def end(self) -> int:
        return self.records[-1].end


class _Index(NamedTuple):
    """What was read of an index: the end of its numbers, how many of its bytes are whole."""

    end_seq: int
    good_bytes: int


def segment_paths(folder: Path, first_seq: int) -> tuple[Path, Path]:
    """Return the paths of a segment's log and index."""
    return folder / f"{first_seq:020d}.log", folder / f"{first_seq:020d}.idx"


def salvage(folder: Path, first_seq: int, until: int | None, first_id: int, owner: str) -> Salvaged:
    """Repair the segment at ``first_seq``, which ends below ``until``, the next one's first number.

    Every repair is reported with ``owner``. A crash on the way leaves files that the same call repairs.

    Raises:
        OSError: the disk did not take it.
    """
    log_path, idx_path = segment_paths(folder, first_seq)
    log = log_path.read_bytes() if log_path.exists() else b""
    raw_index = idx_path.read_bytes() if idx_path.exists() else b""
    if raw_index.startswith(HEADER):
        entries, good_bytes = parse_index(raw_index)
        index = _Index(first_seq + sum(len(entry.lengths) for entry in entries), good_bytes)
    else:
        on_disk = log
        log, index, unchecked = _upgrade(log, raw_index, first_seq, first_id)
        if log != on_disk:
            with log_path.open("r+b") as file:
                file.write(log)
        if unchecked:
            report_damage("messages_not_checked", owner, log_path, messages=unchecked)
    is_damaged = False
    if index.good_bytes < len(raw_index) or not raw_index:
        is_damaged = True
        kept = keep_aside(idx_path, raw_index[index.good_bytes :]) if raw_index else None
        report_damage("index_damaged", owner, idx_path, offset=index.good_bytes, messages=0, kept=kept)
    runs = _find_runs(log, first_seq, until, first_id)
    place, seq = 0, first_seq
    for start, end, next_seq, end_seq in [
        *((run.start, run.end, run.first_seq, run.end_seq) for run in runs),
        (len(log), len(log), index.end_seq, 0),
    ]:
        if start > place or next_seq > seq:
            is_damaged = True
            kept = keep_aside(log_path, log[place:start]) if start > place else None
            # Bytes that no index entry names may be of any number of messages, or of none.
            lost = next_seq - seq if next_seq > seq else None
            report_damage("log_damaged", owner, log_path, offset=place, messages=lost, kept=kept)
        place, seq = end, max(seq, end_seq)
    if raw_index and (not runs or runs[0].first_seq != first_seq):
        keep_aside(idx_path, raw_index)
    _write(folder, first_seq, log, runs)
    return Salvaged([run.first_seq for run in runs], max(seq, index.end_seq), is_damaged)


def _find_runs(log: bytes, first_seq: int, until: int | None, first_id: int) -> list[_Run]:
    runs: list[_Run] = []
    expected = first_seq
    for record in find_records(log):
        seq = record.message_id - first_id
        if not record.is_checked or seq < expected or (until is not None and seq >= until):
            continue
        if runs and seq == expected and record.start == runs[-1].end:
            runs[-1].records.append(record)
        else:
            runs.append(_Run(seq, [record]))
        expected = seq + 1
    return runs


def _write(folder: Path, first_seq: int, log: bytes, runs: Sequence[_Run]) -> None:
    # From the last run to the first, so that what a crash leaves undone is still in the damaged segment, below
    # the next one.
    for run in reversed(runs):
        log_path, idx_path = segment_paths(folder, run.first_seq)
        if run.first_seq == first_seq and run.start == 0:
            os.truncate(log_path, run.end)
        else:
            replace_file(log_path, log[run.start : run.end])
        replace_file(idx_path, _render_index(log, run))
    if not runs or runs[0].first_seq != first_seq:
        for path in segment_paths(folder, first_seq):
            path.unlink(missing_ok=True)


def _render_index(log: bytes, run: _Run) -> bytes:
    index, chain = HEADER, 0
    for publish_time, group in groupby(run.records, key=lambda record: record.publish_time):
        records = list(group)
        chain = extend(chain, log[records[0].start : records[-1].end])
        index += render_entry(publish_time, chain, [record.end - record.start for record in records])
    return index


def _upgrade(log: bytes, raw_index: bytes, first_seq: int, first_id: int) -> tuple[bytes, _Index, int]:
    """Return a log of the version before with checksums, and how many records nothing could be checked of.

    A request whose own checksum does not fit stays as it is. A crash may have left some records with checksums.
    """
    position, place, seq = 0, 0, first_seq
    pieces: list[bytes] = []
    while position + _OLD_ENTRY.size <= len(raw_index):
        crc, count, size, records_crc, publish_time = _OLD_ENTRY.unpack_from(raw_index, position)
        end = position + _OLD_ENTRY.size + 4 * count
        if end > len(raw_index) or crc != zlib.crc32(raw_index[position + _CHECKED : end]):
            break
        lengths = np.frombuffer(raw_index, dtype="<u4", count=count, offset=position + _OLD_ENTRY.size)
        records = log[place : place + size]
        if len(records) == size:
            pieces.append(
                _upgrade_request(records, lengths.astype(np.int64), records_crc, first_id + seq, publish_time)
            )
            place += size
        position, seq = end, seq + count
    unchecked = 0
    for record in find_records(log, place):
        pieces.append(log[place : record.start])
        piece = log[record.start : record.end]
        if not record.is_checked:
            piece = add_checksums(piece, [len(piece)], record.message_id, record.publish_time)
            unchecked += 1
        pieces.append(piece)
        place = record.end
    return b"".join([*pieces, log[place:]]), _Index(seq, position), unchecked


def _upgrade_request(records: bytes, lengths: Seqs, records_crc: int, first_id: int, publish_time: int) -> bytes:
    if zlib.crc32(remove_checksums(records, lengths)) != records_crc:
        return records
    return add_checksums(records, lengths.tolist(), first_id, publish_time)
