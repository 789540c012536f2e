"""Named, typed parameters: their JSON shape and what they are in Python."""

import base64
import binascii
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

from model.query_parameter import QueryParameter
from sql.constants import ConstantError, parse_date, parse_timestamp
from sql.violation import QueryRefusedError, Violation

_SCALARS: Final = ("STRING", "INT64", "FLOAT64", "BOOL", "BYTES", "DATE", "TIMESTAMP")
_TYPE = re.compile(r"(?:ARRAY<\s*(?P<element>[A-Z0-9]+)\s*>|(?P<scalar>[A-Z0-9]+))")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_INT64_MAX: Final = 2**63 - 1

ParameterValue = str | int | float | bool | bytes | date | datetime | None


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter; ``type`` is STRING, INT64 ... or ARRAY<...> of one, ``value`` the Python value of that type."""

    type: str
    value: ParameterValue | tuple[ParameterValue, ...]


def parse_parameters(document: Mapping[str, QueryParameter]) -> dict[str, Parameter]:
    """Return the parameters of a request, ``{"from": {"type": "TIMESTAMP", "value": "2026-01-01T00:00:00Z"}}``.

    BYTES are base64, TIMESTAMPs RFC 3339; null is NULL.

    Raises:
        QueryRefusedError: one or more are wrong; every one is named.

    Example:
        >>> parse_parameters({"n": {"type": "INT64", "value": 3}})
        {'n': Parameter(type='INT64', value=3)}
    """
    parameters: dict[str, Parameter] = {}
    violations: list[Violation] = []
    names: set[str] = set()
    for name, body in document.items():
        try:
            _check_name(name, names)
            names.add(name.lower())
            parameters[name] = parse_parameter(body)
        except ConstantError as exc:
            violations.append(Violation("parameter_value", f"Parameter {str(name)[:100]!r}: {exc}.", 1, 1))
    if violations:
        raise QueryRefusedError(violations)
    return parameters


def _check_name(name: object, taken: set[str]) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConstantError("the name may have only letters, digits and _")
    if name.lower() in taken:
        raise ConstantError("another parameter has the same name, apart from upper and lower case")


def parse_parameter(body: Any) -> Parameter:
    """Return one parameter of the shape ``{"type": ..., "value": ...}``."""
    if not isinstance(body, Mapping) or set(body) != {"type", "value"} or not isinstance(body["type"], str):
        raise ConstantError('it must have the form {"type": ..., "value": ...}')
    match = _TYPE.fullmatch(body["type"].upper().strip())
    kind = match and (match["element"] or match["scalar"])
    if match is None or kind not in _SCALARS:
        raise ConstantError(
            f"there is no type {body['type'][:60]!r}; the types are {', '.join(_SCALARS)} and ARRAY<...> of these"
        )
    value = body["value"]
    if match["scalar"]:
        return Parameter(kind, _parse_value(kind, value))
    if not isinstance(value, list | tuple):
        raise ConstantError("the value of an ARRAY must be a list")
    if any(item is None for item in value):
        raise ConstantError("an ARRAY can't contain null")
    return Parameter(f"ARRAY<{kind}>", tuple(_parse_value(kind, item) for item in value))


def _parse_value(kind: str, value: Any) -> ParameterValue:
    if value is None:
        return None
    fault = ConstantError(f"{str(value)[:60]!r} is not a valid {kind}")
    if kind == "BOOL":
        if isinstance(value, bool):
            return value
    elif kind == "INT64":
        if isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value):
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and -_INT64_MAX - 1 <= value <= _INT64_MAX:
            return value
    elif kind == "FLOAT64":
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    elif isinstance(value, str):
        return _parse_text(kind, value, fault)
    elif (
        (isinstance(value, bytes) and kind == "BYTES")
        or (isinstance(value, datetime) and kind == "TIMESTAMP" and value.tzinfo)
        or (isinstance(value, date) and not isinstance(value, datetime) and kind == "DATE")
    ):
        return value
    raise fault


def _parse_text(kind: str, value: str, fault: ConstantError) -> ParameterValue:
    if kind == "BYTES":
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError) as exc:
            raise fault from exc
    if kind == "DATE":
        return parse_date(value)
    if kind == "TIMESTAMP":
        return parse_timestamp(value)
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise fault from exc
    return value
