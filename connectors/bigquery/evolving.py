"""How a table comes to hold rows of a wanted schema: made, or changed as the very version that was read."""

from collections.abc import Callable
from typing import Any, Final

from google.api_core import exceptions as api

from connectors.bigquery.client import ONCE, Clients
from connectors.bigquery.errors import our_errors, retry_passing
from connectors.bigquery.row_schema import from_bigquery, to_bigquery
from connectors.bigquery.tables import TableId, read_table
from model.errors import WarehouseError
from model.schema import Evolution, RowSchema, evolution_error, plan_evolution

_TRIES: Final = 5
_CHANGE_SECONDS: Final = 60.0


def plan_table(found: Any, wanted: RowSchema) -> Evolution:
    """Return how ``found``, a table as BigQuery describes it or None, comes to hold rows of ``wanted``."""
    current = RowSchema((), wanted.description) if found is None else from_bigquery(found)
    return plan_evolution(current, wanted)


def evolve_table(
    clients: Clients, table: TableId, wanted: RowSchema, create: Callable[[RowSchema], None]
) -> Evolution:
    """Create the table with ``create`` or widen it, and return what was done; it is never narrowed.

    Raises:
        EvolutionRefusedError: it can't hold rows of ``wanted``; ``details["differences"]`` says why, and nothing
            was changed.
        WarehouseError: BigQuery failed, or others changed the table all the time.
    """

    def call() -> Evolution | None:
        found = read_table(clients, table)
        evolution = plan_table(found, wanted)
        if evolution.refused:
            raise evolution_error(str(table), evolution)
        if found is None:
            create(evolution.schema)
        elif evolution.changes and not _change(clients, table, found, evolution.schema):
            return None
        return evolution

    for _ in range(_TRIES):
        if (done := retry_passing(call, seconds=_CHANGE_SECONDS)) is not None:
            return done
    raise WarehouseError(f"{table} is changed by others all the time.")


def _change(clients: Clients, table: TableId, found: Any, schema: RowSchema) -> bool:
    """Change the very version that was read; False when somebody else changed it meanwhile."""
    found.schema = to_bigquery(schema)
    found.description = schema.description
    with our_errors(f"changing {table}"):
        try:
            # The table's ETag goes along as If-Match.
            clients.rest().update_table(found, ["schema", "description"], **ONCE)
        except api.PreconditionFailed:
            return False
    return True
