"""Wires the catalog of sources."""

from inventory.sources import SourceCatalog, SourceFigures
from jobs.store import JobStore
from model.settings import Settings
from reporting.service import list_merged_sources
from streams.folder import read_statuses
from warehouse.port import Warehouse
from warehouse.queries import Queries


def assemble_sources(settings: Settings, warehouse: Warehouse, queries: Queries, store: JobStore) -> SourceCatalog:
    """Return the catalogue of this deployment's sources; its arguments stay open when it closes."""
    figures = SourceFigures(
        queries.counts,
        statuses=lambda: (status for _, status in read_statuses(settings.home)),
        merged=lambda since: list_merged_sources(store, since),
    )
    return SourceCatalog(
        settings.registry,
        figures,
        lambda: warehouse.open_row_tables(stream="", lease=""),
        settings.dead_letter_table,
    )
