"""Functions that messages are repaired with and that the lake's engine lacks: JSON, FORMAT, code points, hashes.

Each is registered with a connection and gets one row at a time. One that raises ``ValueError`` fails the query;
its sentence holds nothing of the message.
"""

import hashlib
import json
import math
import operator
import re
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from functools import lru_cache
from string import hexdigits
from typing import Any, Final

from connectors.lake.farmhash import fingerprint
from connectors.lake.functions import (
    BLANKS,
    Function,
    float_of,
    float_text,
    json_float_text,
    quote_json,
    quote_json_text,
)
from connectors.lake.lenient_json import no_constant

_INT64: Final = range(-(2**63), 2**63)
_UINT64: Final = range(2**64)
_DECIMAL: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)

Path = tuple[str | int, ...]


# --- JSON


def _first_of_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return dict(reversed(pairs)) if len(pairs) > 1 else dict(pairs)


def _whole(text: str) -> int | float:
    number = int(text)
    return number if number in _INT64 or number in _UINT64 else _fraction(text)


def _fraction(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number of JSON that FLOAT64 can't hold")
    return number


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_first_of_each, parse_int=_whole, parse_float=_fraction, parse_constant=no_constant
)


def _read(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except RecursionError as exc:
        raise ValueError("JSON nests too deep") from exc


def _write(value: Any) -> str:
    """Return JSON as Google keeps it: members in order of their names."""
    if isinstance(value, dict):
        members = sorted(value.items(), key=lambda member: member[0].encode("utf-8", "surrogatepass"))
        return "{" + ",".join(f"{quote_json(name)}:{_write(member)}" for name, member in members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_write, value)) + "]"
    if isinstance(value, float):
        return json_float_text(value)
    return quote_json(value) if isinstance(value, str) else json.dumps(value)


def json_float(number: float) -> str:
    """Return a FLOAT64 as Google writes it in JSON; what no number of JSON is becomes a string."""
    if math.isnan(number):
        return '"NaN"'
    if math.isinf(number):
        return '"Infinity"' if number > 0 else '"-Infinity"'
    return json_float_text(number + 0.0)


@lru_cache(1000)
def _steps(path: str) -> Path:
    return tuple(json.loads(path))


def json_set(text: str, paths: Sequence[str], values: Sequence[str], creates: bool) -> str:
    """Return JSON with the value at each path replaced, or made where ``creates`` and nothing is in its way."""
    found = _read(text)
    for path, value in zip(paths, values, strict=True):
        found = _set(found, _steps(path), _read(value), creates=creates)
    return _write(found)


def _set(target: Any, path: Path, value: Any, *, creates: bool) -> Any:
    if not path:
        return value
    step = path[0]
    if target is None and creates:
        target = {} if isinstance(step, str) else []
    if isinstance(target, dict) and isinstance(step, str):
        if step in target or creates:
            target[step] = _set(target.get(step), path[1:], value, creates=creates)
    elif isinstance(target, list) and isinstance(step, int):
        if step >= len(target) and creates:
            target += [None] * (step + 1 - len(target))
        if step < len(target):
            target[step] = _set(target[step], path[1:], value, creates=creates)
    return target


def json_remove(text: str, paths: Sequence[str]) -> str:
    """Return JSON without what stands at each path."""
    found = _read(text)
    for path in paths:
        *above, last = _steps(path)
        place = _at(found, tuple(above))
        if isinstance(place, dict) and isinstance(last, str):
            place.pop(last, None)
        elif isinstance(place, list) and isinstance(last, int) and last < len(place):
            del place[last]
    return _write(found)


def _at(value: Any, path: Path) -> Any:
    for step in path:
        if isinstance(value, dict) and isinstance(step, str):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int):
            value = value[step] if step < len(value) else None
        else:
            return None
    return value


def json_strip_nulls(text: str, path: str, arrays: bool, empty: bool) -> str:
    """Return JSON without nulls below a path; ``arrays`` lose theirs too, what is ``empty`` then goes as well."""
    found, steps = _read(text), _steps(path)
    if not steps:
        return _write(_stripped(found, arrays=arrays, empty=empty))
    place = _at(found, steps[:-1])
    is_there = (isinstance(place, dict) and steps[-1] in place) or (
        isinstance(place, list) and isinstance(steps[-1], int) and steps[-1] < len(place)
    )
    if is_there:
        place[steps[-1]] = _stripped(place[steps[-1]], arrays=arrays, empty=empty)
    return _write(found)


