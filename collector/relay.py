"""Reads the shards of a Kinesis stream side by side, and notes each position after its publish."""

import heapq
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime
from typing import Final

import structlog

from collector.records import AbandonedError, ChunkPublisher, Part, RecordReader, cut_chunks
from connectors.kinesis.client import KinesisStream, Shard, ShardReader, ShardStart
from connectors.pubsub.backlog import BacklogSample
from model.errors import (
    AwsCredentialsError,
    KinesisStreamRecreatedError,
    KinesisThrottledError,
    KinesisUnavailableError,
    LeaseLostError,
    PubSubUnavailableError,
    RefeedError,
)
from model.stream_options import BEGIN, LATEST, parse_start
from streams.lease import HeldLease
from streams.positions import Positions, ShardPosition
from streams.status import StatusFile

_log = structlog.get_logger(__name__)

# "Each shard can support up to five read transactions per second", all its readers together.
# https://docs.aws.amazon.com/streams/latest/dev/service-sizes-and-limits.html
_BETWEEN_READS_SECONDS: Final = 0.25
_LIST_EVERY_SECONDS: Final = 30.0
_FIRST_BACKOFF_SECONDS: Final = 0.5
_MAX_BACKOFF_SECONDS: Final = 15.0
# Faults of one shard in a row, after which the whole stream waits.
_MAX_FAULTS: Final = 5
_STATUS_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 2.0
# In the place of a shard: look which shards there are.
_LIST: Final = ""


def find_ready(shards: Sequence[Shard], positions: Positions) -> list[str]:
    """Return the shards that may be read now: not done, and each parent is done or no longer there.

    A parent's records come before its children's, so a key keeps its order when a stream is resharded.
    """
    open_ids = {shard.id for shard in shards if not positions.find(shard.id).is_ended}
    return [shard.id for shard in shards if shard.id in open_ids and not open_ids.intersection(shard.parents)]


