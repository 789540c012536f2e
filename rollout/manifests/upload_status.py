"""What people see of manifests that come by upload: each file, its fault, and the files that have gone."""

from collections.abc import Collection, Iterator
from datetime import datetime
from typing import Final

from jobs.inbox_items import InboxItem
from jobs.store import JobStore
from model.job import JobState
from model.manifest_upload import ManifestUpload
from model.principal import READ, ROLLOUTS_APPLY, SCHEDULES_APPLY, STREAMS_READ, Principal

_NAMED: Final = 10
# How the name of a source begins.
UPLOAD: Final = "upload:"


class UploadStatus:
    """The files of the ``source`` that this deployment watches; nothing where that is None.

    Raises:
        ForbiddenError: any call whose ``principal`` lacks the scope.
    """

    def __init__(self, store: JobStore, source: str | None) -> None:
        self.source = source
        self._store = store

    def list_uploads(self, *, principal: Principal) -> list[ManifestUpload]:
        """Return the files by name, and those that have gone and whose manifests are still there."""
        principal.require_any(READ, STREAMS_READ, SCHEDULES_APPLY, ROLLOUTS_APPLY)
        return [] if self.source is None else self._store.list_uploads(self.source)

    def find_problem(self, *, principal: Principal) -> ManifestUpload | None:
        """Return the record of a source that can't be read; None where it can."""
        principal.require_any(READ, STREAMS_READ, SCHEDULES_APPLY, ROLLOUTS_APPLY)
        found = None if self.source is None else self._store.find_source(self.source)
        return None if found is None or found.fault is None else found

    def list_inbox(self, *, principal: Principal) -> list[InboxItem]:
        """Return a source that can't be read, files with a fault, and all files that have gone as one item.

        Of a source that REFEED_MANIFESTS named before, the item is about its manifests, which go on.
        """
        found = list(self._list_left())
        if (itself := self.find_problem(principal=principal)) is not None:
            found.append(_item(itself.source, itself.source, itself.noted_at, str(itself.fault)))
        uploads = self.list_uploads(principal=principal)
        for each in uploads:
            if each.fault is not None and each.gone_at is None:
                message = f"Generation {each.generation} is not applied. {each.fault}"
                found.append(_item(each.source, each.file, each.noted_at, message))
        gone = {each.file.removesuffix(".yaml"): each.gone_at for each in uploads if each.gone_at is not None}
        if gone:
            message = (
                f"The files of these manifests no longer exist: {_name_some(gone)}. The "
                "manifests stay. Put the files back, or use 'refeed delete NAME' to remove a manifest."
            )
            found.append(_item(uploads[0].source, uploads[0].source, min(gone.values()), message))
        return found

    def _list_left(self) -> Iterator[InboxItem]:
        records = [each for each in self._store.list_manifests() if each.source.startswith(UPLOAD)]
        for source in sorted({each.source for each in records} - {self.source}):
            left = {each.name: each.changed_at for each in records if each.source == source}
            message = (
                f"REFEED_MANIFESTS does not name this folder any more, and its manifests stay: "
                f"{_name_some(left)}. Set REFEED_MANIFESTS again, or use 'refeed delete NAME'."
            )
            yield _item(source, source, max(left.values()), message)


def _name_some(names: Collection[str]) -> str:
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join([*names][:_NAMED])}{rest}"


def _item(source: str, name: str, since: datetime, message: str) -> InboxItem:
    return InboxItem("failure", "manifest", name, JobState.FAILED, None, source, since, message)
