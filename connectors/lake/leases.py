"""Leases beside a table: a small file for each epoch says who holds one, the Delta log counts the epochs."""

import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow.fs as pafs

from connectors.lake.errors import our_errors
from connectors.lake.files import open_folder, sync_file
from model.errors import LeaseLostError, WarehouseError

_FOLDER: Final = "_leases"
# A file that is listed may be gone when it is opened, because a newer epoch's holder has written its own.
_MOST_TRIES: Final = 10


class LakeLeases:
    """The leases of the table at ``uri``, in the folder ``_leases`` of its dataset.

    ``take_lease`` makes a new epoch in the table's log and returns it.

    Files have no compare-and-set, so a holder writes to its epoch's file alone and the highest epoch counts: a
    stream that slept through the loss of its lease changes nothing by what it writes. A holder deletes the files
    of older epochs, which do not count beside its own.
    """

    def __init__(self, uri: str, take_lease: Callable[[str], int]) -> None:
        dataset, self._prefix = uri.rsplit("/", 1)
        self._filesystem, folder = open_folder(dataset)
        self._folder = f"{folder}/{_FOLDER}"
        self._take = take_lease

    def read_lease(self, name: str) -> bytes | None:
        """Return what the holder of the highest epoch wrote last, None before anything was written."""
        for _ in range(_MOST_TRIES):
            paths = self._list(name)
            newest = max(paths, default=0)
            content = self._read(name, paths[newest]) if paths else None
            if paths and content is None:
                continue
            # Refeed wrote one file for all epochs before; such a stream may run still.
            shared = self._read(name, self._shared_path(name))
            return shared if shared is not None and (content is None or _epoch(shared) > newest) else content
        raise WarehouseError(f"Other processes take the lease {name} all the time.")

    def write_lease(self, name: str, epoch: int, content: bytes) -> None:
        """Replace what the holder of ``epoch`` wrote, all at once.

        Raises:
            LeaseLostError: another stream has taken the lease; nothing was written, or nothing that counts.
        """
        paths = self._list(name)
        if max(paths, default=0) > epoch:
            raise LeaseLostError(lease=name)
        path = f"{self._folder}/{self._prefix}.{name}.epoch-{epoch}.json"
        with our_errors(f"the lease {name} was written"):
            self._filesystem.create_dir(self._folder, recursive=True)
            self._replace(path, content)
            for older in (paths[number] for number in paths if number < epoch):
                with suppress(FileNotFoundError):
                    self._filesystem.delete_file(older)

    def take_lease(self, name: str) -> int:
        """Return a new epoch; commits under an older one are refused from now on."""
        return self._take(name)

    def _replace(self, path: str, content: bytes) -> None:
        """Write a file whole: an object appears whole; a local file is made beside and moved into place."""
        if not isinstance(self._filesystem, pafs.LocalFileSystem):
            with self._filesystem.open_output_stream(path) as file:
                file.write(content)
            return
        beside = Path(f"{path}.{os.getpid()}")
        try:
            beside.write_bytes(content)
            sync_file(str(beside))
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise

    def _list(self, name: str) -> dict[int, str]:
        """Return the lease's files by their epochs."""
        pattern = re.compile(rf"{re.escape(f'{self._prefix}.{name}')}\.epoch-(\d+)\.json")
        try:
            found = self._filesystem.get_file_info(pafs.FileSelector(self._folder, allow_not_found=True))
        except OSError as exc:
            raise WarehouseError(f"The leases in {self._folder} can't be listed: {exc}") from exc
        return {int(match[1]): info.path for info in found if (match := pattern.fullmatch(info.base_name))}

    def _read(self, name: str, path: str) -> bytes | None:
        try:
            with self._filesystem.open_input_stream(path) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise WarehouseError(f"The lease {name} can't be read: {exc}") from exc

    def _shared_path(self, name: str) -> str:
        return f"{self._folder}/{self._prefix}.{name}.json"


def _epoch(content: bytes) -> int:
    return int(json.loads(content)["epoch"])
