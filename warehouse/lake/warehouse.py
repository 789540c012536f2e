"""A lake behind the port."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from connectors.lake.archive import LakeArchive
from connectors.lake.row_tables import LakeRowTables
from model.settings import Settings
from model.table import Partitioning

NAME: Final = "lake"


@dataclass(frozen=True, slots=True)
class LakeWarehouse:
    """Delta tables under the path or URL ``lake``."""

    lake: str
    archive_table: str
    dead_letter_table: str
    partitioning: Partitioning

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the lake that ``settings`` name."""
        return cls(
            settings.lake, settings.archive_table, settings.dead_letter_table, settings.archive_partitioning
        )

    @property
    def name(self) -> str:
        """``lake``."""
        return NAME

    def to_json(self) -> dict[str, Any]:
        """Return what :meth:`from_json` takes."""
        return {"warehouse": NAME, **asdict(self)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Return the lake that :meth:`to_json` described."""
        return cls(**{name: value for name, value in fields.items() if name != "warehouse"})

    def open_archive(self) -> LakeArchive:
        """Return the archive."""
        return LakeArchive(self.lake, self.archive_table, self.partitioning)

    def open_row_tables(self, *, stream: str, lease: str) -> LakeRowTables:
        """Return the tables of rows; their leases lie beside the dead letters."""
        return LakeRowTables(self.lake, self.dead_letter_table, self.partitioning, stream=stream, lease=lease)
