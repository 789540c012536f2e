"""One batch: the results of its tasks, and the selection of its new rows."""

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from connectors.pubsub.ack_deadline import AckDeadline
from connectors.pubsub.source import TaskResult
from model.errors import RefeedError
from streams.ids import concat_ids, ids_of_tables, without_topics
from streams.journal import Journal
from streams.run import PASSING
from streams.targets import TargetPart, Targets, TaskOutput, Work, is_topic, table_of

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Batch:
    """The outputs of one batch's tasks; ``faults`` is the number of subscriptions that could not be pulled.

    With an ``error``, which a task reported, nothing of the batch is committed. Because of the warehouse's quotas
    no other batch may begin before ``next_at``, a time of the monotonic clock. The leases of the messages last at
    least until ``deadline``.
    """

    outputs: tuple[TaskOutput, ...] = ()
    faults: int = 0
    error: RefeedError | None = None
    next_at: float = 0.0
    deadline: AckDeadline = field(default_factory=AckDeadline)

    @property
    def keeps_the_next(self) -> bool:
        """Whether the next batch may be planned only after this one is settled."""
        is_lesson = any(output.is_lesson for output in self.outputs)
        return self.error is not None or is_lesson or self.next_at > time.monotonic()

    @property
    def parts(self) -> list[TargetPart]:
        """All parts, in the order of the tasks."""
        return [part for output in self.outputs for part in output.parts]

    def ids(self) -> pa.Table:
        """Return the ids of all messages in the batch, each once, also if its row is published too."""
        return without_topics(concat_ids([self.done_ids(), self.unfit()]))

    def done_ids(self) -> pa.Table:
        """Return the ids of the messages that the batch finishes: the rows of its parts, and ``settled`` ones."""
        return concat_ids([part.ids for part in self.parts] + [output.settled for output in self.outputs])

    def unfit(self) -> pa.Table:
        """Return the ids of the messages that do not fit the schema of their table yet."""
        return concat_ids([output.unfit for output in self.outputs])


def read_batch(rows: Sequence[TaskResult], work: Work, targets: Targets) -> Batch:
    """Return the batch whose tasks returned ``rows``; subscriptions that could not be pulled are logged."""
    faults = [fault for row in rows for fault in json.loads(row.faults).items()]
    for subscription, fault in faults:
        _log.warning("pull_failed", subscription=subscription, error=fault)
    outputs = tuple(work.read_output(row.result) for row in rows if row.result is not None)
    error = next((_error_of(row.error) for row in rows if row.error is not None), None)
    parts = [part.part for output in outputs for part in output.parts]
    next_at = time.monotonic() + targets.quota_seconds(parts)
    deadline = AckDeadline.at(min((row.held_until for row in rows), default=math.inf))
    return Batch(outputs, len(dict(faults)), error, next_at, deadline)


def _error_of(reported: str) -> RefeedError:
    """Return the error that a task reported; an error that the stream waits out keeps its class."""
    fields: dict[str, Any] = json.loads(reported)
    known = {cls.code: cls for cls in PASSING}
    return known.get(fields["code"], RefeedError)(fields["message"])


@dataclass(frozen=True, slots=True)
class NewRows:
    """The parts of a batch without known rows.

    ``parts`` are to be committed, by table, and ``dropped`` are to be dropped. ``done`` are the ids that the batch
    finishes with the commit, ``again`` the ids of messages that must be redelivered. ``redelivered`` counts known
    rows. ``is_written`` has a mask for each part of the batch: the rows that are to be committed.
    """

    parts: dict[str, list[Any]]
    dropped: list[TargetPart]
    done: pa.Table
    again: pa.Table
    redelivered: int
    is_written: Sequence[pa.BooleanArray] = ()


def find_new(batch: Batch, journal: Journal, targets: Targets) -> NewRows:
    """Return the parts of ``batch`` without the rows that ``journal`` knows, which are redeliveries.

    A warehouse that can't take a part without these rows gives up the whole part: its new rows are redelivered.
    The same happens to a part that depends on a part that was given up. Rows that are given up are not published.
    """
    written = batch.parts
    settled = [output.settled for output in batch.outputs]
    if not written:
        return NewRows({}, [], concat_ids(settled), settled[0].slice(0, 0), 0)
    none = written[0].ids.slice(0, 0)
    is_known = journal.find_known(concat_ids([one.ids for one in written]))
    flags: list[pa.BooleanArray] = []
    kept: list[Any] = []
    redelivered = 0
    at = 0
    for one in written:
        flags.append(is_known.slice(at, one.ids.num_rows))
        at += one.ids.num_rows
        repeated = pc.sum(flags[-1]).as_py()
        redelivered += 0 if is_topic(one.table) else repeated
        kept.append(targets.without(one.table, one.part, flags[-1]) if repeated else one.part)
    dropped = _take_dependent(written, kept, targets)
    parts: dict[str, list[Any]] = {}
    held, returned = [none], [none]
    for one, known, part in zip(written, flags, kept, strict=True):
        if is_topic(one.table):
            continue
        if part is not None:
            held.append(one.ids)
            parts.setdefault(one.table, []).append(part)
        else:
            returned.append(one.ids.filter(pc.invert(known)))
            held.append(one.ids.filter(known))
    given_up = concat_ids(returned)
    is_written = [
        pc.invert(known) if part is not None else pa.repeat(pa.scalar(value=False), len(known))
        for known, part in zip(flags, kept, strict=True)
    ]
    for one, known in ((one, known) for one, known in zip(written, flags, strict=True) if is_topic(one.table)):
        ids = one.ids
        is_early = _is_of(ids, ids_of_tables(given_up, [table_of(one.table)]))
        held.append(ids.filter(pc.invert(is_early)))
        is_unwanted = pc.or_(known, is_early)
        part = targets.without(one.table, one.part, is_unwanted) if pc.any(is_unwanted).as_py() else one.part
        if part is not None:
            parts.setdefault(one.table, []).append(part)
    done, again = concat_ids(held), given_up
    # A row may count as known because of an earlier row in a part that was given up: then it must come again too.
    is_again = journal.is_among(done, again)
    again = concat_ids([again, done.filter(is_again)])
    done = concat_ids([done.filter(pc.invert(is_again)), *settled])
    return NewRows(parts, dropped, done, again, redelivered, is_written)


def _take_dependent(written: Sequence[TargetPart], kept: list[Any], targets: Targets) -> list[TargetPart]:
    """Return the parts of ``kept`` that depend on a part that was given up, and replace them by None."""
    places = [place for place, part in enumerate(kept) if part is not None]
    is_next = targets.which_follow([kept[place] for place in places])
    found = []
    for place in (place for place, follows in zip(places, is_next, strict=True) if not follows):
        found.append(TargetPart(written[place].table, kept[place], written[place].ids))
        kept[place] = None
    return found


def _is_of(ids: pa.Table, others: pa.Table) -> pa.BooleanArray:
    """Return for each of ``ids`` whether its message is one of ``others``, in any delivery."""
    keys, values = (
        pc.binary_join_element_wise(each.column("topic").cast(pa.string()), each.column("message_id"), "\n")
        for each in (ids, others)
    )
    return pc.is_in(keys, value_set=values).combine_chunks()
