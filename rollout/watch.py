"""The watch of an updated stream: compares the figures of the new release with those of the old one."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final, Self

from model.watch_bounds import USUAL_BOUNDS, WatchBounds

_LAG_GROWS_SECONDS: Final = 10.0
_COUNTS: Final = ("messages", "dead_letters", "faults")


class WatchVerdict(StrEnum):
    """The verdict of a watch so far."""

    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class WatchFigures:
    """Figures of one release of a stream, counted over ``seconds``; None is unknown."""

    seconds: float | None
    messages: float | None
    dead_letters: float | None
    faults: float | None
    lag_seconds: float | None

    @classmethod
    def of_last_minute(cls, status: Mapping[str, Any], lag_seconds: float | None) -> Self:
        """Return the figures of a stream's last minute, by the rates in its status."""
        seconds = status.get("rates_over_seconds")
        if seconds is None:
            return cls(None, None, None, None, lag_seconds)
        rates = {name: rate * float(seconds) for name, rate in (status.get("rates") or {}).items()}
        return cls(float(seconds), **_counts(rates), lag_seconds=lag_seconds)

    @classmethod
    def of_process(cls, status: Mapping[str, Any], seconds: float, lag_seconds: float | None) -> Self:
        """Return the figures of a process since its start, by the totals in its status.

        The process has been watched for ``seconds``; if its first commit is older, the time since that commit
        counts.
        """
        ran = float(status.get("at") or 0.0) - float(status.get("first_commit_at") or math.inf)
        return cls(max(seconds, ran), **_counts(status.get("totals") or {}), lag_seconds=lag_seconds)

    @classmethod
    def before(cls, compared: Mapping[str, Any] | None) -> Self | None:
        """Return the old release's figures from an update's record, or None."""
        found = (compared or {}).get("before")
        return None if found is None else cls(**found)

    def rate(self, count: float | None) -> float | None:
        """Return ``count`` per second, or None if it is unknown."""
        return None if count is None or not self.seconds else count / self.seconds

    @property
    def dead_share(self) -> float | None:
        """The share of the messages that became dead letters."""
        if self.messages is None or self.dead_letters is None:
            return None
        return self.dead_letters / self.messages if self.messages else 0.0

    @property
    def missing(self) -> list[str]:
        """The names of the unknown figures."""
        return [name for name, value in asdict(self).items() if value is None]


def _counts(found: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the counts to compare; Kinesis records that Pub/Sub refused count as dead letters."""
    known = {"dead_letters": found.get("refused"), **found}
    return {name: None if (count := known.get(name)) is None else float(count) for name in _COUNTS}


def judge(
    before: WatchFigures | None,
    after: WatchFigures,
    *,
    is_over: bool,
    min_messages: int,
    bounds: WatchBounds = USUAL_BOUNDS,
) -> tuple[WatchVerdict, str]:
    """Return the verdict of the watch, and its reason as a sentence.

    Dead letters and faults fail the watch as soon as ``min_messages`` have come; the other figures are judged when
    the watch ``is_over``. The verdict is INCONCLUSIVE with fewer messages, or if a figure is unknown. A lag that
    is unknown for both releases, because nothing measures it here, is not compared, and the sentence says so.
    """
    messages = after.messages or 0.0
    if before is not None and messages >= min_messages and (why := _found_early(before, after, bounds)):
        return WatchVerdict.FAILED, why
    if not is_over:
        return WatchVerdict.OPEN, ""
    if why := _unknown(before, after, min_messages):
        return WatchVerdict.INCONCLUSIVE, why
    assert before is not None
    if why := _found_late(before, after, bounds):
        return WatchVerdict.FAILED, why
    apart = "" if after.lag_seconds is not None else " The lag is unknown, so it was not compared."
    counted = f"{messages:,.0f} messages in {after.seconds or 0.0:,.0f} s."
    return WatchVerdict.PASSED, f"{counted} All compared figures are within their limits.{apart}"


def _unknown(before: WatchFigures | None, after: WatchFigures, min_messages: int) -> str:
    """Return why the figures can't be compared, or an empty text."""
    if before is None:
        return "The old release has no figures, so no comparison is possible."
    messages = after.messages or 0.0
    if messages < min_messages:
        return f"{messages:,.0f} messages arrived during the watch. At least {min_messages:,} are needed."
    nowhere = {"lag_seconds"} & {*before.missing} & {*after.missing}
    unknown = sorted({*before.missing, *after.missing} - nowhere)
    return f"These figures are unknown for one of the releases: {', '.join(unknown)}." if unknown else ""


def _found_early(before: WatchFigures, after: WatchFigures, bounds: WatchBounds) -> str:
    old, new = before.dead_share, after.dead_share
    most = None if old is None else old * bounds.dead_letter_factor + bounds.dead_letter_share
    if most is not None and new is not None and new > most:
        return f"{new:.1%} of the messages became dead letters. Before the update it was {old:.1%}."
    was, is_now = before.rate(before.faults), after.rate(after.faults)
    most = None if was is None else was * bounds.fault_factor + bounds.faults_per_second
    if most is not None and is_now is not None and is_now > most:
        return f"There were {is_now:.2f} faults per second. Before the update it was {was:.2f}."
    return ""


def _found_late(before: WatchFigures, after: WatchFigures, bounds: WatchBounds) -> str:
    if before.lag_seconds is None or after.lag_seconds is None:
        return ""
    if after.lag_seconds > before.lag_seconds * bounds.lag_factor + bounds.lag_seconds:
        return (
            f"The oldest message has waited for {after.lag_seconds:,.0f} s. Before the update it was "
            f"{before.lag_seconds:,.0f} s."
        )
    was, is_now = before.rate(before.messages), after.rate(after.messages)
    is_slower = was is not None and is_now is not None and is_now < was * bounds.rate_factor
    if is_slower and after.lag_seconds > before.lag_seconds + _LAG_GROWS_SECONDS:
        return f"The lag grows, and the rate fell from {was:,.1f} to {is_now:,.1f} messages per second."
    return ""
