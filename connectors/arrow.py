"""Keeps Arrow from importing pandas: import this module where the first array of a process may be made.

Arrow imports an installed pandas with the first ``pa.array`` of a list, to see whether the list is one of its
series: 0.2 s and 40 MB in every process of every stream, though only Spark's client needs it installed. Arrow
looks once, and again when somebody asks for pandas (``to_pandas``). Until then ``pa.array`` takes a pandas series
for a plain sequence, with NaN where it would have null:

    >>> import pyarrow as pa
    >>> pa.array([1, 2]).to_pandas().sum()
    np.int64(3)
"""

import sys
from importlib.abc import MetaPathFinder
from types import ModuleType

import pyarrow as pa


class _NoPandas(MetaPathFinder):
    """Finds no pandas, wherever it is installed."""

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> None:  # noqa: ARG002
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


def _look_for_pandas_in_vain() -> None:
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        # Of nothing: Arrow's first allocation takes a gibibyte of addresses, which counts as a query's memory.
        pa.array([])
    finally:
        sys.meta_path.remove(finder)


if "pandas" not in sys.modules:
    _look_for_pandas_in_vain()
