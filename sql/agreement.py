"""Whether BigQuery understood a query as the gate did: statement, tables and columns of a dry run, compared."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from model.errors import QueryDisagreesError
from sql.datatypes import SqlType
from sql.tables import read_type
from sql.validate import ValidatedQuery

# What the REST API calls types, where GoogleSQL calls them something else.
_NAMES: Final = {"INTEGER": "INT64", "FLOAT": "FLOAT64", "BOOLEAN": "BOOL", "RECORD": "STRUCT"}
_UNNAMED: Final = re.compile(r"_field_\d+")


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a dry run answers: ``tables`` as project.dataset.table, ``columns`` as (name, GoogleSQL type)."""

    statement_type: str
    tables: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]


def parse_dry_run(job: Mapping[str, Any]) -> DryRun:
    """Return what the ``jobs.insert`` answer of a dry run says, in the REST API's JSON.

    Example:
        >>> parse_dry_run({"statistics": {"query": {"statementType": "SELECT", "schema": {"fields": [
        ...     {"name": "data", "type": "BYTES"}, {"name": "n", "type": "INTEGER", "mode": "REPEATED"}]}}}})
        DryRun(statement_type='SELECT', tables=(), columns=(('data', 'BYTES'), ('n', 'ARRAY<INT64>')))
    """
    found = job.get("statistics", {}).get("query", {})
    return DryRun(
        str(found.get("statementType", "")),
        tuple(
            f"{table['projectId']}.{table['datasetId']}.{table['tableId']}"
            for table in found.get("referencedTables", ())
        ),
        column_types(found.get("schema", {}).get("fields", ())),
    )


def column_types(fields: Iterable[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    """Return names and GoogleSQL types of columns that the REST API describes.

    Example:
        >>> column_types([{"name": "n", "type": "INTEGER", "mode": "REPEATED"}])
        (('n', 'ARRAY<INT64>'),)
    """
    return tuple((field["name"], _type_text(field)) for field in fields)


def check_agreement(query: ValidatedQuery, answer: DryRun, *, project: str, behind: Collection[str] = ()) -> None:
    """Raise unless BigQuery would run the very query that the gate has judged.

    ``project`` is the one that the job runs in: what the gate knows as dataset.table is a table of it. A table
    that the gate counts and BigQuery does not, such as one in a CTE that nothing reads, is no disagreement.
    ``behind`` are the full names of tables behind the views that the query may read.

    Raises:
        QueryDisagreesError: it would not; ``details["differences"]`` names every difference.
    """
    differences: list[str] = []
    if answer.statement_type != "SELECT":
        differences.append(
            f"BigQuery reads the statement as {answer.statement_type or 'nothing'}, the gate as SELECT."
        )
    known = {table if table.count(".") > 1 else f"{project}.{table}" for table in query.tables}
    differences += [
        f"BigQuery reads {table}. The gate found {', '.join(sorted(known)) or 'no table'}."
        for table in dict.fromkeys(answer.tables)
        if table not in known and table not in behind
    ]
    differences += _column_differences([(c.name, c.type) for c in query.output], answer.columns)
    if differences:
        raise QueryDisagreesError(
            f"BigQuery and the SQL gate read the query differently: {differences[0]}",
            differences=differences,
        )


def _column_differences(ours: Sequence[tuple[str, str]], theirs: Sequence[tuple[str, str]]) -> list[str]:
    if [name.lower() for name, _ in ours] != [name.lower() for name, _ in theirs]:
        found = ", ".join(name for name, _ in theirs) or "none"
        return [f"BigQuery returns the columns {found}. The gate found {', '.join(name for name, _ in ours)}."]
    return [
        f"BigQuery returns {name} as {their_kind}. The gate found {our_kind}."
        for (name, our_kind), (_, their_kind) in zip(ours, theirs, strict=True)
        if not _is_same(read_type(our_kind), read_type(their_kind))
        or (
            # A reader of the rows finds these fields by exactly these names.
            name.lower() == "attributes"
            and read_type(our_kind).is_known
            and read_type(our_kind) != read_type(their_kind)
        )
    ]


def _is_same(ours: SqlType, theirs: SqlType) -> bool:
    # A type that the gate does not look into is none that a message's column may have.
    if not ours.is_known:
        return True
    if ours.element is not None and theirs.element is not None:
        return _is_same(ours.element, theirs.element)
    if ours.name != theirs.name or len(ours.fields) != len(theirs.fields):
        return False
    return all(
        _is_same_name(a, b) and _is_same(left, right)
        for (a, left), (b, right) in zip(ours.fields, theirs.fields, strict=True)
    )


def _is_same_name(ours: str | None, theirs: str | None) -> bool:
    # BigQuery gives a field without a name one of its own.
    if ours is None or theirs is None:
        return _UNNAMED.fullmatch(ours or theirs or "_field_0") is not None
    return ours.lower() == theirs.lower()


def _type_text(field: Mapping[str, Any]) -> str:
    kind = _NAMES.get(field["type"], field["type"])
    if kind == "STRUCT":
        fields = ", ".join(f"{inner['name']} {_type_text(inner)}" for inner in field["fields"])
        kind = f"STRUCT<{fields}>"
    return f"ARRAY<{kind}>" if field.get("mode") == "REPEATED" else kind
