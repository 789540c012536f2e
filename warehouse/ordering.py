"""The order of ordering keys, asked of queries that may not give its columns."""

from collections.abc import Iterator
from contextlib import contextmanager

from model.errors import OrderingColumnsError, QueryError
from sql.ordering import ORDERED_BY


@contextmanager
def ordering_errors(*, by_key: bool) -> Iterator[None]:
    """Raise what a sort by the columns of :data:`sql.ordering.ORDERED_BY` lacks as what it is.

    Raises:
        OrderingColumnsError: the lake's engine, which sorts for every warehouse, finds no such column.
    """
    try:
        yield
    except QueryError as exc:
        if by_key and any(f'"{column}" not found' in exc.message for column in ORDERED_BY):
            raise OrderingColumnsError from exc
        raise
