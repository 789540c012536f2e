"""The backup stream: tasks pull messages, and the driver commits and then acknowledges them."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from functools import partial
from typing import Final

from backup.archiving import ArchiveTarget, Archiving
from backup.labelled import LabelledTopics
from backup.source import BackupSource
from connectors.pubsub.backlog import BacklogSample, MonitoredBacklogs
from connectors.pubsub.channel import open_channel
from connectors.pubsub.client import PubSub
from model.message import BACKUP_SUBSCRIPTION_PREFIX
from model.settings import Settings
from model.stream import BACKUP_STREAM
from model.stream_options import BackupStreamOptions, stream_lease
from streams.backlog import find_oldest
from streams.folder import StreamFolder
from streams.ids import ONLY_TABLE
from streams.journal import Journal
from streams.lease import hold_lease, refuse_held
from streams.queries import StreamQuery
from streams.status import place_of
from streams.stream import OwnedHome, StreamWork, open_committer, run_stream
from warehouse.archive import Archive
from warehouse.port import Warehouse

# Length of a batch while no messages come.
_IDLE_SECONDS: Final = 5.0


def run_backup(
    settings: Settings,
    warehouse: Warehouse,
    *,
    open_pubsub: Callable[[], PubSub],
    name: str = BACKUP_STREAM,
    instance_id: str | None = None,
) -> int:
    """Run the backup stream of ``settings`` until a signal or an order ends it; return the exit code.

    Every message of every attached topic is in the archive once, bit for bit, and is acknowledged only after that.
    While the disk is full, or Pub/Sub or the warehouse is unavailable, the stream acknowledges nothing; then it
    continues by itself.

    ``name`` is the name of the stream and of its folder. ``instance_id`` is the id that an agent gave to this
    instance, which may begin as a standby. ``open_pubsub`` is called after the start of Spark, and only if the
    stream has to learn ids.

    Raises:
        LeaseHeldError: another stream runs on this home, or on this project's subscriptions.
        LeaseLostError: another stream took over; nothing of the present batch was committed.
        CheckpointCorruptError: a file of the journal can't be read; the message has the remedy.
    """
    folder = StreamFolder.of(settings.home, name, instance_id)
    # Created before the archive is opened, so that an unwritable home is reported instead of the lake in it.
    folder.run.mkdir(parents=True, exist_ok=True)
    with closing(warehouse.open_archive()) as archive:
        archive.check()
        run_stream(
            settings,
            folder,
            _query_of(settings, warehouse, archive),
            open_work=partial(_open_work, settings, archive, open_pubsub),
            check_free=partial(refuse_held, archive.leases(), _lease_of(settings)),
            place=place_of(settings.project, warehouse),
        )
    return 0


@contextmanager
def _open_work(
    settings: Settings, archive: Archive, open_pubsub: Callable[[], PubSub], home: OwnedHome
) -> Iterator[StreamWork]:
    """Yield the work of a stream that owns its home: open its journal, take its lease, recover its committer."""
    lease = _lease_of(settings)
    journal = Journal(home.journal, keep_seconds=settings.known_ids_seconds)
    with (
        hold_lease(archive.leases(), lease, home.stream, journal) as held,
        closing(open_channel(settings.pubsub_address)) as channel,
    ):
        committer = open_committer(
            settings,
            home,
            held,
            journal,
            work=Archiving(archive.parse_part),
            targets=ArchiveTarget(archive, stream=home.stream, lease=lease, epoch=held.epoch),
            names=[ONLY_TABLE],
            channel=channel,
            read_ids=lambda _, span: archive.read_ids(span),
            find_oldest=lambda: _find_oldest(settings, open_pubsub()),
        )
        with LabelledTopics(settings, home.status):
            yield StreamWork(committer, _read_backlog)


def _lease_of(settings: Settings) -> str:
    return stream_lease(BackupStreamOptions(), settings.project)


def _query_of(settings: Settings, warehouse: Warehouse, archive: Archive) -> StreamQuery:
    task = {"warehouse": warehouse.to_json(), "writer": archive.writer().as_json()}
    return StreamQuery(
        BackupSource,
        slots=settings.backup_slots,
        idle_seconds=_IDLE_SECONDS,
        batch_seconds=settings.backup_batch_seconds,
        batch_bytes=settings.backup_batch_bytes,
        options={"task": json.dumps(task), "secret": settings.replay_secret()},
        prefix=BACKUP_SUBSCRIPTION_PREFIX,
        bound_seconds=lambda wanted: archive.batch_seconds(wanted, settings.backup_slots),
    )


def _find_oldest(settings: Settings, pubsub: PubSub) -> datetime:
    """Return a lower bound of the publish times of messages that the backup's subscriptions must still deliver."""
    found = [one for one in pubsub.list_subscriptions() if one.id.startswith(BACKUP_SUBSCRIPTION_PREFIX)]
    return find_oldest(pubsub, found, settings.pubsub_address)


def _read_backlog(backlogs: MonitoredBacklogs) -> BacklogSample | None:
    return backlogs.read_prefixed(BACKUP_SUBSCRIPTION_PREFIX)
