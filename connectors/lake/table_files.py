"""The files of a table partitioned by when rows came in: written, listed and read."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from connectors.lake.data_files import DataFile, files_between, files_since, list_files, touches
from connectors.lake.delta_table import DurableTable
from connectors.lake.errors import our_errors
from connectors.lake.files import PARTITION_COLUMNS, LakeArchiveWriter, WrittenFile
from model.archive import IdSpan
from model.table import Partitioning
from model.window import Window


class TableFiles(DurableTable):
    """The files of a table partitioned by when rows came in; one object per thread."""

    def __init__(self, root: str, table: str, partitioning: Partitioning) -> None:
        super().__init__(root, table, PARTITION_COLUMNS[partitioning])
        self.partitioning = partitioning

    def writer(self) -> LakeArchiveWriter:
        """Return what writes the files that :meth:`commit` takes."""
        return LakeArchiveWriter(self.writer_uri(), self.partitioning)

    def writer_uri(self) -> str:
        """Return the table's folder as tasks open it."""
        return self.uri if "://" in self.uri else Path(self.uri).absolute().as_uri()

    def parse_part(self, fields: Mapping[str, Any]) -> WrittenFile:
        """Return the file that its ``as_json`` described."""
        return WrittenFile(**fields)

    def without(self, part: WrittenFile, is_unwanted: pa.BooleanArray) -> WrittenFile | None:
        """Write a file again without some of its rows and return it instead; None when none are left."""
        writer = self.writer()
        kept = writer.write_without(part, is_unwanted)
        writer.delete(part)
        return kept

    def drop(self, part: WrittenFile) -> None:
        """Delete a file that will not be committed."""
        self.writer().delete(part)

    def version(self) -> int:
        """Return the number of the newest commit."""
        return int(self._table().version())

    def data_files(self, window: Window | None = None) -> list[DataFile]:
        """Return the files of one snapshot, the newest, that may hold rows with an ingest_time in ``window``.

        A file is listed whole when its partition touches the window: filter its rows as well.
        """
        files = self._files(self._table())
        if window is not None:
            files = [file for file in files if touches(file.partition, self.partitioning, window)]
        return sorted(files, key=lambda f: (f.partition, f.path))

    def _files(self, table: DeltaTable) -> list[DataFile]:
        with our_errors("reading the table's log"):
            return list_files(table, self.uri, self.partitioning)

    def read_since(self, columns: Sequence[str], publish_column: str, span: IdSpan) -> Iterator[pa.RecordBatch]:
        """Yield ``columns`` of the rows of the newest snapshot that are in ``span``, the oldest files first.

        ``publish_column`` has the time at which a row's message was published. A file whose statistics say that it
        has no such row is not opened.
        """
        starts = {publish_column: span.published_since, "ingest_time": span.ingested_since}

        def is_in(batch: pa.RecordBatch) -> pa.BooleanArray:
            return pc.or_kleene(*(pc.greater_equal(batch.column(name), start) for name, start in starts.items()))

        yield from self._read(self._files_since(starts), columns, starts, is_in)

    def _files_since(self, starts: Mapping[str, datetime]) -> list[str]:
        with our_errors("reading the table's log"):
            return files_since(self._table(), starts)

    def read_between(self, columns: Sequence[str], column: str, window: Window) -> Iterator[pa.RecordBatch]:
        """Yield ``columns`` of the rows of the newest snapshot whose ``column`` lies in ``window``.

        ``column`` is a time at or before a row's ingestion. A file is not opened whose statistics, or whose
        partition, say that it has no such row; the others are read in the order of their least value.
        """
        with our_errors("reading the table's log"):
            files = files_between(self._table(), column, window, self.partitioning)

        def is_in(batch: pa.RecordBatch) -> pa.BooleanArray:
            cells = batch.column(column)
            start, end = (pa.scalar(moment, cells.type) for moment in (window.start, window.end))
            return pc.and_kleene(pc.greater_equal(cells, start), pc.less(cells, end))

        yield from self._read(files, columns, [column], is_in)

    def _read(
        self,
        names: Sequence[str],
        columns: Sequence[str],
        asked: Iterable[str],
        is_in: Callable[[pa.RecordBatch], pa.BooleanArray],
    ) -> Iterator[pa.RecordBatch]:
        """Yield ``columns`` of the rows of files where ``is_in``, of batches that have ``asked`` too, holds."""
        read = list(dict.fromkeys((*columns, *asked)))
        for batch in self.writer().read_columns(names, read):
            kept = batch.filter(pc.fill_null(is_in(batch), fill_value=False))
            if kept.num_rows:
                yield kept.select(list(columns))

    def _name(self, file: DataFile) -> str:
        return file.path.removeprefix(f"{self.uri}/")
