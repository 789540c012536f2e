"""The step of an update in which the new release of a pipeline runs as a shadow of the old one."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from model.principal import MESSAGES, Principal
from model.stream_record import StreamRecord
from model.stream_update import SHADOW_DIFFERS, SHADOW_INCONCLUSIVE, StreamUpdate, UpdateFault, UpdateState
from pipeline.shadow_report import ShadowReport, ShadowState
from rollout.shadow import ShadowRun, Shadows

_log = structlog.get_logger(__name__)

# The name of the shadow's report among an update's figures.
SHADOW_FIGURES: Final = "shadow"
# The error code of an update whose shadow fails to run.
FAILED: Final = "shadow_failed"
_ATTEMPTS: Final = 3
_NAMED_COLUMNS: Final = 10


@dataclass(frozen=True, slots=True)
class ShadowStep:
    """The progress of an update's shadow: its report, whether it agreed, and the fault that ends the update."""

    report: ShadowReport
    has_agreed: bool = False
    fault: UpdateFault | None = None


class ShadowWork:
    """Runs the shadows of updates that request one.

    A shadow's id is derived from its update's id, so that the next agent finds the shadow of a killed agent.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._runs: dict[str, ShadowRun] = {}
        self._deaths: dict[str, int] = {}
        # Start of each shadow's comparison; a restarted shadow, also under the next agent, gets its full time
        # again.
        self._follows_since: dict[str, float] = {}

    def look(
        self, update: StreamUpdate, record: StreamRecord, shadows: Shadows, acknowledged_until: float | None = None
    ) -> ShadowStep:
        """Start or find the update's shadow, and return its progress.

        The stream has acknowledged every message up to the publish time ``acknowledged_until``, in Unix seconds.

        Raises:
            ReleaseNotFoundError, EnvironmentFailedError: the release can't be started in this home.
        """
        run = self._runs.get(update.id)
        if run is None:
            wanted = update.request.shadow
            assert wanted is not None, "the step is of updates that ask for a shadow"
            to = replace(record, release=update.request.release, options=update.to_options)
            run = shadows.start(to, shadow_id(update), hours=wanted.hours, may_differ=wanted.may_differ)
            self._runs[update.id] = run
        report = run.look(acknowledged_until)
        deaths = self._deaths.get(update.id, 0)
        if report.state is ShadowState.FAILED and not report.has_differences and deaths < _ATTEMPTS - 1:
            _log.warning("shadow_failed", stream=update.stream, error=(report.error or {}).get("message"))
            self._deaths[update.id] = deaths + 1
            self._end(update.id)
            return ShadowStep(report)
        is_over = False
        if report.state is ShadowState.FOLLOWING:
            since = self._follows_since.setdefault(update.id, self._now())
            is_over = self._now() - since >= update.request.validate_seconds
        return _judge(report, is_over=is_over, min_messages=update.request.min_messages)

    def end_others(self, living: Sequence[StreamUpdate], shadows: Shadows) -> None:
        """End the shadows of updates that need none any more, also those of killed agents."""
        kept = {update.id: update for update in living if update.state is UpdateState.SHADOWING}
        for update_id in self._runs.keys() - kept.keys():
            self._end(update_id)
        self._deaths = {update_id: count for update_id, count in self._deaths.items() if update_id in kept}
        shadows.end_others({shadow_id(update) for update in kept.values()})

    def stop(self) -> None:
        """End every shadow; the next agent starts each from the beginning."""
        # Kill all first, so that they end at the same time.
        for run in self._runs.values():
            run.kill()
        for update_id in list(self._runs):
            self._end(update_id)

    def _end(self, update_id: str) -> None:
        self._runs.pop(update_id).end()
        self._follows_since.pop(update_id, None)


def shadow_id(update: StreamUpdate) -> str:
    """Return the id of the update's shadow."""
    return f"sh_{update.id}"


def _judge(report: ShadowReport, *, is_over: bool, min_messages: int) -> ShadowStep:
    if report.has_differences:
        return ShadowStep(report, fault=UpdateFault(SHADOW_DIFFERS, _told(report)))
    if report.state is ShadowState.FAILED:
        why = (report.error or {}).get("message", "its log says why")
        fault = UpdateFault(FAILED, f"The shadow of the new release failed: {why} Nothing was changed.")
        return ShadowStep(report, fault=fault)
    if report.state is not ShadowState.FOLLOWING or not is_over:
        return ShadowStep(report)
    if report.messages_compared < min_messages:
        message = (
            f"The shadow compared {report.messages_compared} messages. At least {min_messages} are needed. "
            "Nothing was changed."
        )
        return ShadowStep(report, fault=UpdateFault(SHADOW_INCONCLUSIVE, message))
    return ShadowStep(report, has_agreed=True)


def _told(report: ShadowReport) -> str:
    """Return a text with the columns that differ, without the values, because these are payloads."""
    columns = sorted({f"{one.table}.{one.column}" for one in report.examples if one.column is not None})
    named = f", in {', '.join(columns[:_NAMED_COLUMNS])}" if columns else ""
    return (
        f"The shadow compared {report.messages_compared} messages: {report.rows_different} rows differ and "
        f"{report.rows_missing} rows are missing{named}. Nothing was changed."
    )


def hide_values(figures: Mapping[str, Any] | None, principal: Principal) -> Mapping[str, Any] | None:
    """Return an update's ``figures`` with only those payload values that ``principal`` may read."""
    report = (figures or {}).get(SHADOW_FIGURES)
    if figures is None or report is None:
        return figures
    examples = [
        example
        if principal.may(MESSAGES) and principal.may_publish_to(example["topic"])
        else {**example, "running": None, "new": None}
        for example in report["examples"]
    ]
    return {**figures, SHADOW_FIGURES: {**report, "examples": examples}}


def show_update(update: StreamUpdate, principal: Principal) -> StreamUpdate:
    """Return the update with only those payload values that the principal may read."""
    return replace(update, figures=hide_values(update.figures, principal))
