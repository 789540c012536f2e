"""The protocols of a stream: the tables that it commits to, and the work that its kind adds to the engine."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, Protocol

import pyarrow as pa

from model.errors import RefeedError

# Prefix of the name of a target that is a topic; the name of the table whose rows it gets follows.
_TOPIC_PREFIX: Final = "publish:"


def topic_target(table: str) -> str:
    """Return the name of the target that publishes the rows of ``table``.

    The name has the table and not the topic, because two sources may publish to the same topic.
    """
    return f"{_TOPIC_PREFIX}{table}"


def is_topic(name: str) -> bool:
    """Whether the target ``name`` is a topic, not a table."""
    return name.startswith(_TOPIC_PREFIX)


def table_of(name: str) -> str:
    """Return the table whose rows the topic ``name`` gets.

    Example:
        >>> table_of(topic_target("staging.orders"))
        'staging.orders'
    """
    return name.removeprefix(_TOPIC_PREFIX)


@dataclass(frozen=True, slots=True)
class TargetPart:
    """An uncommitted part, the table or topic that gets it, and the ids of its rows in their order."""

    table: str
    part: Any
    ids: pa.Table


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """The work of one task in one batch: its parts, and the messages without a part.

    ``settled`` are ids that are acknowledged with the batch although no row is written for them. ``unfit`` are ids
    that do not fit the schema of a table yet: they are redelivered after :meth:`Work.learn`. Only the kind of
    stream reads ``found``. With ``is_lesson`` there is something to learn, and the next batch is planned only
    after that.
    """

    parts: tuple[TargetPart, ...]
    settled: pa.Table
    unfit: pa.Table
    found: Any
    is_lesson: bool = False


class CompactedTable(Protocol):
    """A table, as the compacting thread uses it."""

    def compact(self, *, max_small_files: int = 0) -> int:
        """Merge small files, and return the number of files that were replaced."""


class Targets(Protocol):
    """The tables that one stream commits to under its lease; a commit to one table is atomic.

    A stream that has lost its lease can't commit to any of them. :class:`warehouse.rows.RowTables` implements this
    for several tables; the archive is a set of one table.
    """

    def open(self, name: str) -> CompactedTable:
        """Return another object for the table ``name``, for another thread."""

    def take(self, name: str) -> int:
        """Fence older streams off the table ``name``; return this stream's newest attempt in the table."""

    def settle(self, number: int, names: Sequence[str], commit_id: int | None = None) -> frozenset[str]:
        """Return the tables of ``names`` that have the rows of the attempt ``number``; the answer is final."""

    def without(self, name: str, part: Any, is_unwanted: pa.BooleanArray) -> Any | None:
        """Return the part without the rows where ``is_unwanted`` is true, and drop the old part.

        Return None if no rows are left, or if this warehouse can only take whole parts.
        """

    def which_follow(self, parts: Sequence[Any]) -> list[bool]:
        """Return for each of ``parts``, in their order, whether it can be committed together with the others."""

    def commit(
        self, parts: Mapping[str, Sequence[Any]], number: int, ids: pa.Table, commit_id: int | None = None
    ) -> tuple[frozenset[str], RefeedError | None]:
        """Add each table's ``parts`` once; return the tables that have them, and the error of another table.

        ``ids`` are the ids of the messages; a warehouse may store them for an earlier release that takes over.

        Raises:
            RefeedError: no table has its parts, except after a CommitOutcomeUnknownError.
        """

    def drop(self, name: str, part: Any) -> None:
        """Give up a part that will not be committed."""

    def quota_seconds(self, parts: Sequence[Any]) -> float:
        """Return the seconds to wait for the warehouse's quotas after a batch with these ``parts``."""


class TableKeeper(Protocol):
    """The owner of a running stream's tables: hold its lock to change a table, and take new tables by it."""

    lock: Lock

    def take(self, name: str) -> None:
        """Take a table for this stream."""


class Work(Protocol):
    """One kind of stream: reads the results of its tasks, and counts."""

    @property
    def name(self) -> str:
        """The stream's name in the log."""

    @property
    def counted(self) -> tuple[str, ...]:
        """The totals that are 0, instead of unknown, before the first message."""

    def read_output(self, encoded: bytes) -> TaskOutput:
        """Decode the work of one task."""

    def count(
        self,
        totals: Counter[str],
        outputs: Sequence[TaskOutput],
        parts: Mapping[str, Sequence[Any]],
        is_written: Sequence[pa.BooleanArray],
    ) -> None:
        """Add a batch's ``outputs``, of which ``parts`` are committed, to the totals of this kind.

        The common totals, such as ``messages``, are counted elsewhere. ``is_written`` has a mask for each part of
        the outputs, in their order: the rows that are committed. The other rows were known, or are redelivered.
        """

    def learn(self, keeper: TableKeeper, outputs: Sequence[TaskOutput]) -> bool:
        """Widen tables; return whether messages that did not fit may be redelivered at once."""

    def status(self) -> dict[str, Any]:
        """Return a copy of the status fields of this kind."""
