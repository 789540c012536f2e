"""The merge of one source, whichever warehouse has its tables."""

from collections.abc import Callable
from datetime import UTC, datetime

from warehouse.merges import Merger, MergeReport, MergeSource


def merge_source(
    source: MergeSource,
    *,
    warehouse: Merger,
    is_dry_run: bool = False,
    since: datetime | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> MergeReport:
    """Merge what ``source`` has in staging since its last merge into its reporting table, all or nothing.

    Run it twice, late, out of order or again after a kill at any point: the reporting table comes out the same.
    Only partitions that change are read and written. ``since`` reads staging again from that moment on, which
    may take longer and changes nothing that was merged right.

    Raises:
        MergeOvertakenError: another merge of the source was first; nothing was changed.
        AuditFailedError: the counts do not add up; nothing was changed.
        RulesUnfitError: staging lacks what the source's rules name; nothing was changed.
        EvolutionRefusedError: reporting can't be widened to what staging has become; nothing was changed.
        WarehouseError: the warehouse failed; the next merge does what this one did not.
    """
    return warehouse.merge(source, now=now(), since=since, is_dry_run=is_dry_run)
