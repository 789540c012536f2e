"""The JSON shapes of volumes, as OpenAPI shows them."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from api.schemas_backfills import TimeWindow


class TopicSeriesOut(BaseModel):
    """A topic's messages and payload bytes, a number for each of `starts`. Null is unknown, never 0."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "topic": "orders",
                    "total_messages": 36_200,
                    "total_bytes": 7_500_000,
                    "messages": [18_000, 200, 18_000],
                    "bytes": [3_700_000, 40_000, 3_760_000],
                    "gaps": ["2026-01-03T03:00:00.000000Z"],
                }
            ]
        }
    )

    topic: str
    total_messages: int | None = Field(description="Null when one of the steps is.")
    total_bytes: int | None
    messages: list[int | None]
    bytes: list[int | None] = Field(description="Of payloads, as they were published.")
    gaps: list[datetime] = Field(
        description="Starts of steps that are over and have less than a tenth of the median of the same hour on "
        "the other days, where that is 10 messages at least; the 13 days before the window are looked at too."
    )


class VolumesOut(BaseModel):
    """Every topic that had messages in the window, by steps of their ingestion; the window is of whole steps."""

    step: Literal["hour", "day"]
    window: TimeWindow
    starts: list[datetime]
    topics: list[TopicSeriesOut]
