"""The queries of a warehouse: what the gate let through is looked into, answered, and selected for a replay."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from model.errors import OrderingColumnsError, QueryError
from model.query_parameter import QueryParameter
from model.window import Window
from sql.ordering import ORDERED_BY
from sql.validate import Policy, ValidatedQuery
from warehouse.counts import Counts
from warehouse.figures import QueryFigures, QueryNote
from warehouse.merges import UnionViews


@dataclass(frozen=True, slots=True)
class QuerySpace:
    """What queries may use of this machine: memory ("2GB"), and ``folder`` for what does not fit into it.

    ``min_free_bytes`` stay free on the folder's disk. With ``keeps_spare`` whatever a query would wait for is
    started ahead, again after each one.
    """

    memory: str
    folder: Path
    min_free_bytes: int = 0
    keeps_spare: bool = False


@dataclass(frozen=True, slots=True)
class ReplayQuery:
    """A query that is to be replayed, and what it may cost.

    ``parameters`` are the request's, in JSON. ``attributes`` are added to every message, beside the tags.
    ``check_bill`` raises when this number of bytes may not be read or billed; ``is_allowed`` is whether a
    selection may have this number of rows and bytes.
    """

    query: ValidatedQuery
    parameters: Mapping[str, QueryParameter] = field(default_factory=dict)
    attributes: Mapping[str, str] = field(default_factory=dict)
    max_bytes_billed: int | None = None
    check_bill: Callable[[int], None] = lambda _bytes: None
    is_allowed: Callable[[int, int], bool] = lambda _rows, _bytes: True


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """The first rows of a query; ``is_cut`` is whether there are more."""

    rows: pa.Table
    is_cut: bool
    notes: tuple[QueryNote, ...] = ()


@dataclass(frozen=True, slots=True)
class ArchiveQuery:
    """One SELECT of our own in GoogleSQL over the archive and nothing else; parameters are JSON.

    ``should_stop`` is whether nobody waits for its rows any more.
    """

    sql: str
    parameters: Mapping[str, QueryParameter]
    window: Window
    max_rows: int
    max_bytes_billed: int
    should_stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class SelectionRun:
    """Who selects: under ``name`` a query runs once, whichever attempt asks.

    ``should_stop`` is whether the attempt is to end, ``is_superseded`` whether another one goes on with the same
    query, which then is not cancelled. ``check_size`` raises when the rows or bytes are too many; it is
    called as soon as they are known, before a row is read.
    """

    name: str
    by_key: bool = False
    should_stop: Callable[[], bool] = lambda: False
    is_superseded: Callable[[], bool] = lambda: False
    check_size: Callable[[int, int], None] = lambda _rows, _bytes: None


@contextmanager
def ordering_errors(*, by_key: bool) -> Iterator[None]:
    """Raise what a sort by the columns of :data:`sql.ordering.ORDERED_BY` lacks as what it is.

    Raises:
        OrderingColumnsError: the lake's engine, which sorts for every warehouse, finds no such column.
    """
    try:
        yield
    except QueryError as exc:
        if by_key and any(f'"{column}" not found' in exc.message for column in ORDERED_BY):
            raise OrderingColumnsError from exc
        raise


class Messages(Protocol):
    """The archive's rows as people browse them; safe to use from many threads."""

    @property
    def table(self) -> str:
        """The archive's name as a query names it."""

    def read(self, query: ArchiveQuery) -> list[dict[str, Any]]:
        """Return the query's rows; none without an archive, where that is no fault.

        Raises:
            QueryTooLargeError: it would be billed for more than its cap, or gives too much back.
            QueryStoppedError: its ``should_stop`` said so; then it is ended.
            WarehouseError, QueryError: the archive can't be read.
        """


class Queries(Protocol):
    """Queries over one warehouse, with what they keep open between them; safe to use from many threads."""

    @property
    def is_billed(self) -> bool:
        """Whether somebody pays for what a query reads."""

    @property
    def counts(self) -> Counts:
        """What counts the archive's messages."""

    @property
    def messages(self) -> Messages:
        """What reads the archive's messages for people."""

    def warm(self) -> None:
        """Start what a first query would wait for."""

    def close(self) -> None:
        """End processes and connections."""

    def policy(self, policy: Policy, *, must_exist: bool = True) -> Policy:
        """Return ``policy`` with the schemas of the warehouse's tables, where they are read beforehand.

        Without ``must_exist`` a warehouse that is not there yet has no schemas, and no table is missing in it.

        Raises:
            WarehouseError: it does not answer.
        """

    def check(self, query: ValidatedQuery) -> None:
        """Raise when this warehouse can't answer a query that the gate let through.

        Raises:
            QueryRefusedError: it can't; every violation is in it.
        """

    def has_table(self, name: str) -> bool:
        """Whether there is a table of this name.

        Raises:
            WarehouseError: the warehouse does not answer.
        """

    def answer(
        self,
        query: ValidatedQuery,
        *,
        max_rows: int,
        seconds: float | None = None,
        views: UnionViews | None = None,
    ) -> QueryAnswer:
        """Return up to ``max_rows`` rows of the query; where queries are billed, it is.

        Without ``seconds`` it may take as long as the warehouse lets anybody wait. ``views`` are the union views
        that it may read, as this warehouse opened them.

        Raises:
            QueryTooLargeError: it would read more than its cap.
            QueryRefusedError, QueryError, WarehouseError: it can't be answered.
        """

    def examine(self, wanted: ReplayQuery, *, keep_as: str | None = None) -> QueryFigures:
        """Return what is known of the query's rows for free.

        With ``keep_as`` a warehouse that bills runs the query after all, and keeps the rows under that id for
        a :meth:`source` that names it.

        Raises:
            QueryError: the query fails, or needs more than it may use.
        """

    def source(self, wanted: ReplayQuery, *, kept: str | None = None) -> dict[str, Any]:
        """Return what :meth:`select` takes, in JSON; ``kept`` is the id under which the rows are kept already.

        Raises:
            QueryError: the query is refused.
            WarehouseError: there is no archive.
        """

    def select(
        self, source: Mapping[str, Any], run: SelectionRun
    ) -> AbstractContextManager[Iterator[pa.RecordBatch]]:
        """Run the query that :meth:`source` described, or find it run, and give its rows as they come.

        With ``by_key`` they are in the order of their ordering keys.

        Raises:
            QueryStoppedError: the attempt is to stop.
            OrderingColumnsError: ``by_key``, and the query does not give the columns of that order.
            SelectionGoneError: the rows were kept, and have expired.
            QueryError, WarehouseError: the query failed.
        """
