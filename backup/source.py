"""The task of a backup: writes pulled messages to a part for the archive, and returns a small result."""

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from connectors.pubsub.pull import PulledBatch
from connectors.pubsub.replays import find_replays
from connectors.pubsub.source import PullSource
from model import failpoint
from model.message import replay_token
from streams.ids import IDS_SCHEMA, concat_ids, make_ids, pack_tables, unpack_tables
from warehouse.archive import ArchiveWriter
from warehouse.open import warehouse_from_json


@dataclass(frozen=True, slots=True)
class PulledPart:
    """An uncommitted part, the ids of its rows in their order, and the replays that were not written.

    ``part`` is the archive's JSON-ready description of the part. ``replays`` are the ids of messages with this
    deployment's replay token. Their originals are in the archive already, and the subscription's filter normally
    drops them; they are only acknowledged.
    """

    part: Mapping[str, Any] | None
    ids: pa.Table
    replays: pa.Table

    def encode(self) -> bytes:
        """Return the bytes for a Spark row to the driver."""
        return pack_tables(self.part, (self.ids, "lz4"), (self.replays, "lz4"))

    @classmethod
    def decode(cls, encoded: bytes) -> Self:
        """Decode the bytes of :meth:`encode`."""
        part, (ids, replays) = unpack_tables(encoded, 2)
        return cls(part, ids, replays)


@dataclass(frozen=True, slots=True)
class ArchiveTask:
    """Writes pulled messages, without replays, to one part of the archive."""

    writer: ArchiveWriter
    secret: str

    def __call__(self, batches: Iterator[PulledBatch]) -> bytes | None:
        """Write one part from the arriving batches, and return an encoded :class:`PulledPart`."""
        ids: list[tuple[tuple[str, str], pa.Table]] = []
        replays: list[pa.Table] = []
        rows = self._without_replays(batches, ids, replays)
        first = next(rows, None)
        written = None
        if first is not None:
            failpoint.hit("file.before_write")
            written = self.writer.write(itertools.chain([first], rows)).as_json()
            failpoint.hit("file.written")
        elif not replays:
            return None
        if self.writer.is_by_topic:
            ids.sort(key=lambda pair: pair[0])
        return PulledPart(written, concat_ids([table for _, table in ids]), concat_ids(replays)).encode()

    def _without_replays(
        self, batches: Iterator[PulledBatch], ids: list[tuple[tuple[str, str], pa.Table]], replays: list[pa.Table]
    ) -> Iterator[tuple[str, str, pa.RecordBatch]]:
        """Yield topic, subscription and rows to write; append their ids, and the ids of replays, to the lists."""
        for batch in batches:
            topic, subscription, rows = batch.target.topic, batch.target.subscription, batch.rows
            make = partial(make_ids, IDS_SCHEMA, topic=topic, subscription=subscription)
            is_replay = find_replays(rows, replay_token(self.secret, topic))
            if is_replay is not None:
                replays.append(make(rows.filter(is_replay)))
                rows = rows.filter(pc.invert(is_replay))
            if rows.num_rows:
                ids.append(((topic, subscription), make(rows)))
                yield topic, subscription, rows


class BackupSource(PullSource):
    """A stream of uncommitted parts, one in each row; the option ``task`` describes how to write them.

    The option ``secret`` is the deployment's secret; Spark redacts options of this name in logs and plans.
    """

    @classmethod
    def name(cls) -> str:
        """Return the format's name in ``readStream.format``."""
        return "refeed_backup"

    def open_task(self) -> ArchiveTask:
        """Return the task."""
        task = json.loads(self.options["task"])
        writer = warehouse_from_json(task["warehouse"]).archive_writer(task["writer"])
        return ArchiveTask(writer, self.options["secret"])
