"""Dataclasses from plain values, by the types of their fields, and plain values from dataclasses."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

# What JSON writes otherwise than as a text.
_JSON_TYPES: Final = frozenset({"INT64", "FLOAT64", "BOOL"})
_Kind = TypeVar("_Kind")
_Read = Callable[[Any], Any]


def parse_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: it is none. NaN and Infinity are none, although Python would read them.

    Example:
        >>> parse_json("NaN")
        Traceback (most recent call last):
        ...
        ValueError: JSON has no NaN
    """

    def refuse(name: str) -> None:
        raise ValueError(f"JSON has no {name}")

    return json.loads(text, parse_constant=refuse)


def parse_parameter(kind: str, text: str) -> Any:
    """Return what a template's parameter of a GoogleSQL type has as its value, which somebody wrote as a text.

    A text that is none of the type stays a text, and the API names it.

    Example:
        >>> parse_parameter("INT64", "7"), parse_parameter("INT64", "seven"), parse_parameter("STRING", "7")
        (7, 'seven', '7')
    """
    if kind in _JSON_TYPES:
        with suppress(ValueError, RecursionError):
            return parse_json(text)
    return text


def render_parameter(value: Any) -> str:
    """Return the text that :func:`parse_parameter` makes a value of; of no value an empty one.

    Example:
        >>> render_parameter(True), render_parameter(7), render_parameter(None)
        ('true', '7', '')
    """
    return "" if value is None else json.dumps(value) if isinstance(value, bool) else str(value)


def read_fields(kind: type[_Kind], values: Mapping[str, Any]) -> _Kind:
    """Return a dataclass with these fields, as JSON or a column of a database holds them.

    Enums, times, tuples, sets and dataclasses within it are made by the types of the fields; numbers, texts and
    mappings are taken as they are. A field that is missing has its default, and an unknown name is a TypeError.

    Example:
        >>> from model.window import Window
        >>> read_fields(Window, {"start": "2026-01-01T00:00:00+00:00", "end": "2026-01-02T00:00:00+00:00"}).width
        datetime.timedelta(days=1)
    """
    readers = field_readers(kind)  # type: ignore[arg-type]  # a class is hashable
    return kind(**{name: readers[name](value) if name in readers else value for name, value in values.items()})


@cache
def field_readers(kind: type[Any]) -> dict[str, Callable[[Any], Any]]:
    """Return what reads each field of a dataclass, by its name."""
    hints = get_type_hints(kind)
    return {each.name: reader(hints[each.name]) for each in fields(kind)}


@cache
def reader(kind: Any) -> Callable[[Any], Any]:
    """Return what makes a value of a type from a plain one; None stays None where the type takes it.

    Of several dataclasses the one is made that has fields of all the names.

    Example:
        >>> from model.process import Driver
        >>> reader(Driver | None)({"name": "projects/p/locations/r/batches/b"})
        DataprocBatch(name='projects/p/locations/r/batches/b')
    """
    origin = get_origin(kind)
    if origin in {Union, UnionType}:
        read = _reader_of_any([each for each in get_args(kind) if each is not NoneType])
        return lambda value: None if value is None else read(value)
    if origin in {tuple, frozenset}:
        element = reader(get_args(kind)[0])
        return lambda values: origin(map(element, values))
    if isinstance(kind, type) and is_dataclass(kind):
        return partial(read_fields, kind)
    if kind is datetime:
        return lambda value: datetime.fromisoformat(value) if isinstance(value, str) else value
    return kind if isinstance(kind, type) and issubclass(kind, Enum) else _keep


def to_plain(value: Any) -> Any:
    """Return what JSON has for a value that it does not know, for ``json.dumps(..., default=to_plain)``.

    Example:
        >>> import json
        >>> from model.process import DataprocBatch
        >>> json.dumps([DataprocBatch("b"), datetime(2026, 1, 1)], default=to_plain)
        '[{"name": "b"}, "2026-01-01T00:00:00"]'
    """
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    raise TypeError(f"JSON has no {type(value).__name__}")


def _reader_of_any(kinds: list[Any]) -> _Read:
    if not all(map(is_dataclass, kinds)):
        return reader(kinds[0])
    return lambda value: next(
        read_fields(kind, value) for kind in kinds if value.keys() <= field_readers(kind).keys()
    )


def _keep(value: Any) -> Any:
    return value
