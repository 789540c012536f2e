"""Which rows of a batch are new: known ones leave their parts, or keep a part from its commit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streams.batch import Batch
from streams.journal import Journal, concat_ids, ids_of_tables
from streams.targets import TargetPart, Targets, is_topic, table_of


@dataclass(frozen=True, slots=True)
class NewRows:
    """The parts of a batch without the rows that are known.

    ``parts`` are to be committed, by table, and ``dropped`` to be dropped. ``done`` are the ids that the batch is
    done with after that, ``again`` those of messages that have to come again. ``redelivered`` counts known rows.
    """

    parts: dict[str, list[Any]]
    dropped: list[TargetPart]
    done: pa.Table
    again: pa.Table
    redelivered: int


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
        is_whole = not repeated or is_topic(one.table)
        kept.append(one.part if is_whole else targets.without(one.table, one.part, flags[-1]))
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
    return NewRows(parts, dropped, concat_ids([done.filter(pc.invert(is_again)), *settled]), again, redelivered)


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
    """Say of each of ``ids`` whether its message is one of ``others``, however often it was delivered."""
    keys, values = (
        pc.binary_join_element_wise(each.column("topic").cast(pa.string()), each.column("message_id"), "\n")
        for each in (ids, others)
    )
    return pc.is_in(keys, value_set=values).combine_chunks()
