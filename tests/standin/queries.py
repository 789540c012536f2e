"""Runs GoogleSQL over the catalog with DuckDB: SELECT, DML, views; and says beforehand what it would read."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import duckdb
import pyarrow as pa
from sqlglot import exp

from connectors.lake.udfs import register_functions
from model.table import ARCHIVE_COLUMNS
from sql.binder import Policy
from sql.dialect import LAKE_VIEW, render_lake_query
from sql.verdict import judge_query
from sql.violation import QueryRefusedError
from tests.standin.catalog import PARTITION_TIME, Catalog, Snapshot, TableEntry, TableKey, now_us
from tests.standin.problems import Problem
from tests.standin.query_text import Cancel, QueryText, engine_errors
from tests.standin.scans import Scans
from tests.standin.schemas import conform, fields_of, microseconds
from tests.standin.statements import Statement, parse_statement, parse_transaction, render, used_columns

_BATCH_ROWS: Final = 2048
_CHANGES: Final = frozenset(("INSERT", "DELETE", "UPDATE", "MERGE", "TRUNCATE_TABLE"))
_MACROS: Final = (
    "CREATE MACRO safe_convert_bytes_to_string(b) AS TRY(decode(b))",
    "CREATE MACRO timestamp_micros(n) AS make_timestamptz(n)",
)


@dataclass(frozen=True, slots=True)
class Analysis:
    """What a text would do. ``bytes`` is what it reads, by the documentation's sizes; ``fields`` are its rows'.

    ``past`` are the moments at which tables are read that are not read as they are, in microseconds since 1970.
    ``engine_text`` is what the engine runs for a query, with its parameters and the names of its columns.
    """

    query: QueryText
    statement: Statement
    entries: Mapping[TableKey, TableEntry]
    partitions: Mapping[TableKey, frozenset[int | None] | None]
    bytes: int
    fields: list[dict[str, Any]] | None
    past: Mapping[TableKey, int] = field(default_factory=dict)
    engine_text: tuple[str, Any, list[str] | None] | None = None

    @property
    def kind(self) -> str:
        """The statementType."""
        return self.statement.kind

    @property
    def referenced(self) -> list[TableKey]:
        """Every table behind it, views looked through."""
        own = [self.statement.target] if self.kind in _CHANGES and self.statement.target else []
        return list(dict.fromkeys([*own, *(key for key in self.entries if key != self.statement.target)]))

    def needed(self, key: TableKey) -> frozenset[int | None] | None:
        """Return the partitions of a table whose rows can matter, None for all.

        Where rows are joined, one that no condition lets through may still keep another from coming out; what a
        view does inside is not looked at.
        """
        if key in self.entries and not self.entries[key].ingestion_step_us:
            # Rows are not kept by their column's day: what is not needed is only not counted.
            return None
        has_views = any(entry.is_view for entry in self.entries.values())
        if has_views or self.statement.tree.find(exp.Join, exp.Merge) is not None:
            return None
        return self.partitions.get(key)

    @property
    def billed_bytes(self) -> int:
        """What "BigQuery pricing" bills: at least 10 MB a table, rounded up to the MB."""
        mebibyte = 1024 * 1024
        least = 10 * mebibyte * max(1, len(self.referenced))
        return max(least, -(-self.bytes // mebibyte) * mebibyte) if self.referenced else 0


@dataclass(frozen=True, slots=True)
class Changed:
    """How many rows a DML statement inserted, updated and deleted."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0

    @property
    def total(self) -> int:
        """numDmlAffectedRows."""
        return self.inserted + self.updated + self.deleted


