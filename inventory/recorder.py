"""Keeps the figures of streams and running jobs once a minute, so that people see how they went."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from inventory.streams import InstanceTotal, StreamOut, count_letters
from jobs.store import Job, JobStore
from jobs.store.figures import job_subject, stream_subject
from model.moment import render_time

_MINUTE: Final = 60.0
# After the minute began, so that a clock that is set back a little does not come to the minute before.
_DELAY: Final = 1.0
# Longer than the minute of a point, with the seconds that a report may be old.
_LATELY: Final = timedelta(minutes=2)
_JOB_FIGURES: Final = ("published", "failed", "event_time")


class FigureRecorder:
    """Records what streams and jobs do now.

    A kill loses the minute that is not kept yet. A minute without a point is one that nobody recorded. ``totals``
    returns those of the instances of each stream: of several in a minute each one's messages count.
    """

    def __init__(
        self,
        store: JobStore,
        streams: Callable[[], Sequence[StreamOut]],
        totals: Callable[[], Mapping[str, Sequence[InstanceTotal]]] = dict,
    ) -> None:
        self._store = store
        self._streams = streams
        self._totals = totals

    def record(self, now: datetime | None = None) -> None:
        """Keep one point of every stream that has not ended for good and of every job that has not ended.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        now = now or datetime.now(UTC)
        totals, since = self._totals(), now - _LATELY
        figures = {
            stream_subject(stream.name): {
                **_of_stream(stream),
                "others": _others(stream, totals, since),
                "refused": _refused(stream, totals),
            }
            for stream in self._streams()
            if not stream.is_over
        }
        figures |= {job_subject(job.id): _of_job(job) for job in self._store.list_active()}
        self._store.put_figures(now, figures)


def seconds_to_next_point() -> float:
    """Return how long it is until the next minute has begun."""
    now = datetime.now(UTC)
    return _MINUTE - (now.second + now.microsecond / 1e6) + _DELAY


def _of_stream(stream: StreamOut) -> dict[str, Any]:
    return {
        "state": stream.state,
        "instance_id": stream.instance_id,
        "started_at": render_time(stream.started_at),
        "rate_messages_per_second": (stream.rates or {}).get("messages"),
        "lag_seconds": stream.lag_seconds,
        "backlog_messages": stream.backlog_messages,
        "batch_seconds": stream.batch_seconds,
        "messages": stream.totals.get("messages"),
        "dead_letters": count_letters(stream.totals),
    }


def _others(
    stream: StreamOut, totals: Mapping[str, Sequence[InstanceTotal]], since: datetime
) -> list[dict[str, Any]]:
    """Return the totals of the stream's other instances that reported since then, such as one that has ended."""
    return [
        {
            "instance_id": each.instance_id,
            "started_at": render_time(each.started_at),
            "messages": each.messages,
        }
        for each in totals.get(stream.name, ())
        if each.instance_id != stream.instance_id and each.reported_at >= since
    ]


def _refused(stream: StreamOut, totals: Mapping[str, Sequence[InstanceTotal]]) -> dict[str, Any]:
    """Return the rows and dead letters of each source of the stream's process that has dead letters."""
    own = (each for each in totals.get(stream.name, ()) if each.instance_id == stream.instance_id)
    return {source: list(counts) for each in own for source, counts in each.refused.items()}


def _of_job(job: Job) -> dict[str, Any]:
    return {
        "state": job.state.value,
        "rate_limit_messages_per_second": job.options.get("rate_limit_messages_per_second"),
        **{name: job.progress.get(name) for name in _JOB_FIGURES},
    }
