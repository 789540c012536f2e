"""Reads files of a lake with Arrow: a disk's by their path, a bucket's through its one client by few requests."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from connectors.lake.object_reads import open_reads
from connectors.lake.objects import local_path
from model.errors import WarehouseError

if TYPE_CHECKING:
    from connectors.lake.object_files import ObjectFiles

# A message may have 10 MB: files are read few rows at a time.
_READ_ROWS: Final = 1024


class OpenFiles:
    """Some files of a lake; of those in a bucket, the ends of the next ones are read ahead, and kept.

    Each method raises FileNotFoundError for a file that is gone, OSError, ArrowException or WarehouseError.
    """

    def __init__(self, objects: "ObjectFiles | None") -> None:
        self._objects = objects

    @contextmanager
    def source(self, path: str) -> Iterator[Any]:
        """Open a file for Arrow."""
        with _missing_as_such(), closing(self._open(path)) as source:
            yield source

    def _open(self, path: str) -> Any:
        return pa.OSFile(str(local_path(path))) if self._objects is None else self._objects.open(path)

    @contextmanager
    def open(self, path: str) -> Iterator[pq.ParquetFile]:
        """Open a Parquet file by its footer; the columns of a row group that are read are one range, or a few."""
        with (
            self.source(path) as source,
            pq.ParquetFile(source, pre_buffer=self._objects is not None) as file,
        ):
            yield file

    def read(self, path: str) -> bytes:
        """Return what a file holds; a large one in a bucket comes by several requests at once."""
        with self.source(path) as source:
            content: bytes = source.read()
            return content

    def schema(self, path: str) -> pa.Schema:
        """Return the schema of a Parquet file."""
        with self.open(path) as file:
            return file.schema_arrow.remove_metadata()

    def batches(
        self,
        path: str,
        columns: Sequence[str] | None = None,
        *,
        most_rows: int = _READ_ROWS,
        use_threads: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a Parquet file with those of ``columns`` that it has, or with all.

        No more than a row group, as it is stored, is in memory beside the batch.
        """
        with self.open(path) as file:
            names = file.schema_arrow.names
            present = None if columns is None else [column for column in columns if column in names]
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(most_rows, [group], columns=present, use_threads=use_threads):
                    yield batch.replace_schema_metadata(None)


@contextmanager
def open_files(paths: Sequence[str]) -> Iterator[OpenFiles]:
    """Give what reads the files at ``paths``, which are all on a disk or all in one bucket, in this order."""
    with open_reads(paths) as reads:
        if reads is None:
            yield OpenFiles(None)
            return
        # What lies on a disk needs none of it.
        from connectors.lake.object_files import ObjectFiles

        objects = ObjectFiles(reads)
        for path in paths:
            objects.glob(path)
        yield OpenFiles(objects)


@contextmanager
def _missing_as_such() -> Iterator[None]:
    try:
        yield
    except WarehouseError as exc:
        if isinstance(exc.__cause__, FileNotFoundError):
            raise exc.__cause__ from None
        raise
