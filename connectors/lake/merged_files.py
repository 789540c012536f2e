"""The list of staging files that are in a reporting table; each merge's commit names a new list."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from connectors.lake.errors import our_errors
from connectors.lake.objects import open_objects

FOLDER: Final = "_refeed_taken"
_SCHEMA: Final = pa.schema([("name", pa.string()), ("partition", pa.timestamp("us", "UTC"))])
# Readers may still have the list of the merge before; it and those of dead merges are deleted after this time.
_KEEP_SECONDS: Final = 86_400.0

# Paths of files within the lake, each with the start of its partition. A file's name has a UUID: it is never that
# of another one, whatever becomes of the table.
MergedFiles = Mapping[str, datetime]


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows of staging: those of the files ``new``, and those of ``again`` that came in after ``since``.

    ``later`` are the files that may have rows written after one of these, they themselves among them; ``every``
    are all of staging, and ``replays`` those of them whose replays a view has to heed.
    """

    new: tuple[str, ...]
    again: tuple[str, ...] = ()
    since: datetime | None = None
    later: tuple[str, ...] = ()
    every: tuple[str, ...] = ()
    replays: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """Every file that has to be read."""
        return (*self.new, *self.again)


class MergedFileLists:
    """The lists beside the reporting table at ``table_uri``; the number of the one that counts is in its log.

    A list is never changed. A merge writes its own and names it in its commit, so that one that is overtaken or
    dies leaves nothing behind that counts.
    """

    def __init__(self, table_uri: str) -> None:
        self._objects = open_objects(table_uri)
        self._lists = open_objects(f"{table_uri}/{FOLDER}")

    def read(self, number: int) -> MergedFiles | None:
        """Return a list, None when it is lost; then it is not known which files were taken."""
        with our_errors("reading which files of staging are merged"):
            stored = self._lists.read(f"{number}.parquet")
            if stored is None:
                return None
            found = pq.read_table(pa.BufferReader(stored.content), schema=_SCHEMA)
        starts = (moment.astimezone(UTC) for moment in found.column("partition").to_pylist())
        return dict(zip(found.column("name").to_pylist(), starts, strict=True))

    def write(self, files: MergedFiles) -> int:
        """Write a list, durably, and return the number that no other list has."""
        number = uuid.uuid4().int >> 66
        columns = [pa.array(files.keys(), _SCHEMA.types[0]), pa.array(files.values(), _SCHEMA.types[1])]
        with (
            our_errors("writing which files of staging are merged"),
            self._objects.writing(f"{FOLDER}/{number}.parquet") as written,
        ):
            pq.write_table(pa.Table.from_arrays(columns, schema=_SCHEMA), written.stream)
        return number

    def forget(self, number: int) -> None:
        """Delete the lists of a day before that of ``number``, whose commit is in."""
        with our_errors("cleaning the lists of merged files"):
            # By the clock of the storage alone.
            moments = self._lists.times()
            newest = moments.get(f"{number}.parquet", 0.0)
            for name, moment in moments.items():
                if newest - moment > _KEEP_SECONDS:
                    self._lists.delete(name)
