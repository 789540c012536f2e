"""Opens the warehouse that settings or a specification name: the only place that knows which ones there are.

Google's clients and the lake's engine are slow to load: each is imported when it is the one that is meant.
"""

from collections.abc import Mapping
from typing import Any, Final

from model.settings import Settings
from warehouse.archive import ArchiveWriter
from warehouse.port import Warehouse
from warehouse.rows import RowWriter

_BIGQUERY: Final = "bigquery"


def open_warehouse(settings: Settings) -> Warehouse:
    """Return the warehouse of REFEED_WAREHOUSE; nothing is created or read yet.

    Raises:
        SettingsError: BigQuery is meant, and the settings name half of a stand-in.
    """
    if settings.warehouse == _BIGQUERY:
        from warehouse.bigquery.warehouse import BigQueryWarehouse

        return BigQueryWarehouse.of(settings)
    from warehouse.lake.warehouse import LakeWarehouse

    return LakeWarehouse.of(settings)


def warehouse_from_json(fields: Mapping[str, Any]) -> Warehouse:
    """Return the warehouse that its ``to_json`` described, in any process."""
    if fields["warehouse"] == _BIGQUERY:
        from warehouse.bigquery.warehouse import BigQueryWarehouse

        return BigQueryWarehouse.from_json(fields)
    from warehouse.lake.warehouse import LakeWarehouse

    return LakeWarehouse.from_json(fields)


def open_archive_writer(fields: Mapping[str, Any]) -> ArchiveWriter:
    """Return the writer that its ``as_json`` described, in a task."""
    if _kind_of(fields) == _BIGQUERY:
        from connectors.bigquery.writer import BigQueryWriter

        return BigQueryWriter.from_json(fields)
    from connectors.lake.files import ArchiveWriter as LakeWriter

    return LakeWriter.from_json(fields)


def open_row_writer(fields: Mapping[str, Any]) -> RowWriter:
    """Return the writer that its ``as_json`` described, in a task."""
    if _kind_of(fields) == _BIGQUERY:
        from connectors.bigquery.row_writer import BigQueryRowWriter

        return BigQueryRowWriter.from_json(fields)
    from connectors.lake.rows import RowWriter as LakeRowWriter

    return LakeRowWriter.from_json(fields)


def _kind_of(fields: Mapping[str, Any]) -> str:
    """Return which warehouse a writer is of: BigQuery's says how to reach it, a lake's names a folder."""
    return _BIGQUERY if "connection" in fields else "lake"
