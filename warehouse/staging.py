"""The rows that one backfill brought into the staging tables of a source: counted, and taken out again."""

from collections.abc import Iterable
from typing import Any, Protocol


class Staging(Protocol):
    """The staging tables of one source, and its reporting table, asked about the rows of one backfill.

    Raises:
        WarehouseError: any call, when the warehouse does not answer.
    """

    def landed_rows(self, backfill_id: str) -> Iterable[Any]:
        """Yield arrays of the ``refeed_row`` of every row that landed, in any order, repeats included.

        Rows that a merge has taken landed too.
        """

    def merged_rows(self, backfill_id: str) -> int:
        """Return how many of the backfill's rows a merge has taken; rather too few than too many."""

    def delete_rows(self, backfill_id: str) -> int:
        """Delete the backfill's rows from staging, and return how many there were.

        Raises:
            AlreadyMergedError: rows are, or may be, in the reporting table.
            RevertIncompleteError: some are deleted, and a table failed; called again it goes on with that.
            WarehouseError: the warehouse failed, and nothing was deleted.
        """
