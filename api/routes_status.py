"""Everything that runs, what waits for a person, and what is wrong."""

from datetime import UTC, datetime
from typing import Any, Final

from fastapi import APIRouter, Request

from api.answers import Caller, OpenInventory, SlowCalls, problems
from api.schemas_status import InboxOut, StatusOut
from api.state import Services, services_of, state_of
from inventory.service import Inventory
from inventory.status import StatusProblem
from jobs.inbox_items import InboxItem
from model.principal import Principal

router: Final = APIRouter(tags=["status"])
_FAILED: Final = "The warehouse or Pub/Sub failed or refused."
# Where no time is known a job has waited for ever.
_EVER: Final = datetime.min.replace(tzinfo=UTC)
_WRONG: Final = {"failure": "job_failed", "incomplete": "backfill_incomplete"}
# Failures of other things than jobs.
_FAILURES: Final = {"manifest": "upload_failed", "rollout": "rollout_failed"}


@router.get("/status", operation_id="getStatus", response_model=StatusOut, responses=problems(s502=_FAILED))
def get_status(request: Request, *, inventory: OpenInventory, caller: Caller, slow: SlowCalls) -> Any:
    """Show everything that runs on one screen: streams, jobs, what waits and what is wrong."""
    services = services_of(request).jobs
    with slow:
        condition = inventory.check_streams(principal=caller)
        inbox = _list_inbox(services_of(request), inventory, caller)
        active = {service.kind.collection: service.list_active(principal=caller) for service in services}
        wrong = [
            *(
                StatusProblem("not_ready", name, said)
                for name, said in state_of(request.app).open.starting.items()
            ),
            *(
                StatusProblem("background_failing", name, said)
                for name, said in services_of(request).background_problems().items()
            ),
            *condition.problems,
            *(StatusProblem(_code_of(item), item.id, item.message) for item in inbox if item.kind in _WRONG),
        ]
        return {
            "is_ok": not wrong,
            "problems": wrong,
            "streams": condition.streams,
            **{name: [job.to_json() for job in jobs] for name, jobs in active.items()},
            "inbox": inbox,
        }


@router.get("/inbox", operation_id="getInbox", response_model=InboxOut)
def get_inbox(request: Request, inventory: OpenInventory, caller: Caller) -> Any:
    """List what waits for a person: canaries, approvals, failures, what did not land, ended streams, gaps."""
    return {"items": _list_inbox(services_of(request), inventory, caller)}


def _code_of(item: InboxItem) -> str:
    return _FAILURES.get(item.resource, _WRONG[item.kind])


def _list_inbox(services: Services, inventory: Inventory, caller: Principal) -> list[InboxItem]:
    items = [item for service in services.jobs for item in service.list_inbox(principal=caller)]
    items += inventory.list_inbox(principal=caller)
    items += services.approvals.list_inbox(principal=caller)
    items += services.uploads.list_inbox(principal=caller)
    items += services.rollouts.list_inbox(principal=caller)
    return sorted(items, key=lambda item: item.since or _EVER)
