"""Removals of uploaded manifests that may be a mistake: they wait for a second person."""

from typing import Any, Final

from jobs.store import JobStore
from model.approval import Approval, ApprovalRequest, ApprovalState
from model.errors import ManifestChangedError
from model.manifest_record import ManifestRecord
from model.manifest_upload import ManifestUpload
from model.principal import SCHEDULES_APPLY, Principal
from rollout.approvals import Act, ApprovalService
from rollout.manifests.service import ManifestService

KIND: Final = "manifest"
REMOVE: Final = "remove"


class RemovalApprovals:
    """Asks for the approval of removals, which carries them out."""

    def __init__(self, approvals: ApprovalService) -> None:
        self._approvals = approvals

    def ask(self, upload: ManifestUpload, record: ManifestRecord, why: str, *, principal: Principal) -> str:
        """Have the removal wait, and return the approval's id.

        Raises:
            ForbiddenError: ``principal`` may not remove it.
        """
        what = f"Remove {record.name}. {why}"
        request = {"file": upload.file}
        asked = ApprovalRequest(
            KIND, record.name, REMOVE, request, what, record.version, SCHEDULES_APPLY, requester=principal
        )
        return self._approvals.ask(asked).id

    def has_expired(self, approval_id: str, *, principal: Principal) -> bool:
        """Whether nobody decided in time, so that it may be asked for again."""
        return self._approvals.get(approval_id, principal=principal).state is ApprovalState.EXPIRED


def manifest_actions(store: JobStore, manifests: ManifestService) -> dict[tuple[str, str], Act]:
    """Return what carries out each action on manifests that may wait for a second person."""

    def remove(approval: Approval) -> dict[str, Any]:
        asked = approval.asked
        source, file = asked.requester.name, asked.request["file"]
        record = manifests.get(asked.name, principal=asked.requester)
        gone = {each.file for each in store.list_uploads(source) if each.gone_at is not None}
        if record.version != asked.version or file not in gone:
            raise ManifestChangedError(f"{asked.name} has changed, or its file is there again.", name=asked.name)
        manifests.remove(asked.name, principal=asked.requester, source=source)
        store.note_removed(source, file, f"the file has gone; {approval.why}")
        return {"manifest": asked.name}

    return {(KIND, REMOVE): remove}
