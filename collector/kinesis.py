"""The stream of one Kinesis stream: what it is made of, and its process from start to end."""

import re
from collections.abc import Callable
from contextlib import closing
from typing import Final

import structlog

from collector.records import ChunkPublisher, ReadTopic, RecordReader
from collector.refused import RefusedFile
from collector.relay import Relay
from connectors.kinesis.client import AwsKey, KinesisStream
from connectors.pubsub.client import PubSub
from connectors.pubsub.publish import Publisher
from model.errors import SettingsError, TopicNotFoundError
from model.settings import KinesisSettings, Settings
from model.stream import KINESIS_PREFIX
from model.stream_options import BEGIN, LATEST, KinesisStreamOptions, stream_lease
from streams.control import BatchPace, ControlFile
from streams.folder import StreamFolder
from streams.lease import hold_lease, lock_home, refuse_held
from streams.orders import Orders
from streams.positions import POSITIONS_FILE, Positions
from streams.run import RunningQuery, run_until_stopped
from streams.status import StatusFile
from warehouse.port import Warehouse

_log = structlog.get_logger(__name__)
# How long Pub/Sub may be away before the state of the stream is WAITING.
_GIVE_UP_SECONDS: Final = 20.0


def run_kinesis(
    settings: Settings,
    warehouse: Warehouse,
    *,
    open_pubsub: Callable[[], PubSub],
    name: str | None = None,
    instance_id: str | None = None,
) -> int:
    """Publish the records of the Kinesis stream that ``settings`` name until a signal or an order ends it.

    Each record is published at least once, in the order of its partition key, and once unless the stream is killed
    or Pub/Sub fails: then up to 1,000 messages of each shard that was being read come again, with the same uuids.
    While Kinesis or Pub/Sub is away, or nothing subscribes to the topic, the stream waits and goes on by itself;
    Kinesis keeps records for its retention, so that is how long it may be away. Returns the exit code.

    Raises:
        SettingsError: the stream, its region or the topic is not named, or its positions are elsewhere.
        LeaseHeldError: another process reads the stream for the same topic.
        LeaseLostError: another stream took over.
        CheckpointCorruptError: the positions can't be read.
        KinesisStreamRecreatedError: the stream was deleted and created again, and ``recreated`` is refuse.
        KinesisError, PubSubError: Kinesis or Pub/Sub refuses.
    """
    chosen = settings.kinesis
    stream_name, region, topic = _check_chosen(chosen)
    folder = StreamFolder.of(settings.home, name or usual_name(stream_name), instance_id)
    folder.run.mkdir(parents=True, exist_ok=True)
    orders = Orders(None if folder.control is None else ControlFile(folder.control))
    lease = stream_lease(KinesisStreamOptions(stream=stream_name, region=region, topic=topic), settings.project)
    with (
        lock_home(folder.state) as stream,
        closing(warehouse.open_archive()) as archive,
        closing(KinesisStream(stream_name, region=region, key=_key_of(chosen))) as kinesis,
    ):
        positions = Positions(folder.state / POSITIONS_FILE, f"{region}/{stream_name}")
        # The lease lies beside it.
        archive.create()
        holder = refuse_held(archive.leases(), lease, stream)
        positions.check_home(stream, holder, is_latest=chosen.start == LATEST)
        status = StatusFile(folder.status, instance=instance_id or stream)
        with (
            hold_lease(archive.leases(), lease, stream) as held,
            open_pubsub() as pubsub,
        ):
            publisher = Publisher(pubsub.channel, pubsub.topic_path(topic), give_up_seconds=_GIVE_UP_SECONDS)
            refused = RefusedFile(folder.state / "refused.ndjson")
            relay = Relay(
                kinesis,
                positions,
                ChunkPublisher(
                    publisher,
                    topic=topic,
                    refused=refused,
                    read=None if settings.collector_allow_unread else ReadTopic(pubsub, topic),
                ),
                RecordReader(stream_name, topic=topic, source=chosen.source),
                status=status,
                held=held,
                slots=chosen.slots,
                begins_again=chosen.recreated == BEGIN,
            )

            def start_query(pace: BatchPace) -> RunningQuery:
                # Before Pub/Sub is asked: while it is away, records come that LATEST must not pass over.
                relay.find_origin(chosen.start)
                _check_topic(pubsub, topic, is_embedded=settings.is_embedded)
                _log.info("kinesis_started", stream=stream_name, region=region, topic=topic)
                query = relay.start(
                    idle_seconds=pace.batch_seconds or chosen.batch_seconds,
                    chunk_bytes=pace.batch_bytes or chosen.batch_bytes,
                )
                return RunningQuery(query, folder.run / "stop", pace)

            end = run_until_stopped(start_query, name="kinesis", sink=relay, orders=orders)
            status.write_last(**end.status)
    if end.failure is not None:
        raise end.failure
    return 0


def usual_name(stream: str) -> str:
    """Return the name of a stream that nobody has given another one.

    Example:
        >>> usual_name("Orders.v2")
        'kinesis-orders-v2'
    """
    return f"{KINESIS_PREFIX}{re.sub(r'[^a-z0-9]', '-', stream.lower())}"[:63]


def _check_topic(pubsub: PubSub, topic: str, *, is_embedded: bool) -> None:
    if is_embedded:
        pubsub.create_topic(topic)
    elif not pubsub.topic_exists(topic):
        raise TopicNotFoundError(f"There is no topic {topic}.", topic=topic)


def _check_chosen(chosen: KinesisSettings) -> tuple[str, str, str]:
    wanted = {
        "REFEED_KINESIS_STREAM": chosen.stream,
        "REFEED_KINESIS_REGION": chosen.region,
        "REFEED_KINESIS_TOPIC": chosen.topic,
    }
    missing = [name for name, value in wanted.items() if not value]
    if missing:
        raise SettingsError(f"A stream of the kind kinesis needs {', '.join(missing)}.", faults=missing)
    if bool(chosen.access_key_id) != bool(chosen.secret_access_key):
        raise SettingsError(
            "REFEED_KINESIS_ACCESS_KEY_ID and REFEED_KINESIS_SECRET_ACCESS_KEY belong together. "
            "Set both or neither."
        )
    return chosen.stream or "", chosen.region or "", chosen.topic or ""


def _key_of(chosen: KinesisSettings) -> AwsKey | None:
    if chosen.access_key_id and chosen.secret_access_key:
        return AwsKey(chosen.access_key_id, chosen.secret_access_key)
    return None