def _stripped(value: Any, *, arrays: bool, empty: bool, is_kept: bool = False) -> Any:
    """Return a value without nulls; one that ``is_kept`` stays when it becomes empty."""
    if isinstance(value, dict):
        members = {name: _stripped(member, arrays=arrays, empty=empty) for name, member in value.items()}
        value = {name: member for name, member in members.items() if member is not None}
    elif isinstance(value, list):
        items = [_stripped(item, arrays=arrays, empty=empty, is_kept=not arrays) for item in value]
        value = [item for item in items if item is not None] if arrays else items
    is_gone = value == {} or (arrays and value == [])
    return None if empty and is_gone and not is_kept else value


def json_object(names: Sequence[str | None] | None, values: Sequence[str] | None) -> str:
    """Return the JSON object of these members; the first of a name counts."""
    if names is None or values is None:
        raise ValueError("The arrays of JSON_OBJECT cannot be NULL")
    if None in names:
        raise ValueError("A key of JSON_OBJECT cannot be NULL")
    if len(names) != len(values):
        raise ValueError("The number of keys and values of JSON_OBJECT must match")
    return _write(_first_of_each([(str(name), _read(value)) for name, value in zip(names, values, strict=True)]))


def json_array(values: Sequence[str]) -> str:
    """Return the JSON array of these values."""
    return _write([_read(value) for value in values])


def json_keys(text: str | None, depth: int | None, mode: str) -> list[str] | None:
    """Return the paths of all members; ``lax`` looks into arrays, ``lax recursive`` into arrays of arrays."""
    if depth is not None and depth <= 0:
        raise ValueError("max_depth must be positive.")
    if text is None:
        return None
    found: set[str] = set()
    _add_keys(_read(text), "", 0, depth, mode, found)
    return sorted(found, key=lambda name: name.encode("utf-8", "surrogatepass"))


def _add_keys(  # noqa: PLR0917 - what goes along
    value: Any, prefix: str, level: int, depth: int | None, mode: str, found: set[str]
) -> None:
    if isinstance(value, dict) and (depth is None or level < depth):
        for name, member in value.items():
            path = prefix + ("." if prefix else "") + _escaped(name)
            found.add(path)
            _add_keys(member, path, level + 1, depth, mode, found)
    elif isinstance(value, list) and mode != "strict":
        for item in value:
            if mode == "lax recursive" or not isinstance(item, list):
                _add_keys(item, prefix, level, depth, mode, found)


def _escaped(name: str) -> str:
    quoted = quote_json_text(name)
    return quoted if "." in name or quoted != f'"{name}"' else name


def lax_bool(text: str) -> bool | None:
    """Return the BOOL that JSON may be read as."""
    value = _read(text)
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.lower())
    return value != 0 if isinstance(value, int | float) else None


def lax_int64(text: str) -> int | None:
    """Return the INT64 that JSON may be read as, halves away from zero."""
    value = _read(text)
    if isinstance(value, str):
        bare = value.strip(BLANKS)
        if not _DECIMAL.fullmatch(bare):
            return None
        value = Decimal(bare)
    if isinstance(value, float):
        value = Decimal(value)
    if isinstance(value, Decimal):
        try:
            value = int(value.quantize(Decimal(1), rounding=ROUND_HALF_UP))
        except InvalidOperation:
            return None
    return int(value) if isinstance(value, int) and int(value) in _INT64 else None


def lax_float64(text: str) -> float | None:
    """Return the FLOAT64 that JSON may be read as."""
    value = _read(text)
    if isinstance(value, str):
        try:
            return float_of(value)
        except ValueError:
            return None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def lax_string(text: str) -> str | None:
    """Return the STRING that JSON may be read as."""
    value = _read(text)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return float_text(value)
    return str(value) if isinstance(value, str | int) else None


# --- texts


def initcap(text: str, delimiters: str | None) -> str:
    """Return each word with a capital first and small letters after."""
    out, is_first = [], True
    for char in text:
        is_delimiter = char in (delimiters if delimiters is not None else _DELIMITERS) or (
            delimiters is None and char.isspace() and char not in _SEPARATORS
        )
        # Python makes two letters of U+0130; alone it becomes an i.
        changed = char.upper() if is_first else "i" if char == "\u0130" else char.lower()
        # A letter whose capital is two letters stays.
        out.append(changed if len(changed) == 1 and not is_delimiter else char)
        is_first = is_delimiter
    return "".join(out)


# Python takes these for blanks, Unicode does not.
_SEPARATORS: Final = "\x1c\x1d\x1e\x1f"
_DELIMITERS: Final = frozenset('[](){}/|\\<>!?@"^#$&~_,.:;*%+-')


def text_of_points(points: Sequence[int | None]) -> str | None:
    """Return the STRING of code points; NULL when one is."""
    if None in points:
        return None
    chosen = [point for point in points if point is not None]
    if any(not 0 <= point < 0x110000 or 0xD800 <= point < 0xE000 for point in chosen):  # noqa: PLR2004 - Unicode
        raise ValueError("Invalid code point")
    return "".join(map(chr, chosen))


