"""The pipeline's stream: pull and decode in the tasks, commit table by table in the driver, then acknowledge."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Final

from connectors.pubsub.backlog import BacklogSample, MonitoredBacklogs
from connectors.pubsub.client import PubSub
from model.settings import Settings
from model.stream import PIPELINE_PREFIX
from model.stream_options import PipelineStreamOptions, stream_lease
from pipeline.group import Group
from pipeline.plan import PlanFile
from pipeline.registry import Registry
from pipeline.source import StagingSource
from pipeline.staged_ids import StagedIds, open_journal
from pipeline.staging import StagingWork
from streams.backlog import find_oldest
from streams.folder import StreamFolder
from streams.lease import hold_lease
from streams.queries import StreamQuery
from streams.status import StatusFile, place_of
from streams.stream import OwnedHome, StreamWork, open_committer, run_stream
from streams.topics import TopicTargets
from warehouse.port import Warehouse

# While nothing comes, a batch is begun every few seconds only: so long may a plan be out of date.
_IDLE_SECONDS: Final = 2.0
_PLAN: Final = "plan.json"


def run_pipeline(
    settings: Settings,
    group: str,
    *,
    warehouse: Warehouse,
    open_pubsub: Callable[[], PubSub],
    mapping: Mapping[str, str],
    name: str | None = None,
    instance_id: str | None = None,
) -> int:
    """Run the stream of one group of sources until a signal or an order ends it; return the exit code.

    ``mapping`` leads from the old names of sources to those that the registry has now: what the plan, the schema
    repository and the dead letters have of the old ones goes on under the new ones before anything is pulled.

    ``name`` is the stream's, and of its folder, ``pipeline-GROUP`` without. ``instance_id`` names this start where
    an agent made it and gives its orders, by which it may begin as a standby. ``open_pubsub`` is called after
    Spark has started, and what it returns is closed with the stream: PySpark forks, and a fork beside the threads
    of an open channel may end in SIGABRT.

    Every message of its sources is a row of its staging table once, or a dead letter once, and is acknowledged
    only then. The registry is followed while it runs: a new source, or a new schema, needs no restart.

    Raises:
        LeaseHeldError: another stream runs this group on this home, or on this warehouse.
        LeaseLostError: another stream took over; nothing this one had in hand was committed.
        CheckpointCorruptError: a file of the journal, or the plan, can't be read; the message says what to do.
    """
    folder = StreamFolder.of(settings.home, name or group_home(settings, group).name, instance_id)
    with ExitStack() as opened:

        @cache
        def open_once() -> PubSub:
            return opened.enter_context(open_pubsub())

        def reach() -> None:
            """Open Pub/Sub and the warehouse before they are needed."""
            open_once()
            lease = _lease_of(settings, group)
            with closing(warehouse.open_row_tables(stream="", lease=lease)) as tables:
                tables.leases().read_lease(lease)

        run_stream(
            settings,
            folder,
            _query_of(settings, folder.state),
            open_work=partial(_open_work, settings, group, warehouse, open_once, mapping=mapping),
            reach=reach,
            place=place_of(settings.project, warehouse),
        )
    return 0


@contextmanager
def _open_work(
    settings: Settings,
    group: str,
    warehouse: Warehouse,
    open_pubsub: Callable[[], PubSub],
    home: OwnedHome,
    *,
    mapping: Mapping[str, str],
) -> Iterator[StreamWork]:
    """Yield the work of a stream that owns its home: journal, plan, lease and committer, recovered."""
    lease = _lease_of(settings, group)
    letters = settings.dead_letter_table
    journal = open_journal(home.journal, keep_seconds=settings.known_ids_seconds, dead_letter_table=letters)
    tables = warehouse.open_row_tables(stream=home.stream, lease=lease)
    with closing(tables):
        pubsub = open_pubsub()
        sources = Group(
            group,
            registry=Registry(settings.registry),
            plan_file=PlanFile(home.folder / _PLAN, warehouse),
            tables=tables,
            pubsub=pubsub,
            is_embedded=settings.is_embedded,
            ack_deadline_seconds=settings.ack_deadline_seconds,
            dead_letter_table=letters,
            max_bytes=settings.pipeline_message_bytes,
            status=home.status,
            secret=settings.replay_secret(),
            mapping=mapping,
        )
        names = sources.start()
        ids = StagedIds(tables, letters, sources.known_sources, settings.replay_secret(), mapping)
        with hold_lease(tables.leases(), lease, home.stream, journal) as held:
            committer = open_committer(
                settings,
                home,
                held,
                journal,
                work=StagingWork(tables.parse_part, sources.learn),
                targets=TopicTargets(tables, pubsub.channel, pubsub.topic_path, sources.refuse),
                names=names,
                channel=pubsub.channel,
                read_ids=ids.read,
                find_oldest=partial(_find_oldest, settings, pubsub, sources),
            )
            sources.follow(committer)
            watch = _every(settings.registry_poll_seconds, partial(sources.follow, committer))
            yield StreamWork(committer, partial(_read_backlog, home.status), watch)


def _lease_of(settings: Settings, group: str) -> str:
    return stream_lease(PipelineStreamOptions(group=group), settings.project)


def group_home(settings: Settings, group: str) -> Path:
    """Return the folder of a group's state."""
    return StreamFolder.of(settings.home, f"{PIPELINE_PREFIX}{group}").state


def _find_oldest(settings: Settings, pubsub: PubSub, group: Group) -> datetime:
    """Return a time before which no message of the group was published that has still to be delivered."""
    names = {source.subscription for source in group.known_sources()}
    subscriptions = [found for found in pubsub.list_subscriptions() if found.id in names]
    return find_oldest(pubsub, subscriptions, settings.pubsub_address)


def _read_backlog(status: StatusFile, backlogs: MonitoredBacklogs) -> BacklogSample | None:
    """Return the backlog of the sources that the group has now."""
    return backlogs.read_named(status.fields().get("subscriptions") or ())


def _query_of(settings: Settings, home: Path) -> StreamQuery:
    return StreamQuery(
        StagingSource,
        slots=settings.pipeline_slots,
        idle_seconds=_IDLE_SECONDS,
        batch_seconds=settings.pipeline_batch_seconds,
        batch_bytes=settings.pipeline_batch_bytes,
        options={"secret": settings.replay_secret()},
        plan_file=home / _PLAN,
    )


def _every(seconds: float, act: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls ``act`` when ``seconds`` have gone by since the last call."""
    last = time.monotonic()

    def watch() -> None:
        nonlocal last
        if time.monotonic() - last >= seconds:
            act()
            last = time.monotonic()

    return watch
