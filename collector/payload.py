"""A request's body: unpacked within a bound, checked as strict JSON, and cut into events byte for byte."""

import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from model.errors import BodyTooLargeError, RequestInvalidError

# Deeper than any event means; BigQuery's JSON ends at 500 levels, and C parsers at their stack.
MAX_DEPTH: Final = 100
MAX_BATCH_EVENTS: Final = 10_000
# Each costs time, also where it is empty.
_MAX_BATCH_LINES: Final = 4 * MAX_BATCH_EVENTS
_GZIP_WINDOW: Final = 31
# What follows a member is copied for the next one, so that many empty members would cost without giving anything.
_MAX_GZIP_MEMBERS: Final = 100
_SPACE: Final = re.compile(r"[ \t\n\r]*")
# Takes a string without an end too: to look for the next one from each quote in it would be quadratic.
_TEXT: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_BRACKET: Final = re.compile(r"[\[\]{}]")
_BOM: Final = "\ufeff"


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One event of a batch: its bytes as received, or why it is refused."""

    data: bytes
    fault: RequestInvalidError | None = None


@dataclass(slots=True)
class _Strict:
    """Parses JSON and notes what strict readers refuse although the grammar allows it."""

    faults: list[tuple[str, str]] = field(default_factory=list)

    def decoder(self) -> json.JSONDecoder:
        return json.JSONDecoder(
            object_pairs_hook=self._check_names,
            parse_constant=self._refuse_constant,
            # Numbers are not converted: nothing reads them, and one with a million digits would be slow.
            parse_int=_nothing,
            parse_float=_nothing,
        )

    def _check_names(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            seen: set[str] = set()
            name = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            self.faults.append(("json_name_repeated", f"The name {name[:80]!r} occurs twice in one object."))
        return found

    def _refuse_constant(self, text: str) -> None:
        self.faults.append(("json_invalid", f"{text} is not a JSON value."))


def _nothing(_text: str) -> None:
    return None


class _FaultError(ValueError):
    """The parser met something that is not strict."""


def _check_unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _FaultError
    return found


def _refuse(_text: str) -> None:
    raise _FaultError


# Ends at the first fault without naming it. Most events have none, and one decoder reads them all.
_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_check_unique, parse_constant=_refuse, parse_int=_nothing, parse_float=_nothing
)


def check_json(data: bytes) -> None:
    """Raise unless ``data`` is one strict JSON value.

    Strict is RFC 8259 with what I-JSON (RFC 7493, sections 2.1 and 2.3) adds: UTF-8 without a byte order mark,
    no name twice in an object, no half of a surrogate pair; and at most 100 levels.

    Raises:
        RequestInvalidError: it is not; the error has the line and the column where that is known.

    Example:
        >>> check_json(b'{"a": 1}')
        >>> check_json(b'{"a": 1, "a": 2}')
        Traceback (most recent call last):
            ...
        model.errors.RequestInvalidError: The name 'a' occurs twice in one object.
    """
    text = _decode(data)
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError):
        value = _find_fault(text)
    _check_text(data, value)


def _find_fault(text: str) -> Any:
    """Parse a second time, to find what is wrong and where."""
    strict = _Strict()
    start = _skip_space(text, 0)
    end, value = _parse(strict, text, start)
    if (rest := _skip_space(text, end)) < len(text):
        raise _invalid_at(text, rest, "There is more text after the value.")
    if strict.faults:
        raise RequestInvalidError.of(*strict.faults[0])
    return value


def split_array(data: bytes) -> Iterator[BatchItem]:
    """Yield each element of a JSON array with its bytes as received; one that is not strict has its fault.

    Raises:
        RequestInvalidError: the whole is no JSON array; nothing was yielded then.
        BodyTooLargeError: it has too many elements; those after the bound were not read.
    """
    text = _decode(data)
    items: list[BatchItem] = []
    at = _skip_space(text, 0) + 1
    while True:
        strict = _Strict()
        start = _skip_space(text, at)
        if not items and text.startswith("]", start):
            end = start
            break
        _check_count(len(items))
        end, value = _parse(strict, text, start)
        piece = text[start:end].encode()
        items.append(BatchItem(piece, _fault_of(strict, piece, value)))
        end = _skip_space(text, end)
        if not text.startswith(",", end):
            break
        at = end + 1
    if not text.startswith("]", end):
        raise _invalid_at(text, end, "Expecting ',' or ']'.")
    if (rest := _skip_space(text, end + 1)) < len(text):
        raise _invalid_at(text, rest, "There is more text after the array.")
    return iter(items)


def split_lines(data: bytes, check: Callable[[bytes], None]) -> Iterator[BatchItem]:
    """Yield each line that is not empty, without its line break, and the fault that ``check`` finds in it.

    Raises:
        BodyTooLargeError: there are too many.
    """
    if data.count(b"\n") > _MAX_BATCH_LINES:
        raise BodyTooLargeError(f"A batch can have at most {_MAX_BATCH_LINES} lines.")
    count = 0
    for line in data.split(b"\n"):
        stripped = line.removesuffix(b"\r")
        if stripped.strip():
            _check_count(count)
            count += 1
            try:
                check(stripped)
            except RequestInvalidError as fault:
                yield BatchItem(stripped, fault)
            else:
                yield BatchItem(stripped)


def _check_count(before: int) -> None:
    if before >= MAX_BATCH_EVENTS:
        raise BodyTooLargeError(f"A batch can have at most {MAX_BATCH_EVENTS} events.")


def is_array(data: bytes) -> bool:
    """Whether the first character that is no space begins a JSON array."""
    return data.lstrip(b" \t\r\n").startswith(b"[")


def gunzip(data: bytes, max_bytes: int) -> bytes:
    """Return what gzip made ``data`` of, its members one after the other.

    Raises:
        BodyTooLargeError: it is more than ``max_bytes``; no more than that was unpacked.
        RequestInvalidError: it is no gzip, or is cut off.
    """
    out = bytearray()
    members = 0
    while data:
        if (members := members + 1) > _MAX_GZIP_MEMBERS:
            raise _no_gzip(f"it has more than {_MAX_GZIP_MEMBERS} members")
        member = zlib.decompressobj(_GZIP_WINDOW)
        try:
            out += member.decompress(data, max_bytes - len(out) + 1)
        except zlib.error as exc:
            raise _no_gzip(str(exc)) from exc
        if len(out) > max_bytes:
            raise BodyTooLargeError(f"The body unpacks to more than {max_bytes} bytes.")
        if not member.eof:
            raise _no_gzip("the end is missing")
        data = member.unused_data
    return bytes(out)


def _no_gzip(reason: str) -> RequestInvalidError:
    return RequestInvalidError.of("gzip_invalid", f"The body is not gzip: {reason}.")


def _decode(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as exc:
        raise RequestInvalidError.of("json_not_utf8", f"Byte {exc.start} is not UTF-8.") from exc
    if text.startswith(_BOM):
        raise RequestInvalidError.of(
            "json_invalid", "JSON begins without a byte order mark (RFC 8259, section 8.1)."
        )
    _check_depth(text)
    return text


def _check_depth(text: str) -> None:
    """Raise when brackets are nested too deep, before anything recursive reads them."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for bracket in _BRACKET.finditer(_TEXT.sub("", text)):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > MAX_DEPTH:
            raise RequestInvalidError.of(
                "json_too_deep", f"Arrays and objects can be nested at most {MAX_DEPTH} levels deep."
            )


