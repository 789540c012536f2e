"""Leases beside a table: a small file for each epoch says who holds one, the Delta log counts the epochs."""

import json
import re
from collections.abc import Callable, Iterable
from typing import Final

from connectors.lake.errors import our_errors
from connectors.lake.objects import open_objects
from connectors.object_store.bucket import Tag
from model.errors import LeaseLostError, WarehouseError

_FOLDER: Final = "_leases"
# A file that is listed may be gone when it is opened, because a newer epoch's holder has written its own.
_MOST_TRIES: Final = 10


class LakeLeases:
    """The leases of the table at ``uri``, in the folder ``_leases`` of its dataset.

    ``take_lease`` makes a new epoch in the table's log and returns it.

    A holder writes to its epoch's file alone and the highest epoch counts: a stream that slept through the loss of
    its lease changes nothing by what it writes. A holder deletes the files of older epochs, which do not count
    beside its own. So a renewal needs to look at nothing: it replaces the file that this object wrote last, by one
    request where that is in a bucket, and where the file is another one or gone, it looks why.
    """

    def __init__(self, uri: str, take_lease: Callable[[str], int]) -> None:
        dataset, self._prefix = uri.rsplit("/", 1)
        self._objects = open_objects(f"{dataset}/{_FOLDER}")
        self._take = take_lease
        self._written: dict[str, Tag] = {}

    def read_lease(self, name: str) -> bytes | None:
        """Return what the holder of the highest epoch wrote last, None before anything was written."""
        for _ in range(_MOST_TRIES):
            files = self._list_files(name)
            epochs = self._by_epoch(name, files)
            newest = max(epochs, default=0)
            content = self._read(name, epochs[newest]) if epochs else None
            if epochs and content is None:
                continue
            # Refeed wrote one file for all epochs before; such a stream may run still.
            old = f"{self._prefix}.{name}.json"
            shared = self._read(name, old) if old in files else None
            return shared if shared is not None and (content is None or _epoch(shared) > newest) else content
        raise WarehouseError(f"Other processes keep taking the lease {name}.")

    def write_lease(self, name: str, epoch: int, content: bytes) -> None:
        """Replace what the holder of ``epoch`` wrote, all at once.

        Raises:
            LeaseLostError: another stream has taken the lease; nothing was written, or nothing that counts.
        """
        own = f"{self._prefix}.{name}.epoch-{epoch}.json"
        with our_errors(f"the lease {name} was written"):
            tag = self._written.pop(own, None)
            if tag is not None:
                tag = self._objects.replace(own, content, tag)
            self._written[own] = self._claim(name, epoch, own, content) if tag is None else tag

    def take_lease(self, name: str) -> int:
        """Return a new epoch; commits under an older one are refused from now on."""
        return self._take(name)

    def now(self) -> float:
        """Return the time by the clock of the storage, which is not a machine's in a bucket."""
        with our_errors("the clock of the storage was read"):
            return self._objects.now()

    def _claim(self, name: str, epoch: int, own: str, content: bytes) -> Tag:
        """Write ``own``, the file of ``epoch``, where no higher one has a file; delete older ones."""
        epochs = self._list(name)
        if max(epochs, default=0) > epoch:
            raise LeaseLostError(lease=name)
        for _ in range(_MOST_TRIES):
            found = self._objects.read(own) if epoch in epochs else None
            tag = (
                self._objects.put_new(own, content)
                if found is None
                else self._objects.replace(own, content, found.tag)
            )
            if tag is not None:
                for older in (file for number, file in epochs.items() if number < epoch):
                    self._objects.delete(older)
                return tag
            # An earlier try of this holder came in only now.
            epochs[epoch] = own
        raise WarehouseError(f"Other processes keep writing the lease {name}.")

    def _list(self, name: str) -> dict[int, str]:
        """Return the lease's files by their epochs."""
        return self._by_epoch(name, self._list_files(name))

    def _by_epoch(self, name: str, files: Iterable[str]) -> dict[int, str]:
        pattern = re.compile(rf"{re.escape(f'{self._prefix}.{name}')}\.epoch-(\d+)\.json")
        return {int(match[1]): file for file in files if (match := pattern.fullmatch(file))}

    def _list_files(self, name: str) -> list[str]:
        with our_errors(f"the files of the lease {name} were listed"):
            return self._objects.list()

    def _read(self, name: str, file: str) -> bytes | None:
        with our_errors(f"the lease {name} was read"):
            found = self._objects.read(file)
        return None if found is None else found.content


def _epoch(content: bytes) -> int:
    return int(json.loads(content)["epoch"])
