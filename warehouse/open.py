"""Opens the warehouse that settings or a specification name: the only place that knows which ones there are."""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from model.format import Format
from model.settings import Settings
from warehouse.port import Warehouse


class Kind(Protocol):
    """How one kind of warehouse is made; its class is such."""

    def formats(self) -> Mapping[str, Format]:
        """Return the formats of what a stream keeps of its attempts there, and its next start reads."""

    def of(self, settings: Settings) -> Warehouse:
        """Return the one that ``settings`` name."""

    def from_json(self, fields: Mapping[str, Any]) -> Warehouse:
        """Return the one that its ``to_json`` described."""


def open_warehouse(settings: Settings) -> Warehouse:
    """Return the warehouse of REFEED_WAREHOUSE; nothing is created or read yet.

    Raises:
        SettingsError: BigQuery is meant, and the settings name half of a stand-in.
    """
    return KINDS[settings.warehouse]().of(settings)


def warehouse_from_json(fields: Mapping[str, Any]) -> Warehouse:
    """Return the warehouse that its ``to_json`` described, in any process."""
    return KINDS[fields["warehouse"]]().from_json(fields)


def warehouse_formats() -> dict[str, Mapping[str, Format]]:
    """Return the formats of each kind of warehouse, by its name in REFEED_WAREHOUSE."""
    return {name: kind().formats() for name, kind in KINDS.items()}


def warehouse_of_specification(specification: Mapping[str, Any]) -> Warehouse:
    """Return the warehouse that a backfill's specification names, as this Refeed writes it or as earlier ones did.

    Those had no ``to_json`` of a warehouse, but an "archive": a lake's path or a connection to BigQuery, and the
    archive's table.
    """
    if "warehouse" in specification:
        return warehouse_from_json(specification["warehouse"])
    place = specification["archive"]
    if "connection" in place:
        from warehouse.bigquery.warehouse import BigQueryWarehouse

        return BigQueryWarehouse.from_place(place)
    from warehouse.lake.warehouse import LakeWarehouse

    return LakeWarehouse.from_place(place)


# Google's clients and the lake's engine are slow to load: each is imported when it is the one that is meant.
def _lake() -> Kind:
    from warehouse.lake.warehouse import LakeWarehouse

    return LakeWarehouse


def _bigquery() -> Kind:
    from warehouse.bigquery.warehouse import BigQueryWarehouse

    return BigQueryWarehouse


KINDS: Final[dict[str, Callable[[], Kind]]] = {"lake": _lake, "bigquery": _bigquery}
