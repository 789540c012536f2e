"""The backup of topics: begun and ended, with a look before that changes nothing."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Path

from api.answers import Caller, problems, service_of
from api.schemas_backups import TopicAttach, TopicBackupOut, TopicDetach
from inventory.backups import TopicBackups

router: Final = APIRouter(tags=["topics"])
_FAILED: Final = "Pub/Sub failed or refused."
_INVALID: Final = "The name or the body is not valid"


Backups = Annotated[TopicBackups, Depends(service_of(lambda services: services.backups))]
TopicName = Annotated[str, Path(description="A topic's id.", max_length=300, examples=["orders"])]


@router.post(
    "/topics/{topic}:attach",
    operation_id="attachTopic",
    response_model=TopicBackupOut,
    responses=problems(
        s404="Pub/Sub has no such topic.",
        s409="It is attached with another deployment's secret, or is not as it was planned.",
        s422=f"{_INVALID}.",
        s502=_FAILED,
    ),
)
def attach_topic(topic: TopicName, backups: Backups, caller: Caller, *, body: TopicAttach | None = None) -> Any:
    """Back a topic up from now on, by a subscription that leaves replays out; one that is attached is kept."""
    given = body or TopicAttach()
    return backups.attach(topic, principal=caller, **given.model_dump())


@router.post(
    "/topics/{topic}:detach",
    operation_id="detachTopic",
    response_model=TopicBackupOut,
    responses=problems(
        s404="Pub/Sub has no such topic.",
        s409="It is not as it was planned.",
        s422=f"{_INVALID}, or the topic is not attached.",
        s502=_FAILED,
    ),
)
def detach_topic(topic: TopicName, backups: Backups, caller: Caller, *, body: TopicDetach | None = None) -> Any:
    """Stop backing a topic up: delete its backup subscription, with all messages that still wait in it."""
    given = body or TopicDetach()
    return backups.detach(topic, principal=caller, **given.model_dump())
