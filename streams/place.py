"""Where a stream reads and writes: its project and its tables, as its status says it."""

from collections.abc import Mapping
from typing import Any, Final

from warehouse.port import Warehouse

# What of a warehouse's description says where its tables are; the rest may change.
_ADDRESS: Final = ("lake", "project", "archive_table", "dead_letter_table")


def place_of(project: str, warehouse: Warehouse) -> dict[str, Any]:
    """Return the place of a stream that takes messages of ``project`` into ``warehouse``."""
    return {"project": project, "warehouse": warehouse.name, "address": address_of(warehouse.to_json())}


def address_of(warehouse: Mapping[str, Any]) -> dict[str, str]:
    """Return where a warehouse's tables are, of what its ``to_json`` says."""
    return {name: str(warehouse[name]) for name in _ADDRESS if name in warehouse}
