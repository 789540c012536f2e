"""What is wrong with the streams: judged from their own reports and from what Pub/Sub has for them."""

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

from connectors.pubsub.client import SubscriptionInfo
from inventory.streams import ENDED, InstanceTotal, StreamOut
from jobs.inbox_items import InboxItem
from jobs.store.figures import FigurePoint
from model.message import BACKUP_SUBSCRIPTION_PREFIX, matches
from model.moment import render_moment, render_time
from model.naming import counted, render_duration
from model.stream import BACKUP_STREAM, PIPELINE_PREFIX
from model.stream_options import StreamKind
from model.stream_record import StreamRecord, StreamState
from model.stream_snapshot import SnapshotRecord, SnapshotState

# A stream that keeps up is seconds behind; a restart or a short outage costs it a minute or two.
LATE_SECONDS: Final = 300.0
# A stream whose last dead letter is older makes none any more.
GROWS_WITHIN: Final = timedelta(hours=1)
# A night is too short to notice that messages will be deleted.
_EXPIRES_WITHIN: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class StatusProblem:
    """Something that is wrong; ``code`` is stable, ``name`` the stream, job or part that it is about."""

    code: str
    name: str
    message: str


@dataclass(frozen=True, slots=True)
class StreamCondition:
    """The streams, and what is wrong with them."""

    streams: list[StreamOut]
    problems: list[StatusProblem]


def count_attached(subscriptions: Iterable[SubscriptionInfo]) -> int:
    """Return how many of the subscriptions are the backup's, one a topic; a detached one gets no messages."""
    return sum(each.id.startswith(BACKUP_SUBSCRIPTION_PREFIX) and not each.detached for each in subscriptions)


def without_replaced(streams: Sequence[StreamOut]) -> list[StreamOut]:
    """Return the streams but for the ended ones whose work another stream does, under whatever name."""
    done = {work_of(stream) for stream in streams if stream.state not in ENDED}
    return [stream for stream in streams if stream.state not in ENDED or work_of(stream) not in done]


def judge_streams(streams: Sequence[StreamOut], attached: int | None) -> list[StatusProblem]:
    """Return what is wrong with the streams; ``attached`` topics are backed up, None is unknown.

    An ended stream is not wrong if no messages wait for it, if another stream does its work, or if its group has
    left the registry. A backup that is not there is wrong, once there is something to back up.
    """
    found = [problem for stream in without_replaced(streams) for problem in _judge(stream)]
    backups = [stream for stream in streams if stream.kind == StreamKind.BACKUP]
    if attached and all(stream.state in ENDED for stream in backups):
        topics = f"{counted(attached, 'topic')} {'is' if attached == 1 else 'are'}"
        state = backups[0].state if backups else "not known here"
        message = f"{topics} attached but nothing is backed up, because the backup stream is {state}."
        found.append(StatusProblem("backup_not_running", BACKUP_STREAM, message))
    return found


def judge_collected(
    names: Sequence[str], topics: Iterable[str], subscriptions: Iterable[SubscriptionInfo]
) -> list[StatusProblem]:
    """Return which topics that collectors take events for, by name or pattern, nothing subscribes to.

    A topic that is not there is no problem here: the collector's own ``/readyz`` names it.
    """
    read = {each.topic for each in subscriptions if not each.detached}
    message = (
        "The topic has no subscription, so Pub/Sub would not keep its messages. Collectors refuse events "
        "for this topic."
    )
    return [
        StatusProblem("topic_unread", topic, message)
        for topic in topics
        if topic not in read and matches(names, topic)
    ]


def judge_snapshots(
    records: Iterable[StreamRecord], snapshots: Sequence[SnapshotRecord], *, every: timedelta, now: datetime
) -> list[StatusProblem]:
    """Return which living streams have a gap in their snapshots, of which one is made after each ``every``.

    A gap is a stream without a whole snapshot, with its source, as young as twice that time; ``every`` of nothing
    wants none.
    """
    found = []
    for record in records if every else ():
        if record.kind is StreamKind.KINESIS:
            continue
        taken = [
            each.taken_at
            for each in snapshots
            if each.stream == record.name
            and each.with_source
            and each.state is SnapshotState.COMPLETED
            and each.taken_at is not None
        ]
        covered = max([record.created_at, *taken])
        if record.is_living and now - covered > 2 * every:
            since = f"The newest is from {render_moment(max(taken))}." if taken else "There is none."
            message = f"It has no snapshot of the last {render_duration(2 * every.total_seconds())}. {since}"
            found.append(StatusProblem("snapshot_gap", record.name, message))
    return found


def waiting_item(record: StreamRecord, stream: StreamOut) -> InboxItem:
    """Return the inbox's item of a stream that somebody ended and that messages wait for."""
    known = stream.backlog_messages
    waiting = "its pending messages" if known is None else f"{counted(known, 'message')} for it"
    message = f"It is {record.state}. Pub/Sub keeps {waiting} until {render_time(stream.retained_until)}."
    since, state = record.changed_at, record.state
    return InboxItem("ended", "stream", record.name, state, None, record.launched_by, since, message)