class Relay:
    """Reads shards and publishes their records, over the queries that follow each other; the stream's sink.

    A position is noted after the publish of everything before it, so a kill in between repeats a chunk and loses
    nothing.
    """

    def __init__(
        self,
        kinesis: KinesisStream,
        positions: Positions,
        publisher: ChunkPublisher,
        reader: RecordReader,
        *,
        status: StatusFile,
        held: HeldLease,
        slots: int,
        begins_again: bool,
    ) -> None:
        self.kinesis = kinesis
        self.positions = positions
        self.reader = reader
        self.slots = slots
        self.begins_again = begins_again
        self.status = status
        self.failure: RefeedError | None = None
        self._publisher = publisher
        self._held = held
        self._turn = threading.Condition()
        self._under_way = 0
        self._is_paused = False
        self._is_abandoned = threading.Event()
        self._left = 0
        self._totals: Counter[str] = Counter(
            dict.fromkeys(("messages", "records", "commits", "refused", "throttled", "faults"), 0)
        )
        self._behind: dict[str, BacklogSample] = {}
        self._told_at = 0.0
        self._query: RelayQuery | None = None

    def find_origin(self, start: str) -> None:
        """Decide once where reading begins, before anything is read.

        An iterator of the kind LATEST is kept nowhere: a kill before the first record would begin at a later
        place and lose what came in between. So LATEST is the moment of the first start, by Kinesis's clock.
        """
        if self.positions.is_new:
            self.positions.begin(self.kinesis.read_clock() if start == LATEST else parse_start(start))

    def check_stream(self, shards: Sequence[Shard], *, is_first: bool) -> None:
        """Check that the positions are those of the stream with ``shards``, and note by what it is known again.

        A stream that was deleted and created again has the shard ids of the old one: a shard of it would be passed
        over where the old one's has ended. Where ``begins_again`` its positions are forgotten, and it is read from
        its oldest record on; that is before any shard is read, when the query's look at the shards ``is_first``.

        Raises:
            KinesisStreamRecreatedError: they are those of another stream.
        """
        beginnings = {shard.id: shard.starting_number for shard in shards}
        created_at = self._read_created_at() if is_first else None
        if not self.positions.is_of(created_at, beginnings):
            if not (self.begins_again and is_first):
                raise KinesisStreamRecreatedError(
                    f"The Kinesis stream {self.kinesis.name} was deleted and created again, so the saved "
                    "positions are not valid. To read the new Kinesis stream from its oldest record, "
                    f"launch the stream again with recreated={BEGIN}."
                )
            _log.warning("kinesis_stream_recreated", stream=self.kinesis.name)
            self.positions.begin(None)
        self.positions.note_stream(created_at, beginnings)

    def _read_created_at(self) -> datetime | None:
        try:
            return self.kinesis.read_created_at()
        except AwsCredentialsError as exc:
            # A key that may read need not be one that may describe: then its shards alone tell streams apart.
            _log.warning("kinesis_stream_not_described", stream=self.kinesis.name, error=exc.message)
            return None

    def start(self, *, idle_seconds: float, chunk_bytes: int) -> "RelayQuery":
        """Begin to read and to publish.

        Raises:
            PubSubUnavailableError: a chunk of the query before is still on its way.
        """
        # Two threads on one shard would publish its records twice and out of order.
        if self._query is not None and not self._query.wait(_PAUSE_SECONDS):
            raise PubSubUnavailableError("Pub/Sub has not confirmed all published messages yet.")
        self.failure = None
        self._query = RelayQuery(self, idle_seconds=idle_seconds, chunk_bytes=chunk_bytes)
        return self._query

    def publish(self, shard: str, chunk: Sequence[Part]) -> None:
        """Publish a chunk and note how far its shard is done.

        Raises:
            AbandonedError: the stream ends without it.
            LeaseLostError: another stream reads the shards.
            RefeedError: it can't be published, or noted, now.
        """
        with self._own_turn(len(chunk)):
            if self._held.is_lost:
                raise LeaseLostError
            refused = self._publisher.publish(
                [part.message for part in chunk],
                room=lambda _: None if self._is_abandoned.is_set() else len(chunk),
            )
            self.positions.advance(shard, chunk[-1].position)
        self.count(messages=len(chunk) - refused, refused=refused, commits=1)

    def count(self, **more: int) -> None:
        """Add to the totals, and write the status now and then."""
        with self._turn:
            self._totals.update(more)
            now = time.monotonic()
            is_due = now - self._told_at >= _STATUS_SECONDS
            if is_due:
                self._told_at = now
        if is_due:
            self.write_status()

    def note_behind(self, shard: str, milliseconds: int | None) -> None:
        """Keep how far behind its newest record a shard is; None for one that is not read any more."""
        with self._turn:
            if milliseconds is None:
                self._behind.pop(shard, None)
            else:
                self._behind[shard] = BacklogSample(milliseconds / 1000, None, time.time())

    def write_status(self) -> None:
        """Write the totals, and how far the shards are behind."""
        with self._turn:
            totals, behind = dict(self._totals), list(self._behind.values())
        sample = None
        if behind:
            slowest = max(each.oldest_unacked_seconds for each in behind)
            sample = BacklogSample(slowest, None, min(each.sampled_at for each in behind))
        self.status.write(
            totals=totals,
            backlog=None if sample is None else asdict(sample),
        )

    def finish(self) -> None:
        """Return: a query waits for its own threads."""

    def pause(self) -> bool:
        """Let no chunk begin; False while one is under way for too long to be waited for."""
        with self._turn:
            self._is_paused = True
            if self._turn.wait_for(lambda: not self._under_way, _PAUSE_SECONDS):
                return True
            self._is_paused = False
            self._turn.notify_all()
            return False

    def resume(self) -> None:
        """Let chunks go on."""
        with self._turn:
            self._is_paused = False
            self._turn.notify_all()

    def abandon(self) -> None:
        """Publish nothing more; what is on its way may arrive, and comes again."""
        self._is_abandoned.set()
        with self._turn:
            self._turn.notify_all()

    def wait_for_commit(self, *, seconds: float) -> bool:
        """Wait for the chunks under way; return whether none is left."""
        with self._turn:
            return self._turn.wait_for(lambda: not self._under_way, seconds)

    def count_left(self) -> int:
        """Return how many messages were in hand when the stream was abandoned."""
        with self._turn:
            return self._left

    @contextmanager
    def _own_turn(self, messages: int) -> Iterator[None]:
        with self._turn:
            self._turn.wait_for(lambda: not self._is_paused or self._is_abandoned.is_set())
            if self._is_abandoned.is_set():
                self._left += messages
                raise AbandonedError
            self._under_way += 1
        try:
            yield
        except AbandonedError:
            with self._turn:
                self._left += messages
            raise
        finally:
            with self._turn:
                self._under_way -= 1
                self._turn.notify_all()


