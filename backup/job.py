"""The backup stream: pull in the tasks, commit in the driver, acknowledge what is durable."""

import json
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
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
from streams.ack_leases import AckLeases
from streams.committer import StreamCommitter
from streams.folder import StreamFolder
from streams.journal import ONLY_TABLE, Journal
from streams.learning import Learner
from streams.lease import hold_lease, lock_home, refuse_held
from streams.oldest import find_oldest
from streams.place import place_of
from streams.report import StreamReporter
from streams.status import StatusFile
from streams.stream import StreamQuery, run_stream, start_spark
from warehouse.archive import Archive
from warehouse.port import Warehouse

# While nothing comes, a batch is begun every few seconds only.
_IDLE_SECONDS: Final = 5.0


def run_backup(
    settings: Settings,
    warehouse: Warehouse,
    *,
    open_pubsub: Callable[[], PubSub],
    reporter: StreamReporter | None = None,
    name: str = BACKUP_STREAM,
    instance_id: str | None = None,
) -> int:
    """Run the backup stream of ``settings`` until a signal or an order ends it; return the exit code.

    ``name`` is the stream's, and of its folder. ``instance_id`` names this start where an agent made it and gives
    its orders. ``reporter`` keeps its reports where an API without this home finds them. ``open_pubsub`` is called
    after Spark has started, and only where the stream has to learn what may come again.

    Every message of every attached topic is in the archive once, bit for bit, and acknowledged only then. A
    full disk, a Pub/Sub or a warehouse that is away stops it with nothing acknowledged, and it goes on by itself.

    Raises:
        LeaseHeldError: another stream runs on this home, or on this project's subscriptions.
        LeaseLostError: another stream took over; nothing this one had in hand was committed.
        CheckpointCorruptError: a file of the journal can't be read; the message says what to do.
    """
    folder = StreamFolder.of(settings.home, name, instance_id)
    lease = stream_lease(BackupStreamOptions(), settings.project)
    with lock_home(folder.state) as stream, closing(warehouse.open_archive()) as archive:
        archive.check()
        journal = Journal(folder.state / "journal", keep_seconds=settings.known_ids_seconds)
        leases = archive.leases()
        refuse_held(leases, lease, stream)
        spark = start_spark(settings, folder)
        with (
            hold_lease(leases, lease, stream, journal) as held,
            closing(open_channel(settings.pubsub_address)) as channel,
        ):
            status = StatusFile(folder.status, instance=instance_id or stream)
            status.note(place=place_of(settings.project, warehouse))
            committer = StreamCommitter(
                work=Archiving(archive.parse_part),
                targets=ArchiveTarget(archive, stream=stream, lease=lease, epoch=held.epoch),
                names=[ONLY_TABLE],
                journal=journal,
                ack_leases=AckLeases(channel, settings.project),
                status=status,
                learner=Learner(
                    journal,
                    held,
                    read_ids=lambda _, span: archive.read_ids(span),
                    find_oldest=lambda: _find_oldest(settings, open_pubsub()),
                    min_free_bytes=settings.min_free_disk_bytes,
                    status=status,
                ),
            )
            committer.recover()
            with LabelledTopics(settings):
                run_stream(
                    spark,
                    committer,
                    _query_of(settings, warehouse, archive),
                    settings,
                    folder=folder,
                    instance=instance_id or stream,
                    reporter=reporter,
                    read_backlog=_read_backlog,
                )
    return 0


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
    """Return a time before which no message of the backup was published that has still to be delivered."""
    found = [one for one in pubsub.list_subscriptions() if one.id.startswith(BACKUP_SUBSCRIPTION_PREFIX)]
    return find_oldest(pubsub, found, settings.pubsub_address)


def _read_backlog(backlogs: MonitoredBacklogs) -> BacklogSample | None:
    return backlogs.read_prefixed(BACKUP_SUBSCRIPTION_PREFIX)
