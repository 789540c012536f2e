"""The backup of topics: begun and ended, with a look before that changes nothing."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Path
from pydantic import BaseModel, ConfigDict, Field

from api.answers import Caller, problems, service_of
from inventory.backups import TopicBackupOut, TopicBackups

router: Final = APIRouter(tags=["topics"])
_FAILED: Final = "Pub/Sub returned an error."
_INVALID: Final = "The name or the body is not valid"


_PLAN = Field(
    default=None,
    description="The `plan` of a dry run. If the change would differ from this plan, the call changes nothing.",
    max_length=64,
)


class TopicDetach(BaseModel):
    """The options for detaching a topic."""

    model_config = ConfigDict(extra="forbid", strict=True)

    dry_run: bool = Field(
        default=False, description="Whether to change nothing and only return the planned change."
    )
    plan: str | None = _PLAN


class TopicAttach(TopicDetach):
    """The options for attaching a topic."""

    exactly_once: bool = Field(
        default=False,
        description="Whether to use exactly-once delivery. Pub/Sub then confirms each acknowledgement, which "
        "is slower.",
    )
    update: bool = Field(
        default=False,
        description="Whether to give the existing subscription the settings of a new subscription.",
    )


Backups = Annotated[TopicBackups, Depends(service_of(lambda services: services.backups))]
TopicName = Annotated[str, Path(description="The topic's id.", max_length=300, examples=["orders"])]


@router.post(
    "/topics/{topic}:attach",
    response_model=TopicBackupOut,
    responses=problems(
        s404="Pub/Sub has no such topic.",
        s409="The subscription belongs to a deployment with another secret, or has changed since the dry run.",
        s422=f"{_INVALID}.",
        s502=_FAILED,
    ),
)
def attach_topic(topic: TopicName, backups: Backups, caller: Caller, *, body: TopicAttach | None = None) -> Any:
    """Back up a topic from now on: create a backup subscription. An existing subscription is kept."""
    given = body or TopicAttach()
    return backups.attach(topic, principal=caller, **given.model_dump())


@router.post(
    "/topics/{topic}:detach",
    response_model=TopicBackupOut,
    responses=problems(
        s404="Pub/Sub has no such topic.",
        s409="The subscription has changed since the dry run.",
        s422=f"{_INVALID}, or the topic is not attached.",
        s502=_FAILED,
    ),
)
def detach_topic(topic: TopicName, backups: Backups, caller: Caller, *, body: TopicDetach | None = None) -> Any:
    """Stop backing up a topic: delete its backup subscription and the pending messages in it."""
    given = body or TopicDetach()
    return backups.detach(topic, principal=caller, **given.model_dump())