class Queries:
    """The engine over one catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._scans = Scans(catalog)
        # Each session is a cursor of it, with tables of its own: functions take most of a small query's time.
        self._engine = duckdb.connect(":memory:")
        register_functions(self._engine)
        for macro in _MACROS:
            self._engine.execute(macro)

    def analyse(self, query: QueryText, *, needs_filter: bool = True) -> Analysis:
        """Return what the text would do; without ``needs_filter`` no table asks for a condition on partitions.

        Raises:
            Problem: ``invalidQuery`` or ``notFound``.
        """
        statement = parse_statement(query.text, query.project, query.default_dataset)
        return self._analyse(query, statement, needs_filter=needs_filter)

    def analyse_transaction(self, query: QueryText) -> list[Analysis] | None:
        """Return what each statement of a transaction would do, None when the text is no transaction.

        Raises:
            Problem: ``invalidQuery`` or ``notFound``.
        """
        found = parse_transaction(query.text, query.project, query.default_dataset)
        return None if found is None else [self._analyse(query, one, needs_filter=True) for one in found]

    def _analyse(self, query: QueryText, statement: Statement, *, needs_filter: bool) -> Analysis:
        needs_filter = needs_filter and statement.kind != "CREATE_VIEW"
        entries: dict[TableKey, TableEntry] = {}
        keys = [*statement.tables, *([statement.target] if statement.kind in _CHANGES else [])]
        partitions: dict[TableKey, frozenset[int | None] | None] = {}
        past: dict[TableKey, int] = {}
        for key in keys:
            assert key is not None
            entry = self._catalog.find_table(key)
            at_us = self._scans.past(query, statement, entry)
            if at_us is not None:
                past[key] = at_us
            if entry.is_view:
                # A condition around a view reaches what is behind it; which one it is can't be told from here.
                is_bare = statement.tree.find(exp.Where) is None
                inner = self.analyse(self.view_text(entry), needs_filter=needs_filter and is_bare)
                for name, found in inner.entries.items():
                    entries.setdefault(name, found)
                    _add(partitions, name, inner.partitions.get(name))
            else:
                # An INSERT reads nothing of its target, which asks for a filter of what is read alone.
                is_read = statement.kind != "INSERT" or key in statement.tables
                _add(
                    partitions,
                    key,
                    self._scans.prune(query, statement, entry, needs_filter=needs_filter and is_read, at_us=at_us),
                )
            entries[key] = entry
        size = sum(
            self._scans.size(entry, partitions.get(key), used_columns(statement), past.get(key))
            for key, entry in entries.items()
            if not entry.is_view
        )
        analysis = Analysis(query, statement, entries, partitions, size, None, past)
        if statement.query is None:
            return analysis
        analysis = replace(analysis, engine_text=self._engine_text(analysis))
        with self._session([analysis], empty=True) as connection:
            return replace(analysis, fields=self._describe(analysis, connection))

    def view_text(self, entry: TableEntry) -> QueryText:
        """Return a view's text; names in it are always full or of its own project."""
        return QueryText(entry.body["view"]["query"], entry.key.project, None, {})

    def select(self, analysis: Analysis, cancel: Cancel) -> tuple[list[dict[str, Any]], pa.Table]:
        with self._session([analysis]) as connection, engine_errors(cancel):
            cancel.watch(connection)
            try:
                assert analysis.engine_text is not None
                sql, values, names = analysis.engine_text
                reader = connection.sql(sql, params=values).to_arrow_reader(_BATCH_ROWS)
                schema = _renamed(reader.schema, names)
                checked = _checked_fields(schema)
                fields = analysis.fields or checked
                entry = TableEntry(0, TableKey("", "", ""), {"schema": {"fields": fields}})
                plain = entry.arrow_schema()
                batches = [conform(batch.rename_columns(schema.names), plain) for batch in reader]
                return fields, pa.Table.from_batches(batches, plain)
            finally:
                cancel.watch(None)

    def change(self, analysis: Analysis, cancel: Cancel, publish: Callable[[Changed], None]) -> Changed:
        """Run a DML statement; ``publish`` is called in the transaction that shows its rows.

        Rows that streams bring meanwhile stay; another change of the same table waits.
        """
        target = analysis.entries[analysis.statement.target]
        with self._catalog.change_lock(target.id):
            snapshot = self._touched([analysis], target)
            if analysis.kind == "TRUNCATE_TABLE":
                changed, parts = Changed(deleted=snapshot.rows), []
            else:
                changed, parts = self._rewritten(analysis, snapshot, cancel)
            with self._catalog.transaction():
                if changed.total:
                    self._catalog.drop_parts(snapshot)
                    for part in parts:
                        self._catalog.add_part(target, part)
                publish(changed)
        return changed

    def _rewritten(
        self, analysis: Analysis, snapshot: Snapshot, cancel: Cancel
    ) -> tuple[Changed, list[dict[str, Any]]]:
        target = snapshot.table
        name = _name(target)
        with self._session([analysis], without=[target]) as connection, engine_errors(cancel):
            self._load(connection, snapshot)
            cancel.watch(connection)
            try:
                changed = self._run_change(analysis, connection)
            finally:
                cancel.watch(None)
            if not changed.total:
                return changed, []
            return changed, list(self._parts(connection, name, target))

    def transact(self, analyses: Sequence[Analysis], cancel: Cancel, publish: Callable[[], None]) -> None:
        """Run the statements of a transaction; ``publish`` is called in the transaction that shows all they did.

        Whoever changes one of their tables meanwhile waits, where the service may abort one of the two.
        """
        changing = [a.entries[a.statement.target] for a in analyses if a.kind in _CHANGES and a.statement.target]
        targets = sorted({entry.id: entry for entry in changing}.values(), key=lambda entry: entry.id)
        with contextlib.ExitStack() as locks:
            for target in targets:
                locks.enter_context(self._catalog.change_lock(target.id))
            snapshots = {target.id: self._touched(analyses, target) for target in targets}
            totals = dict.fromkeys(snapshots, 0)
            with self._session(analyses, without=targets) as connection, engine_errors(cancel):
                for snapshot in snapshots.values():
                    self._load(connection, snapshot)
                cancel.watch(connection)
                try:
                    for analysis in analyses:
                        if analysis.kind in _CHANGES and analysis.statement.target:
                            entry = analysis.entries[analysis.statement.target]
                            totals[entry.id] += self._run_change(analysis, connection).total
                        else:
                            assert analysis.engine_text is not None
                            sql, values, _ = analysis.engine_text
                            connection.execute(sql, values).fetchall()
                finally:
                    cancel.watch(None)
                changed = [target for target in targets if totals[target.id]]
                parts = {target.id: list(self._parts(connection, _name(target), target)) for target in changed}
            with self._catalog.transaction():
                for target in changed:
                    self._catalog.drop_parts(snapshots[target.id])
                    for part in parts[target.id]:
                        self._catalog.add_part(target, part)
                publish()

    def _touched(self, analyses: Sequence[Analysis], target: TableEntry) -> Snapshot:
        """Return the rows that may be read or replaced: none where all that is done to a table is to add rows."""
        snapshot = self._catalog.snapshot(target)
        for analysis in analyses:
            is_changed = analysis.statement.target == target.key and analysis.kind != "INSERT"
            has_views = any(entry.is_view for entry in analysis.entries.values())
            if is_changed or has_views or target.key in analysis.statement.tables:
                return snapshot
        return replace(snapshot, pieces=(), ends={})

    def _load(self, connection: Any, snapshot: Snapshot) -> None:
        """Make a table that a statement changes."""
        name, step = _name(snapshot.table), snapshot.table.ingestion_step_us
        connection.register(f"rows_of_{name}", self._catalog.read_table(snapshot))
        connection.execute(f"CREATE TEMP TABLE {name} AS SELECT * FROM rows_of_{name}")
        if step:
            now = now_us()
            moment = f"make_timestamptz({now - now % step})"
            connection.execute(f"ALTER TABLE {name} ALTER COLUMN {PARTITION_TIME} SET DEFAULT {moment}")

    def _run_change(self, analysis: Analysis, connection: Any) -> Changed:
        names = {key: _name(entry) for key, entry in analysis.entries.items()}
        query = analysis.query
        sql = render(analysis.statement, names, analysis.entries, query.project, query.default_dataset)
        if analysis.kind == "MERGE":
            rows = connection.execute(f"{sql} RETURNING merge_action", query.bound(sql)).fetchall()
            actions = [str(row[0]) for row in rows]
            return Changed(*(actions.count(action) for action in ("INSERT", "UPDATE", "DELETE")))
        [count] = connection.execute(sql, query.bound(sql)).fetchone()
        return Changed(**{{"INSERT": "inserted", "UPDATE": "updated", "DELETE": "deleted"}[analysis.kind]: count})

    def _parts(self, connection: Any, name: str, target: TableEntry) -> Iterator[dict[str, Any]]:
        columns = ", ".join(f'"{field["name"]}"' for field in target.fields)
        if not target.ingestion_step_us:
            rows = connection.sql(f"SELECT {columns} FROM {name}").to_arrow_table()
            yield self._catalog.write_rows(target, _conformed(rows, target), None)
            return
        moments = [
            row[0] for row in connection.execute(f"SELECT DISTINCT {PARTITION_TIME} FROM {name}").fetchall()
        ]
        for moment in moments:
            condition = f"{PARTITION_TIME} IS NOT DISTINCT FROM $moment"
            rows = connection.sql(
                f"SELECT {columns} FROM {name} WHERE {condition}", params={"moment": moment}
            ).to_arrow_table()
            micros = None if moment is None else microseconds(moment.astimezone(UTC))
            yield self._catalog.write_rows(target, _conformed(rows, target), micros)

    # Sessions

    @contextlib.contextmanager
    def _session(
        self, analyses: Sequence[Analysis], *, empty: bool = False, without: Sequence[TableEntry] = ()
    ) -> Iterator[Any]:
        """Give a connection in which each table of the analyses is a view, views too."""
        connection = self._engine.cursor()
        entries = {key: entry for analysis in analyses for key, entry in analysis.entries.items()}
        left_out = {entry.id for entry in without}
        try:
            for setting in ("TimeZone = 'UTC'", "threads = 2", "arrow_large_buffer_size = true",
                            "python_enable_replacements = false"):  # fmt: skip
                connection.execute(f"SET {setting}")
            for key, entry in entries.items():
                if entry.is_view or entry.id in left_out:
                    continue
                # Statements of one transaction may read different partitions.
                wanted = analyses[0].needed(key) if len(analyses) == 1 else None
                snapshot = self._catalog.snapshot(entry, analyses[0].past.get(key))
                rows = self._catalog.read_table(snapshot, frozenset() if empty else wanted)
                connection.register(_name(entry), rows)
            for entry in entries.values():
                if entry.is_view:
                    self._create_view(connection, entry, entries)
            yield connection
        finally:
            connection.close()

    def _create_view(self, connection: Any, entry: TableEntry, entries: Mapping[TableKey, TableEntry]) -> None:
        inner = self.view_text(entry)
        statement = parse_statement(inner.text, inner.project, None)
        for key in statement.tables:
            if entries[key].is_view:
                self._create_view(connection, entries[key], entries)
        names = {key: _name(found) for key, found in entries.items()}
        text = render(statement, names, entries, inner.project, None)
        connection.execute(f"CREATE OR REPLACE TEMP VIEW {_name(entry)} AS {text}")

    def _describe(self, analysis: Analysis, connection: Any) -> list[dict[str, Any]]:
        assert analysis.engine_text is not None
        sql, values, names = analysis.engine_text
        with engine_errors(None):
            rows = connection.sql(f"SELECT * FROM ({sql}) LIMIT 0", params=values)
            types, schema = rows.types, rows.to_arrow_table().schema
        fields = [_with_json(*pair) for pair in zip(_checked_fields(_renamed(schema, names)), types, strict=True)]
        return _as_stored(fields, analysis)

    def _engine_text(self, analysis: Analysis) -> tuple[str, Any, list[str] | None]:
        """Return DuckDB's text of a SELECT, its parameters, and names that its columns are to have.

        A query over an archive alone goes through Refeed's own gate, which knows more of GoogleSQL; what the
        gate refuses goes through sqlglot.
        """
        query, names = analysis.query, {key: _name(entry) for key, entry in analysis.entries.items()}
        gated = self._gated(analysis)
        if gated is not None:
            return gated
        sql = render(
            analysis.statement, names, analysis.entries, query.project, query.default_dataset, query_only=True
        )
        return sql, query.bound(sql), None

    def _gated(self, analysis: Analysis) -> tuple[str, Any, list[str]] | None:
        entries = list(analysis.entries.values())
        if analysis.kind != "SELECT" or len(entries) != 1 or not _is_archive(entries[0]):
            return None
        [entry] = entries
        policy = Policy(
            f"{entry.key.dataset}.{entry.key.name}", entry.key.project, datetime.now(UTC), replay=False
        )
        try:
            validated = judge_query(analysis.query.text, analysis.query.parameters, policy)
            lake = render_lake_query(validated)
        except (QueryRefusedError, RecursionError):
            return None
        count = iter(range(len(validated.output)))
        names = [(next(count), column.name) for column in validated.output]
        sql = f"WITH {LAKE_VIEW} AS (SELECT * FROM {_name(entry)}) SELECT * FROM ({lake.sql})"
        return sql, dict(lake.parameters) or None, [name or f"f{number}_" for number, name in names]