def growing_item(
    stream: StreamOut, points: Sequence[FigurePoint], instances: Iterable[InstanceTotal], since: datetime
) -> InboxItem | None:
    """Return the inbox's item of a stream that made dead letters since the first of ``points``, None without any.

    It begins with the first dead letter that had none in the hour before it. ``points`` are those since ``since``.
    Each instance, of the ``instances`` or of the points, counts for itself, from 0 if it started since then, so
    that neither a hand-over nor a new instance that has no report yet changes the number. A total that falls is of
    a process that was started again by hand, and counts from 0.
    """
    totals: dict[Any, list[tuple[datetime, float]]] = {}
    for point in points:
        total = point.figures.get("dead_letters")
        if total is not None:
            instance = point.figures.get("instance_id")
            # One that followed another began in between.
            known = totals.setdefault(instance, [(point.at, 0.0)] if totals else [])
            began = point.figures.get("started_at")
            if not known and began is not None and (start := datetime.fromisoformat(began)) >= since:
                known.append((start, 0.0))
            known.append((point.at, total))
    for each in instances:
        if each.reported_at < since:
            continue
        known = totals.setdefault(each.instance_id, [])
        if each.started_at is not None and each.started_at >= since:
            insort(known, (each.started_at, 0.0))
        known.append((each.reported_at, each.dead_letters))
    run: list[tuple[datetime, int]] = []
    for start, added in sorted(growth for known in totals.values() for growth in _list_growth(known)):
        if run and start - run[-1][0] > GROWS_WITHIN:
            run.clear()
        run.append((start, added))
    if not run:
        return None
    began, many = run[0][0], counted(sum(added for _, added in run), "message")
    message = (
        f"{many} became dead letters since {render_moment(began.replace(microsecond=0))}, "
        "without replayed messages. 'refeed dead-letters' shows the reasons. "
        "Without a new one, this item goes after one hour."
    )
    launched_by = stream.launched_by
    return InboxItem("dead_letters", "stream", stream.name, stream.state, None, launched_by, began, message)


def _list_growth(totals: Iterable[tuple[datetime, float]]) -> Iterator[tuple[datetime, int]]:
    """Yield after what moment how many messages were added."""
    for (start, before), (_, after) in pairwise(totals):
        if added := int(after - before if after >= before else after):
            yield start, added


def work_of(stream: StreamOut) -> str:
    """Return what one running stream does at a time, under whatever name: the backup, or a group's pipeline."""
    if stream.kind == StreamKind.BACKUP:
        return BACKUP_STREAM
    group = (stream.options or {}).get("group")
    return stream.name if group is None else f"{PIPELINE_PREFIX}{group}"


def _judge(stream: StreamOut) -> list[StatusProblem]:
    if stream.is_over:
        return []
    found, has_ended = [], stream.state in ENDED - {StreamState.FAILED}
    if stream.state is StreamState.NOT_REPORTING:
        silence = stream.seconds_since_report
        silent = "ever" if silence is None else f"for {render_duration(silence)}"
        found.append(StatusProblem("stream_not_reporting", stream.name, f"It has not reported {silent}."))
    elif stream.wanted is not None and stream.agent is None and not has_ended:
        message = "It was launched, but no agent runs it."
        found.append(StatusProblem("stream_without_agent", stream.name, message))
    elif stream.error is not None:
        message = str(stream.error)
        found.append(StatusProblem("stream_failing", stream.name, message))
    elif stream.failures is not None and not has_ended and stream.failures.is_recent(stream.state):
        message = f"{stream.failures.message} It is {stream.state} now."
        found.append(StatusProblem("stream_failed", stream.name, message))
    if stream.state is not StreamState.DRAINED:
        for alert in stream.alerts or ():
            message = f"{alert.about}: {alert.code}: {alert.message}"
            found.append(StatusProblem("source_alert", stream.name, message))
    return [*found, *_judge_waiting(stream, has_ended=has_ended)]


def _judge_waiting(stream: StreamOut, *, has_ended: bool) -> Iterator[StatusProblem]:
    """Yield what is wrong with the messages that wait for the stream."""
    count, until = stream.backlog_messages, stream.retained_until
    if until is not None and until - datetime.now(UTC) < _EXPIRES_WITHIN:
        message = f"Pub/Sub keeps the pending messages until {render_time(until)}, and then deletes them."
        yield StatusProblem("messages_expire", stream.name, message)
    if has_ended and count:
        waiting = f"{counted(count, 'message')} {'waits' if count == 1 else 'wait'}"
        yield StatusProblem("stream_ended", stream.name, f"It is {stream.state}, and {waiting} for it.")
    elif stream.lag_seconds is not None and stream.lag_seconds > LATE_SECONDS:
        message = f"Its oldest pending message is {render_duration(stream.lag_seconds)} old."
        yield StatusProblem("stream_behind", stream.name, message)
