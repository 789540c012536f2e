"""Everything that runs, what waits for a person, and what is wrong."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from fastapi import APIRouter, Request

from api.answers import Caller, OpenInventory, SlowCalls, problems
from api.schemas_status import InboxOut, StatusOut
from api.state import services_of, state_of
from inventory.service import Inventory
from inventory.status import StatusProblem
from jobs.inbox_items import InboxItem
from jobs.service import JobService
from model.principal import Principal

router: Final = APIRouter(tags=["status"])
_FAILED: Final = "The warehouse or Pub/Sub failed or refused."
# Where no time is known a job has waited for ever.
_EVER: Final = datetime.min.replace(tzinfo=UTC)
_WRONG: Final = {"failure": "job_failed", "incomplete": "backfill_incomplete"}


@router.get("/status", operation_id="getStatus", response_model=StatusOut, responses=problems(s502=_FAILED))
def get_status(request: Request, *, inventory: OpenInventory, caller: Caller, slow: SlowCalls) -> Any:
    """Show everything that runs on one screen: streams, backfills, merges, what waits and what is wrong."""
    services = services_of(request).jobs
    with slow:
        condition = inventory.check_streams(principal=caller)
        inbox = _list_inbox(services, inventory, caller)
        active = {service.kind.collection: service.list_active(principal=caller) for service in services}
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
            **{name: [job.to_json() for job in jobs] for name, jobs in active.items()},
            "inbox": [item.to_json() for item in inbox],
        }


@router.get("/inbox", operation_id="getInbox", response_model=InboxOut)
def get_inbox(request: Request, inventory: OpenInventory, caller: Caller) -> Any:
    """List what waits for a person: canaries, approvals, pauses, failures, what did not land, ended streams."""
    return {"items": [item.to_json() for item in _list_inbox(services_of(request).jobs, inventory, caller)]}


def _list_inbox(services: Sequence[JobService[Any]], inventory: Inventory, caller: Principal) -> list[InboxItem]:
    items = [item for service in services for item in service.list_inbox(principal=caller)]
    items += inventory.list_inbox(principal=caller)
    return sorted(items, key=lambda item: item.since or _EVER)
