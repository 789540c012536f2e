"""Where a deployment's archive lies, where its messages go, and what its callers may ask for."""

from dataclasses import dataclass
from pathlib import Path

from backfill.plan.options import UNBOUNDED, SelectionBounds
from backfill.plan.price import Billing
from model.settings import Settings
from model.table import DEFAULT_DEAD_LETTER_TABLE
from warehouse.port import Warehouse


@dataclass(frozen=True, slots=True)
class BackfillSettings:
    """What every backfill of one deployment has in common.

    Above ``approval_rows`` rows somebody else than the creator has to approve; 0 is never. ``bounds`` are
    those of every selection. Folders of backfills are in ``jobs_folder``, without one in the home.
    """

    home: Path
    project: str
    emulator_host: str | None
    replay_secret: str
    warehouse: Warehouse
    max_window_days: int
    query_memory: str
    query_tables: tuple[str, ...] = ()
    dead_letter_table: str = DEFAULT_DEAD_LETTER_TABLE
    plan_seconds: int = 900
    billing: Billing = Billing()  # noqa: RUF009 - it is frozen
    approval_rows: int = 0
    bounds: SelectionBounds = UNBOUNDED
    jobs_folder: str | None = None

    @classmethod
    def from_settings(cls, settings: Settings, warehouse: Warehouse) -> "BackfillSettings":
        """Return the backfills' part of ``settings``, over a warehouse that is open already."""
        return cls(
            home=settings.home,
            project=settings.project,
            emulator_host=settings.pubsub_address,
            replay_secret=settings.replay_secret(),
            warehouse=warehouse,
            max_window_days=settings.max_window_days,
            query_memory=settings.query_memory,
            query_tables=settings.query_tables,
            dead_letter_table=settings.dead_letter_table,
            plan_seconds=settings.plan_seconds,
            billing=Billing(
                settings.price_usd_per_tib,
                is_pubsub_billed=not settings.is_embedded,
                runs_on_dataproc=settings.launcher == "dataproc",
            ),
            approval_rows=settings.approval_rows,
            bounds=SelectionBounds(
                settings.selection_max_rows, settings.selection_max_bytes, settings.min_free_disk_bytes
            ),
            jobs_folder=settings.jobs_folder,
        )
