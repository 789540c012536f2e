"""A change of a resource that waits until a second person approves it: a job of the kind ``change``."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from model.fault import FaultRecord
from model.job import JobState
from model.moment import render_moment
from model.principal import Principal

# A day is a night and the working hours after it; what still is wanted then is asked for again.
EXPIRES_AFTER: Final = timedelta(days=1)
_TIMES: Final = ("created_at", "expires_at", "decided_at", "finished_at")


@dataclass(frozen=True, slots=True)
class ChangeRequest:
    """A change that somebody asks for, and that a second person has to approve.

    ``resource`` is the kind of what changes, ``name`` its name, and ``version`` the one that the requester has
    seen. ``body`` is that of the call in JSON, and ``what`` says in a sentence what the ``verb`` would do.
    ``scope`` is the one that the verb needs, of its requester and of the one who approves it.
    """

    resource: str
    name: str
    verb: str
    body: Mapping[str, Any]
    what: str
    version: int
    scope: str
    requester: Principal

    @property
    def subject(self) -> str:
        """The subject of the job."""
        return f"{self.resource}/{self.name}"


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """The job as people see it, PENDING until somebody decides.

    CANCELLED is a rejected one. SUCCEEDED means that the change is made, and ``result`` names what it made. FAILED
    means that nobody decided in time, or that the resource changed before somebody approved; ``error`` says so.
    """

    id: str
    request: ChangeRequest
    state: JobState
    created_at: datetime
    finished_at: datetime | None
    etag: str
    decided_by: str | None = None
    decided_at: datetime | None = None
    reason: str | None = None
    result: Mapping[str, Any] | None = None
    error: FaultRecord | None = None

    @property
    def expires_at(self) -> datetime:
        """When nobody can approve it any more."""
        return self.created_at + EXPIRES_AFTER

    def to_json(self) -> dict[str, Any]:
        """Return it in the API's shape, without what the requester may do."""
        shown = {
            **asdict(self.request),
            **asdict(self),
            "kind": "change",
            "created_by": self.request.requester.name,
        }
        shown |= {name: render_moment(getattr(self, name)) for name in _TIMES}
        return {name: value for name, value in shown.items() if name not in {"request", "requester"}}

    @property
    def why(self) -> str:
        """The reason that the resource's own history gives for the change."""
        return f"{self.id}, approved by {self.decided_by}"
