"""What the simulated stream makes of its messages: rows of one table as a backup, or of several as a pipeline."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from connectors.pubsub.pull import PulledBatch
from streams.ids import IDS_SCHEMA, ONLY_TABLE, PULLED_IDS_SCHEMA, TABLE_IDS_SCHEMA, concat_ids, constant, make_ids
from streams.targets import TableKeeper, TargetPart, TaskOutput, topic_target
from streams.topics import TOPIC_SCHEMA, TopicPart
from tests.simulation.kernel import World
from tests.simulation.tables import Part
from tests.simulation.threads import now_of


class Kind:
    """The kind of the stream: its tables, the topics that get their rows too, and its unusual messages.

    A backup has one table and settles replays without a row. A pipeline has a table for each topic, and some
    messages fit only after their table was made wide enough.
    """

    def __init__(self, dice: random.Random) -> None:
        self.topics = ("a", "b", "c")[: dice.randint(1, 3)]
        self.is_backup = dice.random() < 0.3
        self.published = frozenset(topic for topic in self.topics if not self.is_backup and dice.random() < 0.4)
        # The tables that are wide enough.
        self.wide: set[str] = set()
        self.journal_schema = IDS_SCHEMA if self.is_backup else TABLE_IDS_SCHEMA
        self.pulled_schema = IDS_SCHEMA if self.is_backup else PULLED_IDS_SCHEMA

    def table(self, topic: str) -> str:
        return ONLY_TABLE if self.is_backup else f"t.{topic}"

    def is_settled(self, message_id: str) -> bool:
        """Whether a message is acknowledged without a row."""
        return self.is_backup and _number(message_id) % 7 == 0

    def is_unfit(self, message_id: str, table: str) -> bool:
        """Whether the table has no room for a message yet."""
        return not self.is_backup and _number(message_id) % 13 == 0 and table not in self.wide


class Work:
    """The tasks of one start of the stream, and its :class:`streams.targets.Work`."""

    name = "simulated"
    counted = ("dead_letters",)

    def __init__(self, world: World, kind: Kind) -> None:
        self._world = world
        self._kind = kind
        self._outputs: dict[bytes, TaskOutput] = {}

    def read_output(self, encoded: bytes) -> TaskOutput:
        return self._outputs.pop(encoded)

    def count(self, totals: Counter[str], outputs: Any, parts: Any, is_written: Any) -> None:
        """Count nothing."""

    def status(self) -> dict[str, Any]:
        return {}

    def learn(self, keeper: TableKeeper, outputs: Sequence[TaskOutput]) -> bool:
        """Make the tables wide enough for messages that did not fit; False where there is no room."""
        tables = {table for output in outputs for table in output.found}
        if tables:
            with keeper.lock:
                self._world.step(f"widen {' '.join(sorted(tables))}")
                if self._world.happens("disk full"):
                    return False
                self._kind.wide |= tables
        return True

    def run_task(self, batches: Iterator[PulledBatch]) -> bytes:
        """Write what comes to its table's file, and have it published too where its topic is."""
        written_at, kind = now_of(self._world), self._kind
        parts: list[TargetPart] = []
        settled, unfit, narrow = [kind.pulled_schema.empty_table()], [kind.pulled_schema.empty_table()], set()
        for batch in batches:
            topic, table = batch.target.topic, kind.table(batch.target.topic)
            ids = self._make_ids(batch, table)
            names = batch.rows.column("message_id").to_pylist()
            is_settled = pa.array([kind.is_settled(name) for name in names], pa.bool_())
            is_unfit = pa.array([kind.is_unfit(name, table) for name in names], pa.bool_())
            settled.append(ids.filter(is_settled))
            unfit.append(ids.filter(is_unfit))
            if unfit[-1].num_rows:
                narrow.add(table)
            is_row = pc.invert(pc.or_(is_settled, is_unfit))
            if (own := ids.filter(is_row)).num_rows:
                parts.append(TargetPart(table, Part(own, written_at), own))
                if topic in kind.published:
                    parts.append(_to_publish(table, own, batch.rows.filter(is_row)))
        self._world.step("write files", 0.01)
        encoded = f"{len(self._outputs)}.{self._world.steps}".encode()
        done, left = concat_ids(settled), concat_ids(unfit)
        self._outputs[encoded] = TaskOutput(tuple(parts), done, left, narrow, is_lesson=bool(narrow))
        return encoded

    def _make_ids(self, batch: PulledBatch, table: str) -> pa.Table:
        names = {"topic": batch.target.topic, "subscription": batch.target.subscription, "table": table}
        replay = pa.repeat(pa.scalar(""), batch.rows.num_rows)
        return make_ids(self._kind.pulled_schema, batch.rows, **names, replay=replay)


def _to_publish(table: str, ids: pa.Table, rows: pa.RecordBatch) -> TargetPart:
    """Return the rows of a table as messages, whose data is the id of the message that each was made of."""
    target = topic_target(table)
    columns = {
        "data": rows.column("message_id").cast(pa.binary()),
        "attributes": pa.array([[]] * rows.num_rows, TOPIC_SCHEMA.field("attributes").type),
        "ordering_key": pa.repeat(pa.scalar(""), rows.num_rows),
        "message_id": rows.column("message_id"),
        "publish_time": rows.column("publish_time"),
    }
    messages = pa.table([columns[name] for name in TOPIC_SCHEMA.names], schema=TOPIC_SCHEMA)
    named = ids.set_column(ids.schema.get_field_index("table"), "table", constant(target, ids.num_rows))
    return TargetPart(target, TopicPart("out", by_key=False, messages=messages), named)


def _number(message_id: str) -> int:
    return int(message_id.removeprefix("m"))
