"""An action that waits until a second person approves it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from model.fault import FaultRecord
from model.principal import Principal

# A day is a night and the working hours after it; what still is wanted then is asked for again.
EXPIRES_AFTER: Final = timedelta(days=1)


class ApprovalState(StrEnum):
    """The state of an approval.

    APPROVED means that the action is carried out. EXPIRED means that nobody decided in time, or that the thing
    changed before somebody approved; ``error`` says so.
    """

    WAITING = "WAITING"
    APPROVED = "APPROVED"
    REJECTED = "REJECTED"
    EXPIRED = "EXPIRED"


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """An action that somebody asks for, and that a second person has to approve.

    ``kind`` and ``name`` are of the thing that it is about, ``version`` the one that the requester has seen.
    ``request`` is the body of the call in JSON, and ``what`` says in a sentence what the action would do.
    ``scope`` is the one that the action needs, of its requester and of the one who approves it.
    """

    kind: str
    name: str
    action: str
    request: Mapping[str, Any]
    what: str
    version: int
    scope: str
    requester: Principal


@dataclass(frozen=True, slots=True)
class Approval:
    """One approval as the job store has it; ``outcome`` names what the action made, once it is carried out."""

    id: str
    asked: ApprovalRequest
    state: ApprovalState
    requested_at: datetime
    expires_at: datetime
    decided_by: str | None = None
    decided_at: datetime | None = None
    reason: str | None = None
    outcome: Mapping[str, Any] | None = None
    error: FaultRecord | None = None

    @property
    def why(self) -> str:
        """The reason that the thing's own history gives for the action."""
        return f"{self.id}, approved by {self.decided_by}"
