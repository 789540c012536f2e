"""The volumes of an archive in a lake, from the ends of its files; no row is read."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from connectors.lake.data_files import DataFile
from connectors.lake.errors import our_errors
from connectors.lake.files import VOLUMES_KEY, count_volumes
from connectors.lake.objects import Objects, is_bucket, open_objects, sync_file
from connectors.lake.reading import OpenFiles, open_files
from connectors.lake.tables import LakeTable
from model.volume import HourCounts, HourVolumes, add_counts, hours_of, volumes_of
from model.window import Window

# Volumes of files that an earlier Refeed wrote, a file each. Vacuum leaves folders with such a name alone:
# https://github.com/delta-io/delta/blob/master/PROTOCOL.md, and delta-rs' vacuum skips hidden folders.
_BESIDE: Final = "_refeed_volumes"
_COLUMNS: Final = ("topic", "ingest_time", "data")
# An object store answers each request in some ten milliseconds.
_READERS: Final = 16


@dataclass(slots=True)
class _Partition:
    """What is known of the files of a partition: their sum, and the times of those that nobody has counted."""

    names: set[str] = field(default_factory=set)
    counts: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    unknown: dict[str, Window] = field(default_factory=dict)


class LakeVolumes:
    """Reads volumes from the files of ``archive``; one object per thread.

    Each file of a snapshot is opened once, at its end, for as long as nothing is taken out of its partition. So
    the volumes are those of the snapshot, whatever became of the stream that wrote it.
    """

    def __init__(self, archive: LakeTable) -> None:
        self._archive = archive
        self._partitions: dict[datetime, _Partition] = {}

    def read(self, window: Window) -> HourVolumes:
        """Return the volumes of the hours that begin in ``window``; none without an archive.

        Raises:
            WarehouseError: the archive can't be read.
        """
        found: dict[datetime, set[str]] = {}
        for file in self._files(window):
            found.setdefault(file.partition, set()).add(self._name(file))
        for partition, names in found.items():
            self._partitions[partition] = self._bring_up(self._partitions.get(partition), names)
        for gone in [one for one in self._partitions if one not in found and window.contains(one)]:
            del self._partitions[gone]
        touched = [self._partitions[partition] for partition in found]
        unknown = [hours_of(times) for one in touched for times in one.unknown.values()]
        return volumes_of((one.counts for one in touched), window, unknown)

    def uncounted(self) -> list[DataFile]:
        """Return the files of the newest snapshot that nobody has counted: those of an earlier Refeed."""
        files = {self._name(file): file for file in self._files(None)}
        unknown = self._bring_up(None, set(files)).unknown
        return [files[name] for name in sorted(unknown)]

    def count(self, file: DataFile) -> None:
        """Count a file by reading its payloads, and keep its volumes beside the table.

        Raises:
            WarehouseError: it can't be read, or the volumes can't be written.
        """
        name = self._name(file)
        counts: dict[str, dict[str, tuple[int, int]]] = {}
        for batch in self._archive.writer().read_columns([name], _COLUMNS):
            add_counts(counts, count_volumes(pa.Table.from_batches([batch])))
        content, beside = json.dumps(counts).encode(), f"{self._archive.uri}/{_BESIDE}"
        with our_errors(f"writing the volumes of {name}"):
            if is_bucket(beside):
                open_objects(beside).put_new(f"{name}.json", content)
                return
            path = Path(beside, f"{name}.json.tmp")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
            sync_file(str(path))
            path.replace(path.with_suffix(""))

    def _files(self, window: Window | None) -> Sequence[DataFile]:
        return self._archive.data_files(window) if self._archive.exists() else ()

    def _bring_up(self, known: _Partition | None, names: set[str]) -> _Partition:
        """Return what is known of a partition that has the files ``names`` now."""
        if known is None or known.names - names:
            known = _Partition()
        fresh = names - known.names
        if not fresh and not known.unknown:
            return known
        with our_errors("reading the volumes of the archive's files"), ThreadPoolExecutor(_READERS) as pool:
            # All of it is read before any of it counts: one that fails is read again as a whole.
            ends = self._read_ends(sorted(fresh))
            times = {name: found for name, found in ends.items() if isinstance(found, Window)} | known.unknown
            beside = open_objects(f"{self._archive.uri}/{_BESIDE}")
            kept = {name.removesuffix(".json") for name in beside.list()} & times.keys() if times else set()
            counted = list(pool.map(lambda name: _read_beside(beside, name), sorted(kept)))
        for counts in (*(found for found in ends.values() if not isinstance(found, Window)), *counted):
            add_counts(known.counts, counts)
        known.names |= fresh
        known.unknown = {name: found for name, found in times.items() if name not in kept}
        return known

    def _read_ends(self, names: Sequence[str]) -> Mapping[str, HourCounts | Window]:
        """Return each file's volumes, or the times of its rows where it does not have them."""
        paths = {name: f"{self._archive.uri}/{name}" for name in names}
        with open_files(list(paths.values())) as files:
            return {name: _read_end(files, path) for name, path in paths.items()}

    def _name(self, file: DataFile) -> str:
        return file.path.removeprefix(f"{self._archive.uri}/")


def _read_end(files: OpenFiles, path: str) -> HourCounts | Window:
    """Return a file's volumes, or the times of its rows where it does not have them."""
    with files.open(path) as file:
        metadata = file.metadata
        kept = (metadata.metadata or {}).get(VOLUMES_KEY)
        return json.loads(kept) if kept is not None else _times_of(metadata)


def _times_of(metadata: Any) -> Window:
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    leaves = [group.column(place) for group in groups for place in range(group.num_columns)]
    ends = [leaf.statistics for leaf in leaves if leaf.path_in_schema == "ingest_time"]
    return Window(min(end.min for end in ends), max(end.max for end in ends))


def _read_beside(beside: Objects, name: str) -> HourCounts:
    found = beside.read(f"{name}.json")
    if found is None:
        raise FileNotFoundError(f"{name}.json is missing in {_BESIDE}.")
    counts: HourCounts = json.loads(found.content)
    return counts