class RelayQuery:
    """Threads that read whichever shard is due next; it is over when one of them fails, or it is stopped.

    A shard is with one thread at a time, so its order stays. The methods are named as those of Spark's queries,
    because the same loop watches both.
    """

    def __init__(self, relay: Relay, *, idle_seconds: float, chunk_bytes: int) -> None:
        self._relay = relay
        self._idle_seconds = idle_seconds
        self._chunk_bytes = chunk_bytes
        self._change = threading.Condition()
        self._due: list[tuple[float, str]] = [(0.0, _LIST)]
        self._readers: dict[str, ShardReader] = {}
        # In a row, and those of them that were not throttling.
        self._failures: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._is_stopping = False
        self._reason: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._work, name=f"shards-{number}", daemon=True)
            for number in range(relay.slots)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def isActive(self) -> bool:  # noqa: N802 - as Spark has it
        """Whether nothing has failed and nobody has stopped it."""
        return not self._is_stopping

    def exception(self) -> BaseException | None:
        """Return what ended it, where that is no error of ours."""
        return self._reason

    def processAllAvailable(self) -> None:  # noqa: N802 - as Spark has it
        """Publish and note what is in hand, and read nothing more.

        Raises:
            RefeedError: some of it can't be published.
        """
        self.stop()
        for thread in self._threads:
            thread.join()
        if self._relay.failure is not None:
            raise self._relay.failure

    def wait(self, seconds: float) -> bool:
        """Wait for its threads; return whether all have ended."""
        ends_at = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, ends_at - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """Let every thread end with the chunk that it has."""
        with self._change:
            self._is_stopping = True
            self._change.notify_all()

    def _work(self) -> None:
        try:
            while (shard := self._next()) is not None:
                after_seconds = self._look(shard)
                if after_seconds is not None:
                    self._push(shard, after_seconds)
        except AbandonedError:
            pass
        except RefeedError as exc:
            self._relay.failure = self._relay.failure or exc
        except BaseException as exc:  # noqa: BLE001 - who watches the query raises it
            self._reason = exc
            _log.exception("shards_not_read")
        self.stop()

    def _next(self) -> str | None:
        """Return the shard that is due, as soon as one is; None at the end."""
        with self._change:
            while not self._is_stopping:
                now = time.monotonic()
                if self._due and self._due[0][0] <= now:
                    return heapq.heappop(self._due)[1]
                self._change.wait(self._due[0][0] - now if self._due else None)
        return None

    def _push(self, shard: str, after_seconds: float) -> None:
        with self._change:
            if shard == _LIST:
                # One look at a time, the sooner one.
                self._due = [each for each in self._due if each[1] != _LIST]
                heapq.heapify(self._due)
            heapq.heappush(self._due, (time.monotonic() + after_seconds, shard))
            self._change.notify()

    def _look(self, shard: str) -> float | None:
        """Read the shard, or list the shards; return after how many seconds it is due again."""
        try:
            after_seconds = self._list_shards() if shard == _LIST else self._read(shard)
        except KinesisUnavailableError as exc:
            is_throttled = isinstance(exc, KinesisThrottledError)
            self._relay.count(**{"throttled" if is_throttled else "faults": 1})
            self._failures[shard] += 1
            self._faults[shard] += not is_throttled
            if self._faults[shard] >= _MAX_FAULTS:
                raise
            # Bounded before it is a float: throttling has no end, and 2**1024 is none.
            doublings = min(self._failures[shard] - 1, 10)
            most = min(_MAX_BACKOFF_SECONDS, _FIRST_BACKOFF_SECONDS * 2**doublings)
            # Many shards are throttled together and must not come back together.
            return random.uniform(most / 4, most)  # noqa: S311 - no secret
        self._failures.pop(shard, None)
        self._faults.pop(shard, None)
        return after_seconds

    def _list_shards(self) -> float:
        """Begin to read the shards that may be read and are not read yet."""
        shards = self._relay.kinesis.list_shards()
        positions = self._relay.positions
        self._relay.check_stream(shards, is_first=not self._readers)
        with self._change:
            for shard in find_ready(shards, positions):
                if shard not in self._readers:
                    start = _start_of(positions.find(shard), positions)
                    self._readers[shard] = ShardReader(self._relay.kinesis, shard, start)
                    self._push(shard, 0.0)
        positions.forget_ended(shard.id for shard in shards)
        return _LIST_EVERY_SECONDS

    def _read(self, shard: str) -> float | None:
        relay = self._relay
        batch = self._readers[shard].read()
        relay.note_behind(shard, batch.behind_milliseconds)
        relay.count(records=len(batch.records))
        done = relay.positions.find(shard)
        parts = (part for record in batch.records for part in relay.reader.split(shard, record, done))
        for chunk in cut_chunks(parts, max_bytes=self._chunk_bytes):
            if self._is_stopping:
                return None
            relay.publish(shard, chunk)
        if self._is_stopping:
            return None
        if batch.is_end:
            relay.positions.advance(shard, replace(relay.positions.find(shard), is_ended=True))
            relay.note_behind(shard, None)
            _log.info("shard_ended", shard=shard)
            # Its children may be read now.
            self._push(_LIST, 0.0)
            return None
        return self._idle_seconds if not batch.behind_milliseconds else _BETWEEN_READS_SECONDS


def _start_of(done: ShardPosition, positions: Positions) -> ShardStart:
    if done.sequence_number is None:
        return ShardStart(at=positions.origin)
    return ShardStart(done.sequence_number, is_after=done.subsequence is None)