def _add(
    known: dict[TableKey, frozenset[int | None] | None], key: TableKey, more: frozenset[int | None] | None
) -> None:
    """Note that partitions of a table are read, besides those that are known already."""
    before = known.get(key, frozenset())
    known[key] = None if before is None or more is None else before | more


def _name(entry: TableEntry) -> str:
    return f"bq_{entry.id}"


def _is_archive(entry: TableEntry) -> bool:
    names = [field["name"] for field in entry.fields]
    return bool(entry.ingestion_step_us) and names == [column.name for column in ARCHIVE_COLUMNS]


def _checked_fields(schema: pa.Schema) -> list[dict[str, Any]]:
    names = [name.lower() for name in schema.names]
    if len(set(names)) < len(names):
        raise Problem("invalidQuery", "Duplicate column names in the result are not supported.")
    for name in schema.names:
        if name.upper().startswith("_PARTITION"):
            raise Problem(
                "invalidQuery",
                f'Invalid field name "{name}". Field names are not allowed to start with the (case-insensitive) '
                "prefixes _PARTITION, _TABLE_, _FILE_, _ROW_TIMESTAMP, __ROOT__ and _COLIDENTIFIER",
            )
    return fields_of(schema)


def _with_json(field: dict[str, Any], kind: Any) -> dict[str, Any]:
    """Return a result's field as JSON where the engine says so: Arrow has a text for it."""
    if kind.id == "list":
        return _with_json(field, kind.child)
    if kind.id == "struct":
        children = [_with_json(*pair) for pair in zip(field["fields"], (t for _, t in kind.children), strict=True)]
        return {**field, "fields": children}
    return {**field, "type": "JSON"} if str(kind) == "JSON" else field


