"""The rows that one backfill brought into the staging tables of a source: counted, and taken out again."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from model.errors import AlreadyMergedError, RevertIncompleteError, WarehouseError


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


def delete_in_turn(
    backfill_id: str, deletes: Mapping[str, Callable[[], int]], *, overtake: Callable[[], bool], place: str
) -> int:
    """Delete a backfill's rows from one table after the other, and return how many there were.

    ``deletes`` has, by the table's name, the call that deletes its rows and returns their number. ``overtake``
    keeps every merge that has read the rows from committing, and returns whether one had committed before.

    Raises:
        AlreadyMergedError: one had; rows that it took may be in reporting.
        RevertIncompleteError: some tables are done, and one failed; called again it goes on with that.
        WarehouseError: the warehouse, which is called ``place``, failed, and nothing was deleted.
    """
    deleted, failure = 0, None
    left = list(deletes)
    try:
        while left:
            deleted += deletes[left[0]]()
            left.pop(0)
    except WarehouseError as exc:
        if not deleted:
            raise
        failure = exc
    # After the rows are gone: a merge that read them before can't commit them any more.
    if deleted and overtake():
        raise AlreadyMergedError(
            f"A merge ran while {deleted} rows of {backfill_id} were deleted from staging, so the reporting "
            f"table may contain these rows. To correct the reporting table, run another backfill.",
            id=backfill_id,
            deleted=deleted,
        )
    if failure is not None:
        raise RevertIncompleteError(
            f"{deleted} rows of {backfill_id} were deleted from staging. {', '.join(left)} may still have some "
            f"of its rows, because {place} failed: {failure.message} Revert the "
            "backfill again.",
            id=backfill_id,
            deleted=deleted,
            left=left,
        ) from failure
    return deleted
