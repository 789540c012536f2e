"""Rewrites one partition of a reporting table: keeps the rows not replaced and adds the winning changes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from connectors.columns import arrow_schema
from connectors.lake.buckets import read_batches
from connectors.lake.engine import EngineLimits
from connectors.lake.entities import write_partition
from connectors.lake.errors import our_errors
from connectors.lake.files import WrittenFile
from connectors.lake.merge_statements import ROW, MergeStatements
from connectors.lake.merging import Dealt, RowNumbers, read_widened
from connectors.lake.reading import open_files

_BATCH_ROWS: Final = 16_384


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A partition's new files, how many rows it had, and how many of the new ones are changes."""

    files: tuple[WrittenFile, ...]
    rows_before: int
    added: int

    def as_json(self) -> dict[str, Any]:
        """Return what :meth:`from_json` takes."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Rewritten":
        """Return what :meth:`as_json` described."""
        return cls(**{**found, "files": tuple(WrittenFile(**file) for file in found["files"])})


def rewrite_partition(
    statements: MergeStatements,
    table_uri: str,
    partition: date | None,
    current: Sequence[str],
    *,
    dealt: Dealt,
    limits: EngineLimits,
) -> Rewritten:
    """Rewrite a partition: the rows of ``current`` except those removed, and the changes that belong in it.

    No more than a row group is in memory at a time, however large the partition is.
    """
    schema = arrow_schema(statements.schema)
    counts = {"before": 0, "added": 0}

    def rows() -> Iterator[pa.RecordBatch]:
        for path in current:
            is_gone = _marks(dealt.gone.get(path))
            for places, batch in _read(path, statements, schema, limits):
                counts["before"] += batch.num_rows
                yield batch if is_gone is None else batch.filter(pa.array(~is_gone.take(places, mode="clip")))
        for batch in read_batches(dealt.winners, dealt.batches.get(partition, ()), schema):
            counts["added"] += batch.num_rows
            yield batch

    files = write_partition(table_uri, partition, schema, rows(), keys=statements.rules.key)
    return Rewritten(tuple(files), counts["before"], counts["added"])


def _marks(gone: RowNumbers | None) -> npt.NDArray[np.bool_] | None:
    """Return whether each row of a file goes, up to the last one that does and one more, which stays."""
    if gone is None:
        return None
    marks = np.zeros(gone[-1] + 2, bool)
    marks[gone] = True
    return marks


def _read(
    path: str, statements: MergeStatements, schema: pa.Schema, limits: EngineLimits
) -> Iterator[tuple[Any, pa.RecordBatch]]:
    """Yield the numbers of a file's rows with the rows, in the columns of ``schema``."""
    with our_errors(f"reading {path}"), open_files([path]) as files:
        if files.schema(path).equals(schema):
            first = 0
            for batch in files.batches(path, most_rows=_BATCH_ROWS, use_threads=False):
                yield np.arange(first, first + batch.num_rows), batch
                first += batch.num_rows
            return
    # Columns came since it was written, perhaps within records: DuckDB fills them in.
    for batch in read_widened(statements, path, limits):
        places = batch.column(ROW).to_numpy(zero_copy_only=False)
        yield places, batch.select(schema.names)
