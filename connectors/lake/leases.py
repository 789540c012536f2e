"""Leases beside the archive: a small file says who holds one, the Delta log counts how often it was taken."""

import os
from pathlib import Path
from typing import Final

import pyarrow.fs as pafs

from connectors.lake.files import sync_file
from connectors.lake.tables import LakeTable
from model.errors import WarehouseError

_FOLDER: Final = "_leases"


class LakeLeases:
    """The leases of one archive, in the folder ``_leases`` of its dataset."""

    def __init__(self, archive: LakeTable) -> None:
        self._archive = archive
        dataset, table = archive.uri.rsplit("/", 1)
        uri = dataset if "://" in dataset else Path(dataset).absolute().as_uri()
        self._filesystem, folder = pafs.FileSystem.from_uri(uri)
        self._folder = f"{folder}/{_FOLDER}"
        self._prefix = table

    def read_lease(self, name: str) -> bytes | None:
        """Return what was written last, None when nothing was."""
        try:
            with self._filesystem.open_input_stream(self._path(name)) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise WarehouseError(f"The lease {name} can't be read: {exc}") from exc

    def write_lease(self, name: str, content: bytes) -> None:
        """Replace what is there, all at once."""
        path = self._path(name)
        try:
            self._filesystem.create_dir(self._folder, recursive=True)
            # An object appears whole; a local file is made beside and moved into place.
            is_local = isinstance(self._filesystem, pafs.LocalFileSystem)
            target = f"{path}.{os.getpid()}" if is_local else path
            with self._filesystem.open_output_stream(target) as file:
                file.write(content)
            if is_local:
                sync_file(target)
                self._filesystem.move(target, path)
        except OSError as exc:
            raise WarehouseError(f"The lease {name} can't be written: {exc}") from exc

    def take_lease(self, name: str) -> int:
        """Return a new epoch; commits under an older one are refused from now on."""
        return self._archive.take_lease(name)

    def _path(self, name: str) -> str:
        return f"{self._folder}/{self._prefix}.{name}.json"
