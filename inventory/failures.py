"""How often streams failed lately: their processes ended by themselves, or could not be started."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from model.event import HistoryEvent, HistoryEventType
from model.moment import render_moment
from model.stream_record import StreamState

# Failures that are older are not shown.
COUNTED_WITHIN: Final = timedelta(hours=1)
# A stream that has run for so long since has got over its failure, unless it fails again and again.
_STEADY_AFTER: Final = timedelta(minutes=10)
_OFTEN: Final = 3


class StreamFailures(BaseModel):
    """The failures of a stream in the last hour, since its latest launch."""

    model_config = ConfigDict(frozen=True)

    count: int = Field(description="How often the stream failed. The agent starts it again each time.")
    last_at: datetime = Field(description="When the stream last failed.")
    message: str = Field(description="When and why the stream last failed, and how often.")

    def is_recent(self, state: StreamState) -> bool:
        """Whether a stream in this state has not run well for long enough since."""
        is_up = state in {StreamState.RUNNING, StreamState.WAITING}
        return not is_up or self.count >= _OFTEN or datetime.now(UTC) - self.last_at < _STEADY_AFTER


def count_failures(events: Iterable[HistoryEvent]) -> dict[tuple[str, int | None], StreamFailures]:
    """Return the failures by stream and generation; ``events`` are those of the last hour, the newest first."""
    found: dict[tuple[str, int | None], list[HistoryEvent]] = {}
    for event in events:
        if event.type is HistoryEventType.MOVED and event.fields.get("to") == StreamState.FAILED:
            found.setdefault((event.id, event.generation), []).append(event)
    return {key: _sum_up(failed[0], len(failed)) for key, failed in found.items()}


def _sum_up(last: HistoryEvent, count: int) -> StreamFailures:
    often = f" It failed {count} times in the last hour." if count > 1 else ""
    why = f": {last.why}" if last.why else "."
    at = render_moment(last.at.replace(microsecond=0))
    return StreamFailures(count=count, last_at=last.at, message=f"Failed at {at}{why}{often}")
