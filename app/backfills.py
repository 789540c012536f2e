"""Assembles the service of backfills of its parts."""

from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta

from backfill.plan.plan import IdleOf
from backfill.plan.planner import Planner
from backfill.plan.redrive import LetterCounter, SourcePlace
from backfill.plan.settings import BackfillSettings
from backfill.run.folder import BackfillFolder
from backfill.steer.kind import BACKFILL
from backfill.steer.periodic import backfill_tasks
from backfill.steer.service import BackfillService
from backfill.steer.verification import Verifier, WaitingOf
from connectors.pubsub.client import PubSub
from inventory.service import Inventory
from jobs.launcher import Launcher
from jobs.store import JobStore
from jobs.supervisor import JobSupervisor
from pipeline.staged import StagedTopics
from warehouse.queries import Queries, QuerySpace
from warehouse.staging import Staging

StagingOf = Callable[[str], Staging | None]


def open_queries(settings: BackfillSettings) -> Queries:
    """Return the warehouse's queries, in this process, for plans and for what people look at."""
    return settings.warehouse.open_queries(
        QuerySpace(
            settings.query_memory,
            settings.home / "run" / "spill",
            min_free_bytes=settings.bounds.min_free_bytes,
            keeps_spare=True,
        )
    )


def find_changes(staged: StagedTopics, inventory: Inventory, sources: Collection[str]) -> dict[str, datetime]:
    """Return when the registry or the process of each source's pipeline last changed, if both are known."""
    published = staged.changed_at()
    groups, starts = staged.source_groups(), inventory.find_starts()
    started = {source: starts[groups[source]] for source in sources if groups.get(source) in starts}
    return {} if published is None else {source: max(published, start) for source, start in started.items()}


def assemble_backfills(
    settings: BackfillSettings,
    *,
    store: JobStore,
    pubsub: PubSub,
    queries: Queries,
    launcher: Launcher,
    max_running: int,
    keep_job_days: int = 30,
    staging_of: StagingOf = lambda _topic: None,
    waiting_of: WaitingOf = lambda _topic, _until: None,
    idle_of: IdleOf = lambda _topic, _receives: (),
    places: Callable[[str], SourcePlace | None] = lambda _source: None,
    find_changes: Callable[[Collection[str]], Mapping[str, datetime]] = lambda _sources: {},
) -> BackfillService:
    """Return the service; nothing runs before its ``start``, and it closes none of its parts.

    ``staging_of`` returns the staging table that a topic's pipeline writes, where it is known: then what landed is
    counted. ``waiting_of`` returns what that pipeline has still to get, and ``idle_of`` whether it does not run.
    ``places`` returns where each of the pipeline's sources reads and writes, and ``find_changes`` when the schemas
    or the processes of sources last changed.
    """
    folders = BACKFILL.open_folders(settings.home, settings.jobs_folder)
    planner = Planner(settings, store, pubsub, queries, idle_of)
    letters = LetterCounter(settings.dead_letter_table, planner.answer, planner.find_staging, places, find_changes)
    verifier = Verifier(
        lambda job_id: BackfillFolder.of(folders.of(job_id)), staging_of, waiting_of, letters.find_reasons
    )
    return BackfillService(
        settings,
        store=store,
        pubsub=pubsub,
        supervisor=JobSupervisor(
            BACKFILL,
            store,
            launcher,
            folders,
            max_running=max_running,
            keep=timedelta(days=keep_job_days),
            tasks=backfill_tasks(store, verifier.verify),
        ),
        planner=planner,
        verifier=verifier,
        letters=letters,
    )
