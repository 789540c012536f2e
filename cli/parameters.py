"""Query parameters as the terminal takes them: ``name:TYPE:value``, the way of Google's bq."""

import json
import re
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from model.errors import InputError
from model.label import parse_label as parse_model_label
from model.query_parameter import QueryParameter

_PARAMETER = re.compile(r"(?P<name>[A-Za-z_]\w*):(?:(?P<type>[A-Za-z0-9<>]*):)?(?P<value>.*)", re.DOTALL)
_TYPE = re.compile(r"(ARRAY<)?(STRING|INT64|FLOAT64|BOOL|BYTES|DATE|TIMESTAMP)(?(1)>)")

ParameterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        "-p",
        metavar="NAME:TYPE:VALUE",
        help="A query parameter, such as from:TIMESTAMP:2026-01-01T00:00:00Z. Without TYPE, as in "
        "t:orders, the parameter is a STRING.",
        show_default=False,
    ),
]


def parse_parameters(texts: Iterable[str]) -> dict[str, QueryParameter]:
    """Return the parameters in the API's form; the value of an ARRAY is a JSON array.

    Raises:
        InputError: a text is not ``name:TYPE:value`` or ``name:value``, or a name comes twice. A STRING with a
            colon of its own is ``name::value``, so that a misspelt type is never taken for a part of it.

    Example:
        >>> parse_parameters(["from:TIMESTAMP:2026-01-01T00:00:00Z"])
        {'from': {'type': 'TIMESTAMP', 'value': '2026-01-01T00:00:00Z'}}
        >>> parse_parameters(["t:orders"])
        {'t': {'type': 'STRING', 'value': 'orders'}}
    """
    parameters: dict[str, QueryParameter] = {}
    for text in texts:
        match = _PARAMETER.fullmatch(text)
        if match is None:
            raise InputError(
                "--param needs the form NAME:TYPE:VALUE, such as "
                f"from:TIMESTAMP:2026-01-01T00:00:00Z, not {text!r}."
            )
        name, kind = match["name"], (match["type"] or "").upper() or "STRING"
        if _TYPE.fullmatch(kind) is None:
            value = text.removeprefix(f"{name}:")
            raise InputError(
                f"--param {text!r}: there is no type {match['type']}. If the value is a STRING with a "
                f"colon, write {name}::{value}"
            )
        if name in parameters:
            raise InputError(f"--param {name} is given twice")
        parameters[name] = {"type": kind, "value": _value(kind, match["value"], text)}
    return parameters


def parse_label(text: str) -> tuple[str, str]:
    """Return the key and value of ``--label key=value``.

    Raises:
        InputError: it is none.
    """
    try:
        return parse_model_label(text)
    except ValueError as exc:
        raise InputError(f"--label {text!r} {exc}") from exc


def parse_pairs(texts: Iterable[str] | None, option: str, form: str = "KEY=VALUE") -> dict[str, str] | None:
    """Return the pairs that ``KEY=VALUE`` texts are, None when there are none; ``form`` is for the error's words.

    Raises:
        InputError: a text has no ``=`` or nothing before it, or a key comes twice.

    Example:
        >>> parse_pairs(["team=shop", "why=a=b"], "--label")
        {'team': 'shop', 'why': 'a=b'}
    """
    if texts is None:
        return None
    pairs: dict[str, str] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not (key and sign):
            raise InputError(f"{option} needs the form {form}, not {text!r}.")
        if key in pairs:
            raise InputError(f"{option} {key} is given twice")
        pairs[key] = value
    return pairs


def _value(kind: str, text: str, whole: str) -> Any:
    if kind.startswith("ARRAY"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise InputError(f"--param {whole!r}: the value of an ARRAY must be a JSON array: {exc}") from exc
    if kind == "BOOL" and text.lower() in {"true", "false"}:
        return text.lower() == "true"
    return text
