"""The staging tables of a topic's messages, for the verification of a backfill."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from datetime import datetime
from typing import Any, Final

import numpy as np
import structlog

from model.errors import AlreadyMergedError, RegistryError, RevertIncompleteError, WarehouseError
from model.settings import Settings
from pipeline.registry import Registry, RegistrySnapshot, Source, read_snapshot
from pipeline.repository import repository_table, tables_of
from warehouse.port import Warehouse
from warehouse.staging import Staging

_LOG: Final = structlog.get_logger(__name__)


class StagedTopics:
    """Finds the staging of a topic by the registry as it is at this moment; safe to use from many threads.

    Called with a topic's id, it returns None where no source reads that topic: then it is not known what landed.
    """

    def __init__(self, settings: Settings, warehouse: Warehouse) -> None:
        self._settings = settings
        self._warehouse = warehouse
        self._lock = threading.Lock()
        self._fingerprint = ""
        self._snapshot: RegistrySnapshot | None = None

    def __call__(self, topic: str) -> Staging | None:
        """Return the staging of ``topic``, of all sources that read it.

        Raises:
            RegistryError: the registry can't be read, or a source with a fault may read the topic.
            WarehouseError: the warehouse does not say which tables an inferred source has.
        """
        sources = self.sources(topic)
        found = None if sources else self._read()
        if found is not None and (fault := found.error or next((each.error for each in found.broken), None)):
            raise fault
        parts = [self._warehouse.open_staging(self._tables(source), source.reporting) for source in sources]
        return StagedSources(parts) if len(parts) > 1 else next(iter(parts), None)

    def sources(self, topic: str) -> list[Source]:
        """Return the sources without a fault that read ``topic``, none while the registry can't be read."""
        return [source for source in self._sources() if source.topic == topic]

    def place(self, name: str) -> tuple[str, Sequence[str]] | None:
        """Return the topic of a source and its staging tables, None where the registry has no such source.

        An inferred source has none here: each type of event has a table of its own.
        """
        found = next((source for source in self._sources() if source.name == name), None)
        if found is None:
            return None
        return found.topic, () if found.is_inferred else (found.staging,)

    def source_groups(self) -> dict[str, str]:
        """Return the group of each source without a fault, none while the registry can't be read."""
        return {source.name: source.group for source in self._sources()}

    def changed_at(self) -> datetime | None:
        """Return when the registry was last published; None where nobody knows."""
        with suppress(RegistryError):
            return Registry(self._settings.registry).changed_at()
        return None

    def tables(self) -> list[str]:
        """Return the staging and reporting tables of all sources, sorted; some may not be there yet.

        Raises:
            WarehouseError: the warehouse does not say which tables an inferred source has.
        """
        sources = self._sources()
        names = {name for source in sources for name in (*self._tables(source), source.reporting)}
        return sorted(names - {""})

    def groups(self) -> frozenset[str] | None:
        """Return the registry's groups; None while it can't be read, has a fault, or is still empty."""
        try:
            found = self._read()
        except RegistryError:
            return None
        if found is None or found.broken or found.error is not None:
            return None
        return frozenset(found.groups())

    def _sources(self) -> Sequence[Source]:
        """Return the sources that have no fault, none while the registry can't be read."""
        try:
            found = self._read()
        except RegistryError as exc:
            _LOG.warning("registry_unreadable", code=exc.code, error=exc.message)
            return ()
        return () if found is None else found.sources

    def _read(self) -> RegistrySnapshot | None:
        """Return the registry as it is now, None while it is empty."""
        with self._lock:
            registry = Registry(self._settings.registry)
            fingerprint = registry.fingerprint()
            if fingerprint != self._fingerprint:
                files = registry.read_files()
                self._snapshot = read_snapshot(files, registry.url, is_partial=True) if files else None
                self._fingerprint = fingerprint
            return self._snapshot

    def _tables(self, source: Source) -> list[str]:
        """Return the staging tables of ``source``, of an inferred one those of every type that was met so far."""
        if not source.is_inferred:
            return [source.staging]
        # Nothing is written: there is no stream and no lease.
        with closing(self._warehouse.open_row_tables(stream="", lease="")) as tables:
            return tables_of(source, tables.open(repository_table(self._settings.dead_letter_table)))


class StagedSources:
    """The rows of a backfill in the staging tables of several sources that read the same topic.

    A row landed, and is merged, when it is so in each of them: one that only some have is missing in the others.
    """

    def __init__(self, parts: Sequence[Staging]) -> None:
        self._parts = tuple(parts)

    def landed_rows(self, backfill_id: str) -> Iterator[Any]:
        """Yield an array of the ``refeed_row`` of every row that landed in each source."""
        found = None
        for part in self._parts:
            rows = np.unique(np.concatenate([np.empty(0, np.int64), *part.landed_rows(backfill_id)]))
            found = rows if found is None else np.intersect1d(found, rows, assume_unique=True)
        yield found

    def merged_rows(self, backfill_id: str) -> int:
        """Return how many rows are merged in the source that has merged the fewest."""
        return min(part.merged_rows(backfill_id) for part in self._parts)

    def delete_rows(self, backfill_id: str) -> int:
        """Delete the backfill's rows from each source, and return how many there were.

        Raises:
            AlreadyMergedError: rows of one source are, or may be, in its reporting table.
            RevertIncompleteError: some are deleted, and one failed; called again it goes on with that.
            WarehouseError: the warehouse failed, and nothing was deleted.
        """
        if merged := max(part.merged_rows(backfill_id) for part in self._parts):
            raise AlreadyMergedError(
                f"{merged} rows of {backfill_id} are already in a reporting table.", id=backfill_id, merged=merged
            )
        deleted = 0
        for part in self._parts:
            try:
                deleted += part.delete_rows(backfill_id)
            except (AlreadyMergedError, WarehouseError) as exc:
                if not deleted:
                    raise
                deleted += exc.details.get("deleted", 0)
                kind = AlreadyMergedError if isinstance(exc, AlreadyMergedError) else RevertIncompleteError
                raise kind(
                    f"Only {deleted} rows of {backfill_id} were deleted from staging: {exc.message}",
                    **{**exc.details, "id": backfill_id, "deleted": deleted},
                ) from exc
        return deleted
