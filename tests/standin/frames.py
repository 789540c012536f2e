"""A file of Arrow record batches, appended as they came and readable after ``kill -9``."""

import os
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

_MAGIC: Final = b"RFFR"
# Magic, kind, payload bytes, rows, moment of arrival in microseconds.
_HEADER: Final = struct.Struct("<4sIQQq")
_SCHEMA, _BATCH = 0, 1
_ALIGNMENT: Final = 64


@dataclass(frozen=True, slots=True)
class Frame:
    """A record batch in the file; ``first_row`` counts from the start of the file."""

    offset: int
    size: int
    rows: int
    first_row: int
    arrival_us: int
    schema: pa.Schema


class FrameLog:
    """One append-only file.

    A frame is whole or not there: what a killed process left half-written is cut off when the file is opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.frames: list[Frame] = []
        self.rows = 0
        self.size = 0
        self._schema_bytes = b""
        self._schema: pa.Schema | None = None
        self._descriptor = -1
        self._lock = threading.Lock()
        if path.exists():
            self._recover()

    def append(self, schema: bytes, batch: bytes, rows: int, arrival_us: int) -> int:
        """Append one serialized batch and return its first row's number; it is durable over a killed process."""
        with self._lock:
            if self._descriptor < 0:
                self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            if schema != self._schema_bytes:
                parsed = pa.ipc.read_schema(pa.py_buffer(schema))
                self._write(_SCHEMA, schema, 0, arrival_us)
                self._schema_bytes, self._schema = schema, parsed
            offset = self.size + _HEADER.size
            self._write(_BATCH, batch, rows, arrival_us)
            first = self.rows
            self.frames.append(Frame(offset, len(batch), rows, first, arrival_us, self._schema))
            self.rows += rows
            return first

    def close(self) -> None:
        """Give the descriptor back; appending opens it again."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def read(self, frames: Sequence[Frame]) -> Iterator[tuple[Frame, pa.RecordBatch]]:
        """Yield the batches of ``frames``; their buffers are the file's pages, not copies."""
        if not frames:
            return
        with pa.memory_map(str(self.path)) as source:
            for frame in frames:
                source.seek(frame.offset)
                yield frame, pa.ipc.read_record_batch(source.read_buffer(frame.size), frame.schema)

    def _write(self, kind: int, payload: bytes, rows: int, arrival_us: int) -> None:
        padding = -(_HEADER.size + len(payload)) % _ALIGNMENT
        head = _HEADER.pack(_MAGIC, kind, len(payload), rows, arrival_us)
        total = len(head) + len(payload) + padding
        written = os.writev(self._descriptor, [head, payload, bytes(padding)])
        if written != total:
            os.ftruncate(self._descriptor, self.size)
            raise OSError(f"{self.path}: {written} of {total} bytes written")
        self.size += total

    def _recover(self) -> None:
        with self.path.open("r+b") as file:
            end = os.fstat(file.fileno()).st_size
            while self.size + _HEADER.size <= end:
                magic, kind, size, rows, arrival = _HEADER.unpack(os.pread(file.fileno(), _HEADER.size, self.size))
                total = _HEADER.size + size
                total += -total % _ALIGNMENT
                if magic != _MAGIC or self.size + total > end:
                    break
                offset = self.size + _HEADER.size
                if kind == _SCHEMA:
                    self._schema_bytes = os.pread(file.fileno(), size, offset)
                    self._schema = pa.ipc.read_schema(pa.py_buffer(self._schema_bytes))
                else:
                    self.frames.append(Frame(offset, size, rows, self.rows, arrival, self._schema))
                    self.rows += rows
                self.size += total
            file.truncate(self.size)


def write_table(path: Path, table: pa.Table, arrival_us: int, batch_bytes: int = 8 * 1024 * 1024) -> int:
    """Write ``table`` as a new file of frames of about ``batch_bytes`` and return the number of rows."""
    log = FrameLog(path)
    schema = table.schema.remove_metadata()
    head = schema.serialize().to_pybytes()
    per_batch = max(1, batch_bytes * table.num_rows // max(1, table.nbytes)) if table.num_rows else 1
    for chunk in table.cast(schema).to_batches(max_chunksize=per_batch):
        if chunk.num_rows:
            log.append(head, chunk.serialize().to_pybytes(), chunk.num_rows, arrival_us)
    log.close()
    return log.rows
