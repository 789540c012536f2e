"""The results of one batch's tasks, as the driver takes them over."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import structlog

from connectors.pubsub.source import TaskResult
from model.errors import RefeedError
from streams.journal import IDS_SCHEMA, concat_ids, without_topics
from streams.run import PASSING
from streams.targets import TargetPart, Targets, TaskOutput, Work

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Batch:
    """The outputs of one batch's tasks; ``faults`` is how many of their subscriptions could not be pulled.

    With an ``error``, which a task reported, nothing of the batch is committed. Before ``next_at``, a time of the
    monotonic clock, no other batch may begin: the warehouse's quotas want it.
    """

    outputs: tuple[TaskOutput, ...] = ()
    faults: int = 0
    error: RefeedError | None = None
    next_at: float = 0.0

    @property
    def keeps_the_next(self) -> bool:
        """Whether the next batch may be planned only after this one is settled."""
        is_lesson = any(output.is_lesson for output in self.outputs)
        return self.error is not None or is_lesson or self.next_at > time.monotonic()

    @property
    def parts(self) -> list[TargetPart]:
        """Every part, task by task."""
        return [part for output in self.outputs for part in output.parts]

    def ids(self) -> pa.Table:
        """Return the ids of every message that the batch holds, once where its row is published too."""
        return without_topics(_concat([self.done_ids(), self.unfit()]))

    def done_ids(self) -> pa.Table:
        """Return the ids of the messages that the batch finishes: the rows of its parts, and ``settled`` ones."""
        return _concat([part.ids for part in self.parts] + [output.settled for output in self.outputs])

    def unfit(self) -> pa.Table:
        """Return the ids of the messages that no table has room for yet."""
        return _concat([output.unfit for output in self.outputs])


def read_batch(rows: Sequence[TaskResult], work: Work, targets: Targets) -> Batch:
    """Return the batch whose tasks returned ``rows``; subscriptions that could not be pulled are logged."""
    faults = [fault for row in rows for fault in json.loads(row.faults).items()]
    for subscription, fault in faults:
        _log.warning("pull_failed", subscription=subscription, error=fault)
    outputs = tuple(work.read_output(row.result) for row in rows if row.result is not None)
    error = next((_error_of(row.error) for row in rows if row.error is not None), None)
    parts = [part.part for output in outputs for part in output.parts]
    return Batch(outputs, len(dict(faults)), error, time.monotonic() + targets.quota_seconds(parts))


def _error_of(reported: str) -> RefeedError:
    """Return the error that a task reported; one that the stream waits out keeps its class."""
    fields: dict[str, Any] = json.loads(reported)
    known = {cls.code: cls for cls in PASSING}
    return known.get(fields["code"], RefeedError)(fields["message"])


def _concat(tables: Sequence[pa.Table]) -> pa.Table:
    return concat_ids(tables) if tables else IDS_SCHEMA.empty_table()
