"""Creates a table or widens it for rows of a schema, guarded by its ETag."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from google.api_core import exceptions as api

from connectors.bigquery.client import ONCE, Clients
from connectors.bigquery.errors import call_bigquery
from connectors.bigquery.table_id import TableId
from connectors.bigquery.tables.catalog import read_table
from connectors.bigquery.tables.schema import from_bigquery, to_bigquery
from connectors.bigquery.tables.successors import spread
from model.errors import WarehouseError
from model.schema import Difference, Evolution, Field, RowSchema, evolution_error, plan_evolution

_TRIES: Final = 5
_CHANGE_SECONDS: Final = 60.0
# "Quotas and limits", Standard tables: columns per table, those in records among them.
_MAX_COLUMNS: Final = 10_000


def plan_table(found: Any, wanted: RowSchema, *, may_widen: bool = False) -> Evolution:
    """Return how the table ``found`` has to change to hold rows of ``wanted``; None is a table to create.

    With ``may_widen`` a field whose type became wider gets a second column beside its first, which is a
    change like any other new column.
    """
    if found is None:
        return plan_evolution(RowSchema((), wanted.description), wanted)
    current = from_bigquery(found)
    fields = spread(current.fields, wanted.fields, may_widen=may_widen)
    evolution = plan_evolution(current, RowSchema(tuple(fields), wanted.description))
    count = _count(evolution.schema.fields)
    if evolution.changes and count > _MAX_COLUMNS:
        fault = Difference("the table", f"would have {count} columns, but BigQuery allows only {_MAX_COLUMNS}")
        evolution = replace(evolution, refused=(*evolution.refused, fault))
    return evolution


def _count(fields: Sequence[Field]) -> int:
    return sum(1 + _count(field.fields) for field in fields)


def evolve_table(
    clients: Clients,
    table: TableId,
    wanted: RowSchema,
    create: Callable[[RowSchema], None],
    *,
    may_widen: bool = False,
) -> Evolution:
    """Create the table with ``create`` or widen it, and return what was done; it is never narrowed.

    ``may_widen`` is that of :func:`plan_table`.

    Raises:
        EvolutionRefusedError: it can't hold rows of ``wanted``; ``details["differences"]`` says why, and nothing
            was changed.
        WarehouseError: BigQuery failed, or others changed the table all the time.
    """

    def call() -> Evolution | None:
        found = read_table(clients, table)
        evolution = plan_table(found, wanted, may_widen=may_widen)
        if evolution.refused:
            raise evolution_error(str(table), evolution)
        if found is None:
            create(evolution.schema)
        elif evolution.changes and not _change(clients, found, evolution.schema):
            return None
        return evolution

    for _ in range(_TRIES):
        if (done := call_bigquery(call, f"changing {table}", seconds=_CHANGE_SECONDS)) is not None:
            return done
    raise WarehouseError(f"Other processes keep changing {table}. Try again.")


def _change(clients: Clients, found: Any, schema: RowSchema) -> bool:
    """Change the very version that was read; False when somebody else changed it meanwhile."""
    found.schema = to_bigquery(schema)
    found.description = schema.description
    try:
        # The table's ETag goes along as If-Match.
        clients.rest().update_table(found, ["schema", "description"], **ONCE)
    except api.PreconditionFailed:
        return False
    return True
