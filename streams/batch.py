"""The results of one batch's tasks, as the driver takes them over, and which of their rows are new."""

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
    """The outputs of one batch's tasks; ``faults`` is how many of their subscriptions could not be pulled.

    With an ``error``, which a task reported, nothing of the batch is committed. Before ``next_at``, a time of the
    monotonic clock, no other batch may begin: the warehouse's quotas want it. Up to ``deadline`` the leases of its
    messages are held for sure.
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
        """Every part, task by task."""
        return [part for output in self.outputs for part in output.parts]

    def ids(self) -> pa.Table:
        """Return the ids of every message that the batch holds, once where its row is published too."""
        return without_topics(concat_ids([self.done_ids(), self.unfit()]))

    def done_ids(self) -> pa.Table:
        """Return the ids of the messages that the batch finishes: the rows of its parts, and ``settled`` ones."""
        return concat_ids([part.ids for part in self.parts] + [output.settled for output in self.outputs])

    def unfit(self) -> pa.Table:
        """Return the ids of the messages that no table has room for yet."""
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
    """Return the error that a task reported; one that the stream waits out keeps its class."""
    fields: dict[str, Any] = json.loads(reported)
    known = {cls.code: cls for cls in PASSING}
    return known.get(fields["code"], RefeedError)(fields["message"])


@dataclass(frozen=True, slots=True)
class NewRows:
    """The parts of a batch without the rows that are known.

    ``parts`` are to be committed, by table, and ``dropped`` to be dropped. ``done`` are the ids that the batch is
    done with after that, ``again`` those of messages that have to come again. ``redelivered`` counts known rows.
    ``is_written`` holds, of each part of the batch, for the rows that are to be committed.
    """

    parts: dict[str, list[Any]]
    dropped: list[TargetPart]
    done: pa.Table
    again: pa.Table
    redelivered: int
    is_written: Sequence[pa.BooleanArray] = ()


def find_new(batch: Batch, journal: Journal, targets: Targets) -> NewRows:
    """Return the parts of ``batch`` without the rows that ``journal`` knows, which were delivered twice.

    A warehouse that takes a part whole or not at all takes none of it then: the new rows in it come again without
    the rest, and so does a part that depends on one that was given up. Nothing of these is published meanwhile.
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
    # A row may have been left out because of an earlier one that was in a part which is not taken either.
    is_again = journal.is_among(done, again)
    again = concat_ids([again, done.filter(is_again)])
    done = concat_ids([done.filter(pc.invert(is_again)), *settled])
    return NewRows(parts, dropped, done, again, redelivered, is_written)


def _take_dependent(written: Sequence[TargetPart], kept: list[Any], targets: Targets) -> list[TargetPart]:
    """Return those of ``kept`` that can't be committed because of one that was given up, and make them None."""
    places = [place for place, part in enumerate(kept) if part is not None]
    is_next = targets.which_follow([kept[place] for place in places])
    found = []
    for place in (place for place, follows in zip(places, is_next, strict=True) if not follows):
        found.append(TargetPart(written[place].table, kept[place], written[place].ids))
        kept[place] = None
    return found


def _is_of(ids: pa.Table, others: pa.Table) -> pa.BooleanArray:
    """Return for each of ``ids`` whether its message is one of ``others``, however often it was delivered."""
    keys, values = (
        pc.binary_join_element_wise(each.column("topic").cast(pa.string()), each.column("message_id"), "\n")
        for each in (ids, others)
    )
    return pc.is_in(keys, value_set=values).combine_chunks()
