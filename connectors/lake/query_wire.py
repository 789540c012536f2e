"""What goes between a query's process and the one that asks: a pickled request there, Arrow back, never a pickle.

Where the lake is in a bucket, the process asks for bytes of the request's files on its way, and gets them.

The process runs a stranger's query, so nothing that comes out of it may be more than data.
"""

import json
import pickle
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from connectors.lake.query import ArchiveSnapshot, QueryLimits
from model.errors import QueryError, QueryStoppedError, QueryTooLargeError

HEAD: Final = struct.Struct(">Ic")
LENGTH: Final = struct.Struct(">I")
READY: Final = b"r"
BATCH: Final = b"b"
END: Final = b"e"
DONE: Final = b"d"
ERROR: Final = b"x"
TAIL: Final = b"t"
RANGE: Final = b"g"
# Of what a process asks for: a number that the answer has too, which of the request's files, from where to where.
ASKED: Final = struct.Struct(">IIQQ")
# Of an answer: the number, the file's size, and how many bytes follow.
FOUND: Final = struct.Struct(">IQI")
MAX_FRAME_BYTES: Final = 1 << 30

_ERRORS: Final = {error.code: error for error in (QueryError, QueryStoppedError, QueryTooLargeError)}
_MAX_MESSAGE_CHARACTERS: Final = 2000


def render_frame(kind: bytes, body: bytes = b"") -> bytes:
    """Return one frame of the answer."""
    return HEAD.pack(len(body), kind) + body


def render_batch(batch: pa.RecordBatch) -> bytes:
    """Return one batch with its schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def read_batches(body: bytes) -> list[pa.RecordBatch]:
    """Return the batches of a frame.

    Raises:
        QueryError: it holds something else.
    """
    try:
        with pa.ipc.open_stream(body) as reader:
            return list(reader)
    except (pa.ArrowException, OSError) as exc:
        raise QueryError(f"The query's process gave an answer that can't be read: {exc}") from exc


def render_error(error: QueryError) -> bytes:
    """Return an error of the query."""
    return json.dumps({"code": error.code, "message": error.message[:_MAX_MESSAGE_CHARACTERS]}).encode()


def read_error(body: bytes) -> QueryError:
    """Return the error of a frame."""
    try:
        found = json.loads(body)
        return _ERRORS[found["code"]](str(found["message"])[:_MAX_MESSAGE_CHARACTERS])
    except (ValueError, KeyError, TypeError):
        return QueryError("The answer of the query's process can't be read.")


def render_request(
    snapshot: ArchiveSnapshot, statements: Sequence[tuple[str, Mapping[str, Any]]], limits: QueryLimits
) -> bytes:
    """Return the request, its length before it."""
    body = pickle.dumps((snapshot, statements, limits))
    return LENGTH.pack(len(body)) + body


def read_request(body: bytes) -> tuple[ArchiveSnapshot, list[tuple[str, dict[str, Any]]], QueryLimits]:
    """Return what :func:`render_request` was given; for the query's process alone, which trusts the service."""
    found: tuple[ArchiveSnapshot, list[tuple[str, dict[str, Any]]], QueryLimits] = pickle.loads(body)  # noqa: S301  # nosec B301
    return found
