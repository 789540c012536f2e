"""Removals of uploaded manifests that may be a mistake: they wait for a second person."""

from typing import Any, Final

from jobs.store import JobStore
from model.approval import Approval
from model.errors import ManifestChangedError
from rollout.approvals import Act
from rollout.manifests.service import ManifestService

KIND: Final = "manifest"
REMOVE: Final = "remove"


def manifest_actions(store: JobStore, manifests: ManifestService) -> dict[tuple[str, str], Act]:
    """Return what carries out each action on manifests that may wait for a second person."""

    def remove(approval: Approval) -> dict[str, Any]:
        asked = approval.asked
        source, file = asked.requester.name, asked.request["file"]
        record = manifests.get(asked.name, principal=asked.requester)
        gone = {each.file for each in store.list_uploads(source) if each.gone_at is not None}
        if record.version != asked.version or file not in gone:
            raise ManifestChangedError(
                f"The manifest {asked.name} has changed, or its file exists again. Nothing was removed.",
                name=asked.name,
            )
        manifests.remove(asked.name, principal=asked.requester, source=source)
        store.note_removed(source, file, f"the file has gone; {approval.why}")
        return {"manifest": asked.name}

    return {(KIND, REMOVE): remove}
