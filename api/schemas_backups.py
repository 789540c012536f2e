"""The JSON shapes of attaching and detaching topics, as OpenAPI shows them."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

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
