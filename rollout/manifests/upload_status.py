"""What people see of manifests that come by upload: each file, its faults, and what waits for them."""

from datetime import datetime

from jobs.inbox_items import InboxItem
from jobs.store import JobStore
from model.job import JobState
from model.manifest_upload import ManifestUpload, UploadSource
from model.principal import READ, ROLLOUTS_APPLY, SCHEDULES_APPLY, Principal


class UploadStatus:
    """The files of the source that this deployment watches; nothing where ``source`` is None.

    Raises:
        ForbiddenError: any call whose ``principal`` lacks the scope.
    """

    def __init__(self, store: JobStore, source: str | None) -> None:
        self._store = store
        self._source = source

    def list_uploads(self, *, principal: Principal) -> list[ManifestUpload]:
        """Return the files whose manifests have not been removed, by name."""
        principal.require_any(READ, SCHEDULES_APPLY, ROLLOUTS_APPLY)
        if self._source is None:
            return []
        return [each for each in self._store.list_uploads(self._source) if each.removed_at is None]

    def find_source(self, *, principal: Principal) -> UploadSource | None:
        """Return the source that is watched, None where there is none."""
        principal.require_any(READ, SCHEDULES_APPLY, ROLLOUTS_APPLY)
        if self._source is None:
            return None
        found = {each.source: each for each in self._store.list_upload_sources()}
        return found.get(self._source, UploadSource(self._source))

    def list_inbox(self, *, principal: Principal) -> list[InboxItem]:
        """Return the files with a fault, and the source itself where it can't be read.

        A removal that waits is an approval of its own.
        """
        source = self.find_source(principal=principal)
        if source is None:
            return []
        found = []
        if source.problem is not None:
            found.append(_item(source.source, source.source, source.problem_at, source.problem))
        for each in self.list_uploads(principal=principal):
            if each.fault is not None and each.gone_at is None:
                message = f"Generation {each.generation} is not applied. {each.fault}"
                found.append(_item(source.source, each.file, each.noted_at, message))
        return found


def _item(source: str, name: str, since: datetime | None, message: str) -> InboxItem:
    return InboxItem("failure", "manifest", name, JobState.FAILED, None, source, since, message)
