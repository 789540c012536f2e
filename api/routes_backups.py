"""The backup of topics: begun and ended, with a look before that changes nothing."""

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Path
from pydantic import BaseModel, ConfigDict, Field

from api.answers import Caller, problems, service_of
from inventory.backups import TopicBackups

router: Final = APIRouter(tags=["topics"])
_FAILED: Final = "Pub/Sub failed or refused the call."
_INVALID: Final = "The name or the body is not valid"


_PLAN = Field(default=None, description="The `plan` of a dry run: this is done, or nothing.", max_length=64)


class TopicDetach(BaseModel):
    """How a topic's backup ends."""

    model_config = ConfigDict(extra="forbid", strict=True)

    dry_run: bool = Field(default=False, description="Change nothing, and answer what would be done.")
    plan: str | None = _PLAN


class TopicAttach(TopicDetach):
    """How a topic's backup begins."""

    exactly_once: bool = Field(
        default=False, description="Exactly-once delivery, which confirms acknowledgements; slower."
    )
    update: bool = Field(default=False, description="Change settings of the subscription that differ.")


class SettingDifferenceOut(BaseModel):
    """A setting of the subscription that a new one would have otherwise; `update` changes it."""

    field: str
    found: str
    wanted: str


class TopicBackupOut(BaseModel):
    """What was done about a topic's backup or, in a dry run, would be."""

    topic: str
    action: Literal["attach", "detach"]
    dry_run: bool
    subscription: str
    filter: str = Field(description="With `<token>` for the deployment's own one.")
    was_attached: bool
    is_attached: bool = Field(description="Whether the topic is backed up after this call.")
    creates_topic: bool = Field(description="Whether the topic was missing; a local Pub/Sub server creates it.")
    ack_deadline_seconds: int
    exactly_once: bool
    differences: list[SettingDifferenceOut]
    backlog_messages: int | None = Field(
        description="Messages that wait in the subscription; a detach loses them. Null is unknown."
    )
    plan: str = Field(description="Stands for what Pub/Sub had before.")


Backups = Annotated[TopicBackups, Depends(service_of(lambda services: services.backups))]
TopicName = Annotated[str, Path(description="The topic's id.", max_length=300, examples=["orders"])]


@router.post(
    "/topics/{topic}:attach",
    operation_id="attachTopic",
    response_model=TopicBackupOut,
    responses=problems(
        s404="Pub/Sub has no such topic.",
        s409="Another deployment's secret is in the subscription's filter, or the subscription has changed "
        "since the dry run.",
        s422=f"{_INVALID}.",
        s502=_FAILED,
    ),
)
def attach_topic(topic: TopicName, backups: Backups, caller: Caller, *, body: TopicAttach | None = None) -> Any:
    """Back up a topic from now on, with a subscription that excludes replays. An existing one is kept."""
    given = body or TopicAttach()
    return backups.attach(topic, principal=caller, **given.model_dump())


@router.post(
    "/topics/{topic}:detach",
    operation_id="detachTopic",
    response_model=TopicBackupOut,
    responses=problems(
        s404="Pub/Sub has no such topic.",
        s409="The subscription has changed since the dry run.",
        s422=f"{_INVALID}, or the topic is not attached.",
        s502=_FAILED,
    ),
)
def detach_topic(topic: TopicName, backups: Backups, caller: Caller, *, body: TopicDetach | None = None) -> Any:
    """Stop backing up a topic: delete its backup subscription with its pending messages."""
    given = body or TopicDetach()
    return backups.detach(topic, principal=caller, **given.model_dump())
