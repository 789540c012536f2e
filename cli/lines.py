"""The ndjson that ``publish`` and ``demo --input`` read: one message a line."""

import base64
import binascii
import gzip
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from model.errors import InputError, InvalidNameError, LineError
from model.message import Message, parse_resource_id

_KEYS: Final = {"topic", "attributes", "data", "data_base64", "ordering_key"}
_STDIN: Final = "-"
_GZIP_MAGIC: Final = b"\x1f\x8b"


def check_input(path: Path) -> None:
    """Say that there is no such file before anything is done; ``-``, which is stdin, always is there.

    Raises:
        InputError: there is none, or it is a folder.
    """
    if str(path) == _STDIN:
        return
    if not path.exists():
        raise InputError(f"{path} does not exist.")
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a file.")


def read_messages(path: Path, *, topic: str | None = None) -> Iterator[tuple[str, Message]]:
    """Yield (topic, message) of every line of ``path``, ``-`` being stdin; gzip is found by its first bytes.

    A line is ``{"topic", "attributes", "data" | "data_base64", "ordering_key"}``. A text in
    ``data`` is published as it is, any other JSON value as compact JSON, both in UTF-8; ``data_base64`` gives the
    bytes themselves. ``topic`` wins over the line's.

    Raises:
        LineError: a line is not that, or the file breaks off; the message names the line.
        InputError: there is no such file.
    """
    with _open(path) as lines:
        try:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _parse_line(line, f"{path}, line {number}", topic)
        except (OSError, EOFError, gzip.BadGzipFile) as exc:
            raise LineError(f"{path} can't be read completely: {exc}") from exc


@contextmanager
def _open(path: Path) -> Iterator[Iterable[bytes]]:
    if str(path) == _STDIN:
        yield from _unzipped(sys.stdin.buffer)
        return
    try:
        file = path.open("rb")
    except OSError as exc:
        raise InputError(f"{path} can't be opened: {exc.strerror}") from exc
    with file:
        yield from _unzipped(file)


def _unzipped(file: Any) -> Iterator[Iterable[bytes]]:
    if file.peek(2)[:2] == _GZIP_MAGIC:
        with gzip.open(file) as unzipped:
            yield unzipped
    else:
        yield file


def _parse_line(line: bytes, where: str, topic: str | None) -> tuple[str, Message]:
    try:
        fields = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as exc:
        raise LineError(f"{where}: not JSON in UTF-8: {exc}") from exc
    if not isinstance(fields, dict):
        raise LineError(f"{where}: not a JSON object")
    unknown = fields.keys() - _KEYS
    if unknown:
        raise LineError(
            f"{where}: unknown fields {', '.join(sorted(unknown))}; the fields of a line are "
            f"{', '.join(sorted(_KEYS))}"
        )
    target = topic or fields.get("topic")
    if not isinstance(target, str):
        raise LineError(f"{where}: no topic; add the field topic to the line, or use --topic")
    try:
        parse_resource_id(target)
    except InvalidNameError as exc:
        raise LineError(f"{where}: {exc.message}") from exc
    attributes = fields.get("attributes", {})
    if not isinstance(attributes, dict) or not all(isinstance(value, str) for value in attributes.values()):
        raise LineError(f"{where}: attributes must be an object with strings as values")
    ordering_key = fields.get("ordering_key", "")
    if not isinstance(ordering_key, str):
        raise LineError(f"{where}: ordering_key must be a string")
    data = _payload(fields, where)
    if not data and not attributes:
        raise LineError(f"{where}: Pub/Sub requires that a message has data or an attribute")
    return target, Message(data, attributes, ordering_key=ordering_key)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"JSON has no {name}")


def _payload(fields: dict[str, Any], where: str) -> bytes:
    if "data" in fields and "data_base64" in fields:
        raise LineError(f"{where}: a line has either data or data_base64, not both")
    if "data_base64" in fields:
        try:
            return base64.b64decode(fields["data_base64"], validate=True)
        except (TypeError, ValueError, binascii.Error) as exc:
            raise LineError(f"{where}: data_base64 is not valid base64: {exc}") from exc
    if "data" not in fields:
        return b""
    data = fields["data"]
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError as exc:
            raise LineError(f"{where}: data has half of a surrogate pair; use data_base64") from exc
    try:
        return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair has no UTF-8; as an escape it is still the JSON it was.
        return json.dumps(data, separators=(",", ":")).encode()
