"""A segment's index file: one entry a publish request, so that messages are found without reading the log."""

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
from google_crc32c import value as crc32c

from local.seqset import Seqs

# Files of the version before have no header; ``salvage`` reads those.
HEADER: Final = b"refeed index 2\n\0"
# crc32c of the rest of the entry, messages, publish time in microseconds, crc32c of all records up to here;
# then the length of each record.
_ENTRY: Final = struct.Struct("<IIqI")
_CHECKED: Final = 4


class IndexEntry(NamedTuple):
    """One publish request; without messages it marks that another segment follows this one."""

    publish_time: int
    chain: int
    lengths: Seqs


def parse_index(raw: bytes) -> tuple[list[IndexEntry], int]:
    """Return the entries up to the first damaged one, and how many bytes they take with the header."""
    entries: list[IndexEntry] = []
    if not raw.startswith(HEADER):
        return entries, 0
    position = len(HEADER)
    while position + _ENTRY.size <= len(raw):
        crc, count, publish_time, chain = _ENTRY.unpack_from(raw, position)
        end = position + _ENTRY.size + 4 * count
        if end > len(raw) or crc != crc32c(raw[position + _CHECKED : end]):
            break
        lengths = np.frombuffer(raw, dtype="<u4", count=count, offset=position + _ENTRY.size)
        entries.append(IndexEntry(publish_time, chain, lengths.astype(np.int64)))
        position = end
    return entries, position


def render_entry(publish_time: int, chain: int, lengths: Iterable[int]) -> bytes:
    """Return the bytes of one entry."""
    table = np.array(lengths, dtype="<u4")
    body = _ENTRY.pack(0, len(table), publish_time, chain)[_CHECKED:] + table.tobytes()
    return struct.pack("<I", crc32c(body)) + body
