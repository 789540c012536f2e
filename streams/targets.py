"""The tables that a stream commits to, and the work that one kind of stream adds to the engine."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, Protocol

import pyarrow as pa

from model.errors import RefeedError

# What begins the name of a target that is a topic: the name of the table whose rows it gets follows.
_TOPIC_PREFIX: Final = "publish:"


def topic_target(table: str) -> str:
    """Return the name of the target that publishes the rows of ``table``.

    Two sources may read one topic and publish to one other: the table tells their messages apart.
    """
    return f"{_TOPIC_PREFIX}{table}"


def is_topic(name: str) -> bool:
    """Whether the target ``name`` is a topic, and no table."""
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
    """A part that waits for its commit, its table, or its topic, and the ids of its rows in their order."""

    table: str
    part: Any
    ids: pa.Table


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """The work of one task in one batch: its parts, and the messages that are in none of them.

    ``settled`` are ids that are acknowledged with the batch although no row is written for them. ``unfit`` are ids
    that no table has room for yet: they come again after :meth:`Work.learn`. ``found`` is for the kind of stream
    alone. With ``is_lesson`` there is something to learn, and the next batch is planned only after that.
    """

    parts: tuple[TargetPart, ...]
    settled: pa.Table
    unfit: pa.Table
    found: Any
    is_lesson: bool = False


class CompactedTable(Protocol):
    """One of the tables, as the thread beside the stream compacts it."""

    def compact(self, *, max_small_files: int = 0) -> int:
        """Merge small files where there are any, and return how many went away."""


class Targets(Protocol):
    """The tables that one stream commits to under its lease; a table by itself is all or nothing.

    A stream that has lost its lease can't commit to any of them. :class:`warehouse.rows.RowTables` is one; the
    archive is a set of one table.
    """

    def open(self, name: str) -> CompactedTable:
        """Return another object for the table ``name``, for another thread."""

    def take(self, name: str) -> int:
        """Let no older stream commit to the table ``name`` any more; return this stream's newest attempt in it."""

    def settle(self, number: int, names: Sequence[str], commit_id: int | None = None) -> frozenset[str]:
        """Return which of ``names`` have the rows of the attempt ``number``, for good."""

    def without(self, name: str, part: Any, is_unwanted: pa.BooleanArray) -> Any | None:
        """Return the part without the rows where ``is_unwanted`` holds, the old one dropped.

        None says that nothing is left of it, or that a part is taken whole here or not at all.
        """

    def which_follow(self, parts: Sequence[Any]) -> list[bool]:
        """Return of each of ``parts``, in their order, whether it can be committed with the others that can."""

    def commit(
        self, parts: Mapping[str, Sequence[Any]], number: int, ids: pa.Table, commit_id: int | None = None
    ) -> tuple[frozenset[str], RefeedError | None]:
        """Add each table's ``parts`` once; return the tables that have theirs, and the error that kept another.

        ``ids`` are those of the messages; a warehouse may keep them for an earlier Refeed that takes over.

        Raises:
            RefeedError: no table has its parts, but for a CommitOutcomeUnknownError.
        """

    def drop(self, name: str, part: Any) -> None:
        """Give up a part that will not be committed."""

    def quota_seconds(self, parts: Sequence[Any]) -> float:
        """Return how long to wait after a batch, whose ``parts`` these are, for the warehouse's quotas."""


class TableKeeper(Protocol):
    """The owner of the tables while a stream runs: its lock is held while one changes, and it takes a new one."""

    lock: Lock

    def take(self, name: str) -> None:
        """Take the lease on a table."""


class Work(Protocol):
    """One kind of stream: how its tasks' results are read, and its own counts."""

    @property
    def name(self) -> str:
        """The stream's name in the log."""

    @property
    def counted(self) -> tuple[str, ...]:
        """Totals that are 0 and not unknown before the first message."""

    def read_output(self, encoded: bytes) -> TaskOutput:
        """Return the work of one task, which it encoded."""

    def count(
        self,
        totals: Counter[str],
        outputs: Sequence[TaskOutput],
        parts: Mapping[str, Sequence[Any]],
        is_written: Sequence[pa.BooleanArray],
    ) -> None:
        """Count a batch's ``outputs``, of which ``parts`` are committed; ``messages`` and the like are counted.

        ``is_written`` has for each part of the outputs, in their order, which of its rows are committed: the
        others were known, or come again.
        """

    def learn(self, keeper: TableKeeper, outputs: Sequence[TaskOutput]) -> bool:
        """Make tables wide enough; return whether messages that did not fit may come again at once."""

    def status(self) -> dict[str, Any]:
        """Return a copy of this kind's own fields of the status."""
