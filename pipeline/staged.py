"""Which staging tables a topic's messages go to, for whoever wants to know what became of them."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from connectors.lake.staging import LakeStaging
from model.errors import RegistryError
from model.settings import Settings
from pipeline.registry import Registry, Source

if TYPE_CHECKING:
    from connectors.bigquery.staging import BigQueryStaging

_LOG: Final = structlog.get_logger(__name__)


class StagedTopics:
    """Answers for a topic with what the registry says at this moment; safe to use from many threads.

    Called with a topic's id, it returns None where no source reads that topic, or while the registry can't be
    read: then nobody can say what landed.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._fingerprint = ""
        self._by_topic: dict[str, Source] = {}

    def __call__(self, topic: str) -> "LakeStaging | BigQueryStaging | None":
        """Return the staging of ``topic``.

        Raises:
            WarehouseError: BigQuery does not say which tables an inferred source has.
        """
        try:
            with self._lock:
                source = self._read().get(topic)
        except RegistryError as exc:
            _LOG.warning("registry_unreadable", code=exc.code, error=exc.message)
            return None
        if source is None:
            return None
        if self._settings.warehouse == "bigquery":
            return self._in_bigquery(source)
        tables = self._inferred_tables(source) if source.is_inferred else [source.staging]
        return LakeStaging(self._settings.lake, tables, source.reporting)

    def _in_bigquery(self, source: Source) -> "BigQueryStaging":
        from connectors.bigquery.client import Connection, process_clients
        from connectors.bigquery.entity_table import BigQueryEntityTable
        from connectors.bigquery.staging import BigQueryStaging, StagingTexts, tables_like
        from connectors.bigquery.tables import TableId
        from sql.staged import render_landed, render_merged, render_revert

        settings = self._settings
        clients = process_clients(Connection.of(settings.project, settings.bigquery))
        table = TableId.parse(source.staging, settings.project)
        tables = tables_like(clients, table) if source.is_inferred else [table]
        texts = [
            StagingTexts(each, render_landed(str(each)), render_merged(str(each)), render_revert(str(each)))
            for each in tables
        ]
        reporting = BigQueryEntityTable(clients, source.reporting, settings.bigquery)
        return BigQueryStaging(clients, texts, reporting)

    def _read(self) -> dict[str, Source]:
        registry = Registry(self._settings.registry)
        fingerprint = registry.fingerprint()
        if fingerprint != self._fingerprint:
            files = registry.read_files()
            self._by_topic = {source.topic: source for source in registry.read_valid().sources} if files else {}
            self._fingerprint = fingerprint
        return self._by_topic

    def _inferred_tables(self, source: Source) -> list[str]:
        """Return the tables of every type of event that has come so far: they are named after the source's."""
        dataset, _, name = source.staging.rpartition(".")
        folder = Path(self._settings.lake) / dataset.rpartition(".")[2]
        found = sorted(
            path.name for path in folder.glob("*") if path.name == name or path.name.startswith(f"{name}_")
        )
        return [f"{dataset}.{each}" for each in found]
