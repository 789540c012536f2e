"""What every part of the analysis shares: faults, gaps, parameters, scans and the allowed tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from model.table import Partitioning, TableRead, TableSchema
from model.window import Window
from sql.parameters import Parameter
from sql.syntax import Expression, Node
from sql.values import BROKEN, LakeGapError, Value
from sql.violation import Fault

MAX_FAULTS: Final = 100
# A query for people reads the archive a handful of times; CTEs that each name the one before twice, millions.
MAX_READINGS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Policy:
    """What a deployment allows; ``now`` is the moment the plan is made.

    ``replay`` demands the window and the output columns; without it any SELECT over the allowed tables passes.
    An archive named with its project has no default project: then only the full name is it. ``schemas`` say what
    is known of the ``extra_tables``; of ``missing_tables`` it is known that the warehouse does not have them.
    ``partitioning`` is the archive's; with ``has_write_buffer`` its youngest rows have no partition yet, as in
    BigQuery.
    """

    archive_table: str
    project: str | None
    now: datetime
    extra_tables: tuple[str, ...] = ()
    schemas: tuple[TableSchema, ...] = ()
    missing_tables: tuple[str, ...] = ()
    max_window_days: int = 366
    replay: bool = True
    partitioning: Partitioning = "day"
    has_write_buffer: bool = False

    def archive_names(self) -> frozenset[str]:
        """Return every full spelling of the archive."""
        return frozenset(self._spellings(self.archive_table))

    def extra_table(self, name: str) -> str | None:
        """Return the allowed table that ``name`` spells in full, as the deployment lists it."""
        return next((table for table in self.extra_tables if name in self._spellings(table)), None)

    def schema(self, table: str) -> TableSchema | None:
        """Return what is known of an allowed table."""
        return next((schema for schema in self.schemas if schema.table == table), None)

    def partitioning_of(self, table: str) -> Partitioning:
        """Return the partitioning of an allowed table, by the day where nobody knows it."""
        if table == self.archive_table:
            return self.partitioning
        schema = self.schema(table)
        return "day" if schema is None or schema.partitioning is None else schema.partitioning

    def lake_view(self, table: str) -> str:
        """Return what an allowed table is called on the lake."""
        return f"refeed_table_{self.extra_tables.index(table) + 1}"

    def _spellings(self, table: str) -> list[str]:
        if table.count(".") >= 2 or self.project is None:
            return [table]
        return [table, f"{self.project}.{table}"]


@dataclass(slots=True, eq=False)
class Scan:
    """One reading of a partitioned table on its way to the result; a row has to pass all ``filters`` to matter.

    A query in FROM that only hands rows on is read through: its scan goes on under a number of its own, and
    what the query around it filters counts too. ``numbers`` are all it had, so that two references to one CTE
    are never bounded by each other's filters. ``table`` is as the deployment writes it, ``lake_name`` is what its
    rows are called on the lake, empty where they have no ingest_time.
    """

    at: int
    table: str
    lake_name: str
    numbers: tuple[int, ...]
    filters: list[Expression] = field(default_factory=list)

    @property
    def number(self) -> int:
        """The number under which its pseudo column is known now."""
        return self.numbers[-1]


class Binder:
    """Gathers what is found while a query is read from the outside in."""

    def __init__(self, policy: Policy, parameters: Mapping[str, Parameter]) -> None:
        self.policy = policy
        self.parameters = parameters
        self.used_parameters: dict[str, str] = {}
        self.faults: list[Fault] = []
        # Those that were not noted once more are counted too: a part that failed has to know.
        self.fault_count = 0
        self.gaps: list[Fault] = []
        self.scans: list[Scan] = []
        # The scans without an upper end, by what they are called on the lake: they end with the plan.
        self.open_ended: set[str] = set()
        # Every allowed table that is read, as the deployment writes it.
        self.tables: list[str] = []
        # What each expression of the tree was found to be; the proof of the window looks here.
        self.values: dict[int, Value] = {}
        # How many elements arrays made of an expression may have, where that is more than a message's have.
        self.items: dict[int, int] = {}
        # How often a table is read when every reference to a CTE is a reading of its own.
        self.readings = 0
        self._names = 0
        self._scan_numbers = 0

    @property
    def reads_archive(self) -> bool:
        """Whether the archive is among what the query reads."""
        return self.policy.archive_table in self.tables

    def extra_reads(self, windows: Mapping[str, Window]) -> tuple[TableRead, ...]:
        """Return what the query reads beside the archive; ``windows`` are known by table."""
        tables = dict.fromkeys(table for table in self.tables if table != self.policy.archive_table)
        return tuple(TableRead(t, self.policy.lake_view(t), windows.get(t)) for t in tables)

    def add_scan(self, at: int, table: str, lake_name: str) -> Scan:
        """Note a scan of a table that is partitioned by ingestion time."""
        self._scan_numbers += 1
        scan = Scan(at, table, lake_name, (self._scan_numbers,))
        self.scans.append(scan)
        return scan

    def read_through(self, scan: Scan) -> Scan:
        """Note that a query around hands on the rows of ``scan``, once for each reference to it."""
        self._scan_numbers += 1
        further = Scan(
            scan.at, scan.table, scan.lake_name, (*scan.numbers, self._scan_numbers), list(scan.filters)
        )
        if scan in self.scans:
            self.scans.remove(scan)
        self.scans.append(further)
        return further

    def count_readings(self, at: int, count: int) -> None:
        """Note so many readings of tables, and a fault when there are too many altogether."""
        before, self.readings = self.readings, self.readings + count
        is_known = any(fault.code == "too_many_readings" for fault in self.faults)
        if before <= MAX_READINGS < self.readings and not is_known:
            message = f"The query reads tables more than {MAX_READINGS:,} times. Each reference to a CTE counts."
            self.fault(at, "too_many_readings", message, "Read the archive once, in one CTE.")

    def fresh(self, prefix: str) -> str:
        """Return a name that no other part of the lake's text has."""
        self._names += 1
        return f"{prefix}{self._names}"

    def fault(self, node: Node | int, code: str, message: str, rewrite: str | None = None) -> Value:
        """Note a violation and return what stands for the broken expression."""
        at = node if isinstance(node, int) else node.at
        fault = Fault(code, message, at, rewrite)
        self.fault_count += 1
        # A person mends the first ones first; thousands would only be slow.
        if len(self.faults) < MAX_FAULTS and fault not in self.faults:
            self.faults.append(fault)
        return BROKEN

    def gap(self, node: Node | int, what: str | LakeGapError) -> None:
        """Note what the lake's engine can't do."""
        at = node if isinstance(node, int) else node.at
        self.gaps.append(Fault("lake_unsupported", f"The lake's engine can't do this: {what}.", at))
