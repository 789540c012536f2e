"""Everything that runs, what waits for a person, and what is wrong."""

from datetime import UTC, datetime
from typing import Any, Final

from fastapi import APIRouter, Request

from api.answers import Caller, Merges, OpenInventory, Service, SlowCalls, problems
from api.schemas_status import InboxOut, StatusOut
from api.state import state_of
from inventory.status import StatusProblem
from jobs.inbox_items import InboxItem

router: Final = APIRouter(tags=["status"])
_FAILED: Final = "The warehouse or Pub/Sub failed or refused."
# Where no time is known a job has waited for ever.
_EVER: Final = datetime.min.replace(tzinfo=UTC)
_WRONG: Final = {"failure": "job_failed", "incomplete": "backfill_incomplete"}


@router.get("/status", operation_id="getStatus", response_model=StatusOut, responses=problems(s502=_FAILED))
def get_status(
    request: Request,
    *,
    inventory: OpenInventory,
    service: Service,
    merges: Merges,
    caller: Caller,
    slow: SlowCalls,
) -> Any:
    """Show everything that runs on one screen: streams, backfills, merges, what waits and what is wrong."""
    with slow:
        condition = inventory.check_streams(principal=caller)
        inbox = _inbox(service.list_inbox(principal=caller), merges.list_inbox(principal=caller))
        wrong = [
            *(
                StatusProblem("not_ready", name, said)
                for name, said in state_of(request.app).open.starting.items()
            ),
            *condition.problems,
            *(StatusProblem(_WRONG[item.kind], item.id, item.message) for item in inbox if item.kind in _WRONG),
        ]
        return {
            "is_ok": not wrong,
            "problems": [problem.to_json() for problem in wrong],
            "streams": [stream.to_json() for stream in condition.streams],
            "backfills": [backfill.to_json() for backfill in service.list_active(principal=caller)],
            "merges": [merge.to_json() for merge in merges.list_active(principal=caller)],
            "inbox": [item.to_json() for item in inbox],
        }


@router.get("/inbox", operation_id="getInbox", response_model=InboxOut)
def get_inbox(service: Service, merges: Merges, caller: Caller) -> Any:
    """List what waits for a person: canaries, approvals, pauses, failures, backfills that did not land whole."""
    items = _inbox(service.list_inbox(principal=caller), merges.list_inbox(principal=caller))
    return {"items": [item.to_json() for item in items]}


def _inbox(*lists: list[InboxItem]) -> list[InboxItem]:
    return sorted((item for items in lists for item in items), key=lambda item: item.since or _EVER)
