"""Registers Python functions with the lake's engine, as Arrow functions that get whole columns."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa

from connectors.lake import functions, repairs

_ARROW: Final = {
    "VARCHAR": pa.string(), "DOUBLE": pa.float64(), "BIGINT": pa.int64(), "BLOB": pa.binary(),
    "BOOLEAN": pa.bool_(), "TIME": pa.time64("us"),
    "TIMESTAMP": pa.timestamp("us"), "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
    "VARCHAR[]": pa.list_(pa.string()), "BIGINT[]": pa.list_(pa.int64()),
    functions.NUMERIC: pa.decimal128(38, 9),
}  # fmt: skip


def register_functions(connection: Any) -> None:
    """Give ``connection`` the functions that translated queries call.

    A parameter whose type ends in ``?`` may be NULL; NULL for another one makes the result NULL. Those of
    connectors/lake/functions.py have a twin, ``refeed_safe_...``, that gives NULL where the function fails.
    """
    for function in (*functions.FUNCTIONS, *repairs.FUNCTIONS):
        _register(connection, function, is_safe=False)
    for function in functions.FUNCTIONS:
        _register(connection, function, is_safe=True)


def _register(connection: Any, listed: functions.Function, *, is_safe: bool) -> None:
    name, function, written, result = listed
    kinds = written.split()
    takes_null = tuple(kind.endswith("?") for kind in kinds)

    def answer(*columns: pa.Array) -> pa.Array:
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        return pa.array(_answers(function, takes_null, rows, is_safe=is_safe), _ARROW[result])

    # The engine counts the parameters of the function that it gets.
    by_arity: tuple[Callable[..., pa.Array], ...] = (
        lambda a: answer(a),  # noqa: PLW0108
        lambda a, b: answer(a, b),  # noqa: PLW0108
        lambda a, b, c: answer(a, b, c),  # noqa: PLW0108
        lambda a, b, c, d: answer(a, b, c, d),  # noqa: PLW0108
    )
    connection.create_function(
        name.replace("refeed_", "refeed_safe_") if is_safe else name,
        by_arity[len(kinds) - 1],
        [kind.rstrip("?") for kind in kinds],
        result,
        type="arrow",
        null_handling="special",
    )


def _answers(
    function: Callable[..., Any], takes_null: tuple[bool, ...], rows: Iterator[tuple[Any, ...]], *, is_safe: bool
) -> Iterator[Any]:
    for row in rows:
        if any(value is None and not may for value, may in zip(row, takes_null, strict=True)):
            yield None
            continue
        try:
            yield function(*row)
        except (ValueError, ArithmeticError):
            if not is_safe:
                raise
            yield None