def _as_stored(fields: list[dict[str, Any]], analysis: Analysis) -> list[dict[str, Any]]:
    """Return the fields with the type of the column where an item is just a column of the one table."""
    entries = list(analysis.entries.values())
    query = analysis.statement.query
    if len(entries) != 1 or not isinstance(query, exp.Select) or len(query.selects) != len(fields):
        return fields
    stored = {field["name"].lower(): field for field in entries[0].fields}
    places = [stored.get(_column_behind(query, item) or "") for item in query.selects]
    kept = ("type", "fields")
    return [
        {**field, **{name: place[name] for name in kept if name in place}} if place else field
        for field, place in zip(fields, places, strict=True)
    ]


def _column_behind(query: exp.Select, item: exp.Expr) -> str | None:
    """Return the table's column that an item is, also through a WITH or a subquery; None for what is computed."""
    column = item.unalias()
    if not isinstance(column, exp.Column):
        return None
    source = query.args["from_"].this
    named = {cte.alias.lower(): cte.this for cte in query.ctes}
    inner = named.get(source.name.lower()) if isinstance(source, exp.Table) else source.this
    name = column.name.lower()
    if not isinstance(inner, exp.Select):
        return name
    behind = [each for each in inner.selects if each.alias_or_name.lower() == name]
    if behind:
        return _column_behind(inner, behind[0])
    return name if inner.is_star else None


def _renamed(schema: pa.Schema, names: list[str] | None) -> pa.Schema:
    return pa.schema([field.with_name(name) for name, field in zip(names or schema.names, schema, strict=True)])


def _conformed(rows: pa.Table, target: TableEntry) -> pa.Table:
    schema = target.arrow_schema()
    relaxed = pa.schema([field.with_nullable(True) for field in schema])
    return pa.Table.from_batches([conform(batch, relaxed) for batch in rows.to_batches()], relaxed)