# --- FORMAT


_WHOLE: Final = re.compile(r"%(?P<flags>[-+ 0]*)(?P<width>\d*)(?:\.(?P<precision>\d*))?d")


def format_whole(specifier: str, value: int) -> str:
    """Return an INT64 as ``%d`` with flags, width and precision writes it."""
    found = _WHOLE.fullmatch(specifier)
    if found is None or found["precision"] is None:
        return specifier % value
    # As in C: a precision turns the flag 0 off, and of a precision of 0 no 0 is left.
    flags = found["flags"].replace("0", "")
    if value == 0 and not int(found["precision"] or 0):
        sign = "+" if "+" in flags else " " if " " in flags else ""
        return f"%{'-' * ('-' in flags)}{found['width']}s" % sign
    return f"%{flags}{found['width']}.{found['precision']}d" % value


def format_float(specifier: str, value: float) -> str:
    """Return a FLOAT64 as ``%f``, ``%e`` or ``%g`` with flags, width and precision writes it."""
    return (specifier if math.isfinite(value) else re.sub(r"^%([-+ ]*)0+", r"%\1", specifier)) % (value + 0.0)


def format_text(specifier: str, value: str) -> str:
    """Return a STRING as ``%s`` with a width and a precision writes it; as in C it ends with a NUL."""
    return specifier % value.partition("\0")[0]


def shown_float(value: float) -> str:
    """Return a FLOAT64 as ``%t`` writes it: with a point or an exponent."""
    text = f"{value:.0f}" if value == 0 else float_text(value)
    return f"{text}.0" if re.fullmatch(r"-?\d+", text) else text


_ESCAPES: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}


def literal_text(text: str) -> str:
    """Return a STRING as ``%T`` writes it: as a literal of GoogleSQL."""
    quote = "'" if '"' in text and "'" not in text else '"'
    out, is_hex = [quote], False
    for char in text:
        # A digit after an escaped character would be read as part of its number.
        was_hex, is_hex = is_hex, False
        if char == quote:
            out.append(f"\\{quote}")
        elif char in _ESCAPES:
            out.append(_ESCAPES[char])
        elif char < " " or char == "\x7f" or (was_hex and char in hexdigits):
            out.append(f"\\x{ord(char):02x}")
            is_hex = True
        else:
            out.append(char)
    return "".join([*out, quote])


# --- what is registered

_T: Final = "VARCHAR"
# Name, function, parameters, result (connectors/lake/udfs.py).
FUNCTIONS: Final[tuple[Function, ...]] = (
    ("refeed_json_set", json_set, "VARCHAR VARCHAR[] VARCHAR[] BOOLEAN", _T),
    ("refeed_json_remove", json_remove, "VARCHAR VARCHAR[]", _T),
    ("refeed_json_strip_nulls", json_strip_nulls, "VARCHAR VARCHAR BOOLEAN BOOLEAN", _T),
    ("refeed_json_object", json_object, "VARCHAR[]? VARCHAR[]?", _T),
    ("refeed_json_array", json_array, "VARCHAR[]", _T),
    ("refeed_json_keys", json_keys, "VARCHAR? BIGINT? VARCHAR", "VARCHAR[]"),
    ("refeed_json_float", json_float, "DOUBLE", _T),
    ("refeed_lax_bool", lax_bool, "VARCHAR", "BOOLEAN"),
    ("refeed_lax_int64", lax_int64, "VARCHAR", "BIGINT"),
    ("refeed_lax_float64", lax_float64, "VARCHAR", "DOUBLE"),
    ("refeed_lax_string", lax_string, "VARCHAR", _T),
    ("refeed_initcap", initcap, "VARCHAR VARCHAR", _T),
    ("refeed_initcap_words", lambda text: initcap(text, None), "VARCHAR", _T),
    ("refeed_text_points", lambda text: list(map(ord, text)), "VARCHAR", "BIGINT[]"),
    ("refeed_byte_points", list, "BLOB", "BIGINT[]"),
    ("refeed_text_of_points", text_of_points, "BIGINT[]", _T),
    ("refeed_sha512", lambda data: hashlib.sha512(data).digest(), "BLOB", "BLOB"),
    ("refeed_farm_fingerprint", fingerprint, "BLOB", "BIGINT"),
    ("refeed_format_whole", format_whole, "VARCHAR BIGINT", _T),
    ("refeed_format_float", format_float, "VARCHAR DOUBLE", _T),
    ("refeed_format_text", format_text, "VARCHAR VARCHAR", _T),
    ("refeed_format_shown", operator.mod, "VARCHAR VARCHAR", _T),
    ("refeed_shown_float", shown_float, "DOUBLE", _T),
    ("refeed_literal_text", literal_text, "VARCHAR", _T),
)