def _parse(strict: _Strict, text: str, start: int) -> tuple[int, Any]:
    try:
        value, end = strict.decoder().raw_decode(text, start)
    except json.JSONDecodeError as exc:
        raise _invalid_at(text, exc.pos, f"{exc.msg}.") from exc
    except RecursionError as exc:
        # A string that never ends hides brackets from the count.
        raise RequestInvalidError.of(
            "json_too_deep", f"Arrays and objects can be nested at most {MAX_DEPTH} levels deep."
        ) from exc
    return end, value


def _fault_of(strict: _Strict, data: bytes, value: Any) -> RequestInvalidError | None:
    if strict.faults:
        return RequestInvalidError.of(*strict.faults[0])
    try:
        _check_text(data, value)
    except RequestInvalidError as fault:
        return fault
    return None


def _check_text(data: bytes, value: Any) -> None:
    # Only an escape can make one: UTF-8 has no surrogates.
    if b"\\u" in data:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as exc:
            raise RequestInvalidError.of(
                "json_surrogate", "A string contains an unpaired surrogate, so it is not valid Unicode."
            ) from exc


def _skip_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _invalid_at(text: str, at: int, message: str) -> RequestInvalidError:
    line = text.count("\n", 0, at) + 1
    column = at - text.rfind("\n", 0, at)
    error = {"code": "json_invalid", "message": message, "line": line, "column": column}
    return RequestInvalidError(
        f"The body is not valid JSON: {message} (line {line}, column {column})", errors=[error]
    )
