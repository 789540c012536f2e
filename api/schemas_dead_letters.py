"""The JSON shapes of dead letters, as OpenAPI shows them."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from backfill.plan.redrive import LetterReasonOut


class DeadLetterOut(BaseModel):
    """A message that a backfill could not publish, or that the pipeline could make no row of."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    row: int | None = Field(None, description="The row's number in the backfill's selection.")
    source: str | None = Field(None, description="The source of the pipeline that could not read the message.")
    topic: str | None = Field(description="The topic of the archived message.")
    message_id: str | None
    publish_time: datetime | None
    ordering_key: str | None = Field(None, description="The message's ordering key. Null for the pipeline.")
    code: str = Field(
        description="The code of the reason. For a backfill, one of `attribute_without_text`, `no_room_for_tags`, "
        "`message_too_large`, `refused_by_pubsub`, `gave_up` and `ordering_key_stopped`."
    )
    path: str | None = Field(
        None, description="The path of the faulty field in the message. Null if the reason has no path."
    )
    reason: str = Field(description="The reason, in a sentence.")
    at: datetime | None = Field(description="When the message last became a dead letter.")
    attributes: dict[str, str | None] | None = Field(description="Null if the payload is not shown.")
    data: str | None = Field(
        description="The payload as text or base64. Null without the scope messages.read. For the pipeline, also "
        "null without `preview_bytes`."
    )
    encoding: Literal["text", "base64"] | None
    data_bytes: int | None = Field(description="The size of the whole payload.")
    is_cut: bool | None = Field(description="Whether `data` is only the beginning of the payload.")


class DeadLettersOut(BaseModel):
    """Dead letters: of a backfill in the order of their rows in the selection, of a source the newest first.

    A page of a backfill ends early at 16 MB of data.
    """

    dead_letters: list[DeadLetterOut]
    is_cut: bool = Field(description="Whether there are more dead letters than in this page.")
    next_page_token: str | None = Field(
        description="The value of `page_token` for the next page. Null on the last page, and for a source."
    )


class DeadLetterReasonsOut(BaseModel):
    """The numbers of dead letters by reason, the most frequent reason first."""

    reasons: list[LetterReasonOut]
