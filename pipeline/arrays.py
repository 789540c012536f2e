"""Arrow arrays of many columns at once: one call of Arrow's costs as much as dozens of values."""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa

from model.widening import scalar_text

# Arrays are made when the values of all columns are known.
Make = Callable[[], pa.Array]


class _Pool:
    """All values of one type."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._parts: list[Sequence[Any]] = []
        self._length = 0

    def add(self, values: Sequence[Any]) -> Make:
        start, length = self._length, len(values)
        self._parts.append(values)
        self._length += length
        return lambda: self._array.slice(start, length)

    @cached_property
    def _array(self) -> pa.Array:
        values = list(chain.from_iterable(self._parts))
        try:
            return pa.array(values, self._kind)
        except pa.ArrowTypeError:
            if self._kind != pa.string():
                raise
            return pa.array([None if value is None else scalar_text(value) for value in values], self._kind)


class Arrays:
    """Makes one array of all values of a type; each column is a slice of it."""

    def __init__(self) -> None:
        self._pools: dict[int, _Pool] = {}
        self._nulls: dict[tuple[int, int], pa.Array] = {}

    def scalars(self, values: Sequence[Any], kind: pa.DataType) -> Make:
        """Return the maker of a column of values that a scalar ``kind`` without parameters takes as they are.

        In a column of texts any other scalar is its text.
        """
        pool = self._pools.get(kind.id)
        if pool is None:
            pool = self._pools[kind.id] = _Pool(kind)
        return pool.add(values)

    def lists(self, values: Sequence[Sequence[Any]], kind: pa.ListType) -> Make:
        """Return the maker of a column of lists of such values."""
        return self.nested_lists(values, kind, self.scalars(list(chain.from_iterable(values)), kind.value_type))

    def nested_lists(self, values: Sequence[Sequence[Any]], kind: pa.ListType, elements: Make) -> Make:
        """Return the maker of a column of lists, which have ``elements`` one after the other."""
        ends = self.scalars(list(accumulate(map(len, values), initial=0)), pa.int32())
        return lambda: pa.ListArray.from_arrays(ends(), elements(), type=kind)

    def nulls(self, length: int, kind: pa.DataType) -> Make:
        """Return the maker of a column without values."""
        if kind.num_fields:
            return lambda: pa.nulls(length, kind)
        key = kind.id, length
        array = self._nulls.get(key)
        if array is None:
            array = self._nulls[key] = pa.nulls(length, kind)
        return lambda: array

    def records(self, columns: Sequence[Make], fields: Sequence[pa.Field], absent: Sequence[bool] | None) -> Make:
        """Return the maker of a column of records; those ``absent`` are null."""
        mask = None if absent is None else self.scalars(absent, pa.bool_())

        def make() -> pa.Array:
            arrays = [column() for column in columns]
            return pa.StructArray.from_arrays(arrays, fields=fields, mask=None if mask is None else mask())

        return make
