"""What a caller of a query sends, and how a query ends early: the text with its parameters, cancelling, errors."""

import contextlib
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from sql.constants import ConstantError
from sql.parameters import Parameter, parse_parameter
from tests.standin.problems import Problem


@dataclass(frozen=True, slots=True)
class QueryText:
    """What a caller sent: the text, where names without a dataset belong, and typed parameters."""

    text: str
    project: str
    default_dataset: str | None
    parameters: Mapping[str, Parameter]

    def bound(self, sql: str) -> Any:
        """Return the parameters that ``sql`` names; BigQuery lets a query leave some out, DuckDB doesn't."""
        given = {name: value for name, value in self.parameters.items() if re.search(rf"\${name}\b", sql)}
        return {name: _plain(value) for name, value in given.items()} or None


class Cancel:
    """Ends a running query from another thread."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self._connection: Any = None
        self._lock = threading.Lock()

    def ask(self) -> None:
        """Interrupt what runs."""
        self.asked.set()
        with self._lock:
            if self._connection is not None:
                self._connection.interrupt()

    def check(self) -> None:
        """Raise when it was asked.

        Raises:
            Problem: ``stopped``.
        """
        if self.asked.is_set():
            raise cancelled()

    def watch(self, connection: Any) -> None:
        """Take the connection that is to be interrupted; None when it has ended."""
        with self._lock:
            self._connection = connection
        if connection is not None:
            self.check()


def cancelled() -> Problem:
    return Problem("stopped", "Job execution was cancelled: User requested cancellation")


def _plain(parameter: Parameter) -> Any:
    return list(parameter.value) if isinstance(parameter.value, tuple) else parameter.value


def read_parameter(given: Mapping[str, Any]) -> Parameter:
    """Return one of a request's queryParameters.

    Raises:
        Problem: ``invalid``; its value is not of its type, or its type is not kept here.
    """
    kind = given["parameterType"]
    value = given.get("parameterValue") or {}
    if "arrayType" in kind:
        element = kind["arrayType"]["type"]
        items = [_typed(element, item.get("value")) for item in value.get("arrayValues") or ()]
        body: dict[str, Any] = {"type": f"ARRAY<{element}>", "value": items}
    else:
        body = {"type": kind["type"], "value": _typed(kind["type"], value.get("value"))}
    try:
        return parse_parameter(body)
    except ConstantError as exc:
        raise Problem("invalid", f"Query parameter {given.get('name', '')!r}: {exc}") from exc


def _typed(kind: str, value: str | None) -> Any:
    """Return a REST value, which is always text, as JSON's."""
    if value is None:
        return None
    if kind in {"FLOAT64", "FLOAT"}:
        return float(value)
    if kind in {"BOOL", "BOOLEAN"}:
        return str(value).lower() == "true"
    return value


@contextlib.contextmanager
def engine_errors(cancel: Cancel | None) -> Iterator[None]:
    """Turn the engine's errors into BigQuery's."""
    try:
        yield
    except duckdb.InterruptException as exc:
        raise cancelled() from exc
    except (duckdb.Error, pa.ArrowException) as exc:
        if cancel is not None and cancel.asked.is_set():
            raise cancelled() from exc
        raise Problem("invalidQuery", f"{exc}") from exc
