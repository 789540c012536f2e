"""What streams are and how they last were, from their own reports and from how they were launched."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from connectors.pubsub.stats import SubscriptionStats
from inventory.failures import StreamFailures, count_failures
from inventory.managed import is_own_report, recorded_fields, shown_state
from inventory.retention import SILENT_SECONDS, backlog_of, retained_until
from model.event import HistoryEvent
from model.fault import FaultRecord
from model.moment import CLOCK_SKEW
from model.stream import BACKUP_STREAM, KINESIS_PREFIX, PIPELINE_PREFIX, StoredReport
from model.stream_options import StreamKind
from model.stream_record import ENDED_STATES, StreamHome, StreamRecord, StreamState, Wanted
from streams.folder import read_statuses

# A stream's own words, and the states that the API shows.
_STATES: Final = {
    "starting": StreamState.STARTING,
    "running": StreamState.RUNNING,
    # For the moment of a snapshot, between two commits.
    "paused": StreamState.RUNNING,
    "waiting": StreamState.WAITING,
    "draining": StreamState.DRAINING,
    "stopped": StreamState.DRAINED,
    "cancelled": StreamState.CANCELLED,
    "failed": StreamState.FAILED,
}
ENDED: Final = frozenset({*ENDED_STATES, StreamState.FAILED})
# Of a stream that does not run, as far as anybody knows.
_SILENT: Final = ENDED | {StreamState.NOT_REPORTING}


class StreamAlert(BaseModel):
    """A fault in one source of a pipeline, or in the registry. The other sources continue."""

    about: str = Field(description="The source or the registry that has the fault.")
    code: str
    message: str


class StreamOwner(BaseModel):
    """The process of a stream, or of its agent."""

    host: str
    pid: int = Field(description="The id of the process.")


class StreamOut(BaseModel):
    """A stream with its latest report and its launch. A field is null if it is unknown."""

    model_config = ConfigDict(frozen=True)

    name: str = Field(description="The stream's name.")
    kind: StreamKind | None = Field(description="The stream's kind.")
    state: StreamState = Field(
        description="`NOT_REPORTING`: the stream has not ended, but its last report is more than 15 seconds "
        "old. `DRAINING`: the stream is being drained, or the process of a cancelled stream still runs."
    )
    owner: StreamOwner | None = Field(description="The stream's process.")
    instance_id: str | None = Field(description="The id of the stream's newest start, which begins with `in_`.")
    is_retired: bool | None = Field(
        description="True if the registry no longer has sources of the pipeline's group. Null means unknown."
    )
    started_at: datetime | None
    reported_at: datetime | None = Field(description="When the stream last reported.")
    seconds_since_report: float | None = Field(description="Seconds since the last report.")
    totals: dict[str, float] = Field(
        description="Counts since the stream's process began, such as messages and bytes. "
        "`delayed_by_new_columns` counts messages that came again after their table got new or wider columns."
    )
    rates: dict[str, float] | None = Field(
        description="The increase of each total per second, measured over the last `over_seconds` seconds."
    )
    over_seconds: float | None = Field(description="The number of seconds over which the rates are measured.")
    batch_seconds: float | None = Field(
        description="How long the latest batch with messages took, up to its commit and acknowledgement, in "
        "seconds."
    )
    backlog_messages: int | None = Field(description="Number of pending messages in the stream's subscriptions.")
    lag_seconds: float | None = Field(
        description="Age of the oldest pending message in the stream's subscriptions, measured at "
        "`lag_measured_at`."
    )
    lag_measured_at: datetime | None = Field(
        description="When the lag was measured. On Google Cloud the lag is one to three minutes old."
    )
    alerts: list[StreamAlert] | None = Field(description="The faults in a pipeline's sources.")
    error: FaultRecord | None
    failures: StreamFailures | None = Field(description="The failures of the last hour. Null if there are none.")
    redelivered: float | None = Field(
        description="Number of messages that Pub/Sub delivered again, and that the stream did not write again."
    )
    not_committed: int | None = Field(
        description="Number of messages that the stream had pulled, but not acknowledged, when it ended. "
        "Pub/Sub delivers these messages again."
    )
    retained_until: datetime | None = Field(
        description="Pub/Sub keeps the stream's pending messages at least until this time. Null if there are no "
        "pending messages, or if the time is unknown."
    )
    release: str | None = Field(
        description="The version of Refeed that runs the stream. Null means the installed version."
    )
    options: dict[str, Any] | None = Field(
        description="The options of the stream. For a missing option, the stream uses the deployment's default."
    )
    wanted: Wanted | None = Field(description="The wanted state.")
    drain_timeout_seconds: float | None = Field(description="The timeout of the requested drain.")
    generation: int | None = Field(description="The number of times that a stream was launched under this name.")
    agent: StreamOwner | None = Field(
        description="The agent that runs the stream. Null if no agent runs the stream."
    )
    home: StreamHome | None = Field(description="The folder of the stream's state.")
    snapshot_id: str | None = Field(description="The id of the snapshot from which the stream was launched.")
    created_by: str | None = Field(description="Who first launched a stream under this name.")
    created_at: datetime | None
    launched_by: str | None = Field(description="Who launched the current generation.")
    launched_at: datetime | None = Field(description="When the current generation was launched.")
    etag: str | None

    @property
    def is_over(self) -> bool:
        """Whether nobody expects it to run: it does not, and the registry no longer has its group."""
        return self.is_retired is True and self.state in _SILENT


def read_streams(
    home: Path,
    stats: Mapping[str, SubscriptionStats] | None,
    reports: Sequence[StoredReport] = (),
    groups: frozenset[str] | None = None,
    records: Sequence[StreamRecord] = (),
    *,
    retentions: Mapping[str, int] | None = None,
    events: Iterable[HistoryEvent] = (),
) -> list[StreamOut]:
    """Return every stream of ``records``, or that reported to ``home`` or is in ``reports``, by name.

    ``events`` are those of streams in the last hour, the newest first.

    Each is as its newest report has it: a stream's lease lets one instance of a name run at a time, so that an
    older report is of one that is gone. While an instance has not named its subscriptions, they are those of the
    one before, so that Pub/Sub's figures of a stream that starts are known.
    """
    launched = {record.name: record for record in records}
    failures = count_failures(events)
    newest: dict[str, _Report] = {}
    naming: dict[str, _Report] = {}
    for report in (*_home_reports(home), *map(_stored_report, reports)):
        if report.status.get("subscriptions") is not None:
            naming[report.name] = min(naming.get(report.name, report), report, key=_age)
        record = launched.get(report.name)
        instance = report.status.get("instance")
        if record is not None and not is_own_report(record, instance, _reported_state(report)):
            # Of a process before this one: its figures are not those of the one that runs.
            continue
        known = newest.get(report.name)
        if known is None or _age(report) < _age(known):
            newest[report.name] = report
    names = sorted({*newest, *launched})
    found = (newest.get(name) or _Report(name, {}, None) for name in names)
    named = {name: report.status["subscriptions"] for name, report in naming.items()}
    failed = {name: failures.get((name, record.generation)) for name, record in launched.items()}
    return [
        _stream(
            replace(report, named=named.get(report.name), failures=failed.get(report.name)),
            stats,
            groups,
            launched.get(report.name),
            retentions,
        )
        for report in found
    ]


@dataclass(frozen=True, slots=True)
class InstanceTotal:
    """How many dead letters and messages an instance of a stream had when it last reported; it began with 0.

    Replays are not among the dead letters. ``refused`` has by source how many rows and how many dead letters there
    were, if there was a dead letter.
    """

    instance_id: Any
    started_at: datetime | None
    reported_at: datetime
    dead_letters: float
    messages: float = 0.0
    refused: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def read_instance_totals(home: Path, reports: Sequence[StoredReport] = ()) -> dict[str, list[InstanceTotal]]:
    """Return the totals of each instance that reported to ``home`` or is in ``reports``, by stream.

    An instance has one, from its newest report, also after another instance has followed it.
    """
    newest: dict[tuple[str, Any], _Report] = {}
    for report in (*_home_reports(home), *map(_stored_report, reports)):
        key = (report.name, report.status.get("instance"))
        if key not in newest or _age(report) < _age(newest[key]):
            newest[key] = report
    found: dict[str, list[InstanceTotal]] = {}
    for (name, instance), report in newest.items():
        started, at = (_moment(report.status.get(field)) for field in ("started_at", "at"))
        totals = _numbers(report.status.get("totals"))
        letters = count_letters(totals)
        if at is not None and letters is not None:
            refused = _count_refused(report.status.get("sources"))
            total = InstanceTotal(instance, started, at, letters, totals.get("messages", 0.0), refused)
            found.setdefault(name, []).append(total)
    return found


def _count_refused(sources: Any) -> dict[str, tuple[float, float]]:
    """Return the rows and the dead letters of each source that has some; another version may count otherwise."""
    found: dict[str, tuple[float, float]] = {}
    for name, counts in sources.items() if isinstance(sources, dict) else ():
        rows, refused = (_numbers(counts.get(kind)) for kind in ("rows", "refused"))
        if refused:
            found[name] = (rows.get("staged", 0.0), sum(refused.values()))
    return found


def count_letters(totals: Mapping[str, float]) -> float | None:
    """Return how many messages of a process became dead letters; None is unknown.

    Replays do not count: a redrive sends dead letters again, and a backfill has its own verdict.
    """
    every = totals.get("dead_letters")
    return None if every is None else every - totals.get("replayed_dead_letters", 0.0)


@dataclass(frozen=True, slots=True)
class _Report:
    """A stream's status, its age in seconds where that is known, and the subscriptions that it ``named`` last.

    ``failures`` are those of its launch in the last hour.
    """

    name: str
    status: Mapping[str, Any]
    silence: float | None
    named: Any = None
    failures: StreamFailures | None = None


def _home_reports(home: Path) -> Iterator[_Report]:
    for name, status in read_statuses(home):
        yield _Report(name, status, _silence(_number(status.get("at"))))


def _silence(at: float | None) -> float | None:
    """Return the seconds since ``at``; unknown where it is later than a clock that differs could have it.

    It is one of before the clock was set back then, and its stream may be long dead.
    """
    since = None if at is None else datetime.now(UTC).timestamp() - at
    return None if since is None or since < -CLOCK_SKEW.total_seconds() else max(0.0, since)


def _stored_report(stored: StoredReport) -> _Report:
    report = stored.report
    own = {"instance": report.instance, "host": report.host, "pid": report.pid, "state": report.state}
    return _Report(report.name, {**report.status, **own, "at": stored.reported_at.timestamp()}, stored.age_seconds)


def _age(report: _Report) -> float:
    return math.inf if report.silence is None else report.silence


def _stream(
    report: _Report,
    stats: Mapping[str, SubscriptionStats] | None,
    groups: frozenset[str] | None,
    record: StreamRecord | None,
    retentions: Mapping[str, int] | None,
) -> StreamOut:
    name, status, silence = report.name, report.status, report.silence
    state, instance = _reported_state(report), status.get("instance")
    # Nothing that stands still has a rate, whatever it wrote last.
    is_running, rates = state is StreamState.RUNNING, _numbers(status.get("rates"))
    error = status.get("error")
    if record is not None:
        state = shown_state(record, instance, state if status else None)
        if not status:
            instance = record.instance_id
        error = error or record.error
    kind = _kind_of(name) if record is None else record.kind
    pulled = status if kind == StreamKind.BACKUP else {"subscriptions": report.named, **status}
    backlog = backlog_of(kind, pulled, stats, is_heard=state not in _SILENT)
    if backlog is not None and not backlog.messages and _is_between_runs(state, record):
        # A restore may not have made its seek yet.
        backlog = None
    host, pid = status.get("host"), status.get("pid")
    totals, not_committed = _numbers(status.get("totals")), _number(status.get("not_committed"))
    return StreamOut(
        name=name,
        kind=kind,
        state=state,
        owner=StreamOwner(host=host, pid=pid) if isinstance(host, str) and isinstance(pid, int) else None,
        instance_id=instance,
        is_retired=_is_retired(name if record is None else _group_name(record), groups),
        started_at=_moment(status.get("started_at")),
        reported_at=_moment(status.get("at")),
        seconds_since_report=None if silence is None else round(silence, 3),
        totals=totals,
        rates=rates if is_running and rates else None,
        over_seconds=(status.get("rates_over_seconds") or None) if is_running and rates else None,
        batch_seconds=_number(status.get("batch_seconds")),
        backlog_messages=None if backlog is None else backlog.messages,
        lag_seconds=None if backlog is None else backlog.oldest_unacked_seconds,
        lag_measured_at=None if backlog is None else _moment(backlog.sampled_at),
        alerts=_alerts(status.get("alerts")),
        error=error,
        failures=report.failures,
        redelivered=totals.get("redelivered"),
        not_committed=None if not_committed is None else int(not_committed),
        retained_until=_moment(retained_until(kind, pulled, stats, retentions)),
        **recorded_fields(record),
    )


def _is_between_runs(state: StreamState, record: StreamRecord | None) -> bool:
    """Whether the stream starts, or is stopped for a restore or an update."""
    is_stopped = state is StreamState.DRAINING and record is not None and record.wanted is Wanted.RUNNING
    return state is StreamState.STARTING or is_stopped


def _reported_state(report: _Report) -> StreamState:
    state = _STATES.get(str(report.status.get("state")), StreamState.NOT_REPORTING)
    # Whether its process lives can't be checked here: it may run in another pod.
    is_silent = report.silence is None or report.silence > SILENT_SECONDS
    return StreamState.NOT_REPORTING if state not in ENDED and is_silent else state


def _kind_of(name: str) -> StreamKind | None:
    """Return the kind of a stream that was started by hand, under the name that it always has."""
    if name == BACKUP_STREAM:
        return StreamKind.BACKUP
    prefixes = {PIPELINE_PREFIX: StreamKind.PIPELINE, KINESIS_PREFIX: StreamKind.KINESIS}
    return next((kind for prefix, kind in prefixes.items() if name.startswith(prefix)), None)


def _group_name(record: StreamRecord) -> str:
    """Return the name that the stream would have if somebody had started it by hand."""
    return f"{PIPELINE_PREFIX}{record.options['group']}" if "group" in record.options else record.name


def _is_retired(name: str, groups: frozenset[str] | None) -> bool | None:
    if not name.startswith(PIPELINE_PREFIX):
        return False
    return None if groups is None else name.removeprefix(PIPELINE_PREFIX) not in groups


def _alerts(found: Any) -> list[StreamAlert] | None:
    """Return the faults that a pipeline's stream reports of its sources, without the details."""
    if not isinstance(found, list):
        return None
    return [
        StreamAlert(**{name: str(alert.get(name, "")) for name in StreamAlert.model_fields}) for alert in found
    ]


def _number(found: Any) -> float | None:
    return float(found) if isinstance(found, int | float) else None


def _numbers(found: Any) -> dict[str, float]:
    """Return the numbers of what a stream wrote; another version of it may have written something else."""
    return {str(k): v for k, v in found.items() if isinstance(v, int | float)} if isinstance(found, dict) else {}


def _moment(seconds: Any) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if isinstance(seconds, int | float) else None
