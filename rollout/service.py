"""Lets callers launch, drain, cancel and change streams."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import structlog

from jobs.store import Idempotency, JobStore
from jobs.store.stream_rows import check_versions
from jobs.versions import Versions
from model.declaration import declared_fields
from model.errors import (
    ForbiddenError,
    RequestInvalidError,
    SnapshotExpiredError,
    SnapshotRefusedError,
    StreamExistsError,
    fault_at,
)
from model.event import HistoryEvent
from model.naming import did_you_mean
from model.principal import STREAMS_OPERATE, STREAMS_READ, Principal
from model.stream_options import OPTIONS, PipelineStreamOptions, StreamKind, option_errors, parse_options
from model.stream_record import (
    DRAIN_TIMEOUT_SECONDS,
    MAX_DRAIN_TIMEOUT_SECONDS,
    StreamRecord,
    Wanted,
    is_stream_name,
)
from rollout.request import StreamLaunch
from rollout.stream_logs import StreamLogs

_LOG: Final = structlog.get_logger()


def any_release(_: str | None) -> None:
    """Accept every release."""


class StreamService:
    """Writes the desired state of streams into the job store; an agent carries it out.

    Every call returns within milliseconds, before the agent has done anything. A call that changes a stream takes
    the ``versions`` that its caller has read, or None. ``groups`` returns the registry's groups, or None while the
    registry can't be read. ``check_release`` raises for a release that no agent has. ``home`` is the home with the
    logs of this machine's streams, None if no streams run here.

    Raises:
        ForbiddenError: any call whose ``principal`` lacks the scope.
        StreamNotFoundError: any call that names a stream that was never launched.
        StreamChangedError: any call with ``versions`` if the stream is at none of them.
    """

    def __init__(
        self,
        store: JobStore,
        *,
        home: Path | None = None,
        groups: Callable[[], frozenset[str] | None] = lambda: None,
        check_release: Callable[[str | None], None] = any_release,
    ) -> None:
        self._store = store
        self._logs = None if home is None else StreamLogs(home)
        self._groups = groups
        self._check_release = check_release

    def launch(
        self, request: StreamLaunch, *, principal: Principal, idempotency_key: str | None = None
    ) -> StreamRecord:
        """Launch a stream, or the next generation of a stream that was drained or cancelled.

        With a snapshot, which can be of another stream of this kind, the stream starts from the snapshot's state.
        If the snapshot can't be restored after all, the launch is cancelled.

        Raises:
            RequestInvalidError: the name or options are invalid; ``details["errors"]`` has all faults.
            ReleaseNotFoundError: no agent has the release.
            StreamExistsError: a living stream has this name, or does the same work.
            IdempotencyKeyReusedError: the key came before with another request.
            StreamSnapshotNotFoundError: there is no such snapshot.
            SnapshotRefusedError: no stream of this kind and group can start from the snapshot, or it has expired.
            ForbiddenError: the stream would publish to a topic that the principal may not publish to.
        """
        principal.require(STREAMS_OPERATE)
        kind = StreamKind(request.kind)
        options = self._check_launch(request, kind)
        require_topic(principal, kind, {"topic": None, **options})
        if request.snapshot is not None:
            self._check_snapshot(request.snapshot, options.get("group"))

        def guard(living: Sequence[StreamRecord]) -> None:
            check_work(request.name, kind, options, living)
            self._check_release(request.release)

        record = self._store.launch_stream(
            request.name,
            kind,
            actor=principal.name,
            release=request.release,
            options=options,
            snapshot_id=request.snapshot,
            idempotency=Idempotency.of(idempotency_key, asdict(request)),
            guard=guard,
        )
        _LOG.info("stream_launched", stream=record.name, generation=record.generation, by=principal.name)
        return record

    def get(self, name: str, *, principal: Principal) -> StreamRecord:
        """Return the stream's record."""
        principal.require(STREAMS_READ)
        return self._store.get_stream(name)

    def list_records(self, *, principal: Principal) -> list[StreamRecord]:
        """Return every stream that was ever launched, sorted by name."""
        principal.require(STREAMS_READ)
        return self._store.list_streams()

    def list_events(self, name: str, *, principal: Principal, after: int = 0) -> list[HistoryEvent]:
        """Return the lines of the stream's history after number ``after``, oldest first."""
        principal.require(STREAMS_READ)
        return self._store.list_stream_events(self._store.get_stream(name).name, after=after)

    def read_log(self, name: str, *, principal: Principal, tail_lines: int) -> bytes:
        """Return the end of the newest process's log, whole lines only; empty before the first process.

        If another machine has the log, the answer is one line with the name of that machine.
        """
        principal.require(STREAMS_READ)
        record = self._store.get_stream(name)
        return b"" if self._logs is None else self._logs.read_end(record, tail_lines=tail_lines)

    def get_for_change(self, name: str, *, principal: Principal, versions: Versions = None) -> StreamRecord:
        """Return the record of a stream that the caller is about to change."""
        principal.require(STREAMS_OPERATE)
        record = self._store.get_stream(name)
        check_versions(record, versions)
        return record

    def drain(
        self,
        name: str,
        *,
        principal: Principal,
        timeout_seconds: float = DRAIN_TIMEOUT_SECONDS,
        versions: Versions = None,
        why: str | None = None,
    ) -> StreamRecord:
        """End the stream after it has committed and acknowledged the messages that it has pulled.

        After the timeout the stream ends without this. A second call only replaces the timeout.

        Raises:
            RequestInvalidError: the timeout is no number of seconds from 0 to a day.
            StreamStateError: the stream has ended, or is being cancelled.
        """
        principal.require(STREAMS_OPERATE)
        if not 0 <= timeout_seconds <= MAX_DRAIN_TIMEOUT_SECONDS:
            message = f"timeout_seconds must be a number from 0 to {MAX_DRAIN_TIMEOUT_SECONDS:.0f}."
            raise RequestInvalidError.of("out_of_range", message, "/timeout_seconds")
        return self._end(name, Wanted.DRAINED, principal, versions, why, timeout_seconds=timeout_seconds)

    def cancel(
        self, name: str, *, principal: Principal, versions: Versions = None, why: str | None = None
    ) -> StreamRecord:
        """End the stream at once; messages that it has pulled stay unacknowledged, and Pub/Sub redelivers them.

        Raises:
            StreamStateError: the stream has ended.
        """
        principal.require(STREAMS_OPERATE)
        return self._end(name, Wanted.CANCELLED, principal, versions, why)

    def change(
        self, name: str, options: Mapping[str, Any], *, principal: Principal, versions: Versions = None
    ) -> StreamRecord:
        """Change limits and pace of a living stream while it runs; null restores the deployment's setting.

        Raises:
            RequestInvalidError: an option is invalid, or can't change while the stream runs; the error names all.
            StreamStateError: the stream has ended, or is to end.
        """
        record = self.get_for_change(name, principal=principal, versions=versions)
        if errors := [*option_errors(record.kind, options), *_unchangeable(record, options)]:
            raise RequestInvalidError.of_all(errors)
        if not options:
            return record
        changed = self._store.change_stream(name, actor=principal.name, options=options, versions=versions)
        _LOG.info("stream_changed", stream=record.name, options=sorted(options), by=principal.name)
        return changed

    def _end(
        self,
        name: str,
        wanted: Wanted,
        principal: Principal,
        versions: Versions,
        why: str | None,
        *,
        timeout_seconds: float = DRAIN_TIMEOUT_SECONDS,
    ) -> StreamRecord:
        record = self._store.end_stream(
            name, wanted, actor=principal.name, timeout_seconds=timeout_seconds, why=why, versions=versions
        )
        _LOG.info("stream_ends", stream=record.name, wanted=wanted.value, by=principal.name)
        return record

    def _check_launch(self, request: StreamLaunch, kind: StreamKind) -> dict[str, Any]:
        """Return the options that are not null.

        Raises:
            RequestInvalidError: the name or options are invalid; the error names all faults.
        """
        errors = option_errors(kind, request.options)
        if not is_stream_name(request.name):
            message = "name must have 1 to 63 lower-case letters, digits and -, with a letter first."
            errors.insert(0, fault_at("/name", "name_invalid", message))
        if not errors:
            errors = self._group_errors(kind, request.options)
        if errors:
            raise RequestInvalidError.of_all(errors)
        return parse_options(kind, request.options).to_json()

    def _check_snapshot(self, snapshot_id: str, group: str | None) -> None:
        """Check the snapshot's expiry and group; the store checks its kind and state, and the agent its files.

        Raises:
            SnapshotExpiredError, SnapshotRefusedError: no stream, or not this stream, can start from it.
        """
        snapshot = self._store.get_snapshot(snapshot_id)
        if snapshot.sources and not snapshot.has_source(datetime.now(UTC)):
            raise SnapshotExpiredError(
                f"Pub/Sub deleted the Pub/Sub snapshots of {snapshot_id} at {snapshot.expire_time}.",
                id=snapshot_id,
            )
        its = self._store.get_stream(snapshot.stream).options.get("group")
        if snapshot.kind == StreamKind.PIPELINE and group is not None and its != group:
            raise SnapshotRefusedError(
                f"{snapshot_id} is a snapshot of {snapshot.stream}, the pipeline of the group {its}. "
                f"A stream of the group {group} has other subscriptions and other tables.",
                id=snapshot_id,
                group=its,
            )

    def _group_errors(self, kind: StreamKind, options: Mapping[str, Any]) -> list[dict[str, str]]:
        parsed = parse_options(kind, options)
        known = self._groups() if isinstance(parsed, PipelineStreamOptions) else None
        if not isinstance(parsed, PipelineStreamOptions) or known is None or parsed.group in known:
            return []
        message = f"The registry has no group {parsed.group}.{did_you_mean(parsed.group, known)}"
        return [fault_at("/options/group", "group_unknown", message)]


def check_work(name: str, kind: StreamKind, options: Mapping[str, Any], living: Sequence[StreamRecord]) -> None:
    """Check that no other living stream does the same work: one of the two would only wait for the other's lease.

    Raises:
        StreamExistsError: there is such a stream.
    """
    work = parse_options(kind, options).work()
    for other in living:
        if other.name != name and other.kind is kind and other.parsed_options().work() == work:
            does = f"the {kind} of {work}" if work else f"the {kind}"
            message = f"{other.name} is already {does}. Drain or cancel it first."
            raise StreamExistsError(message, name=other.name, kind=other.kind, state=other.state)


def require_topic(principal: Principal, kind: StreamKind, options: Mapping[str, Any]) -> None:
    """Check that ``options`` let a stream publish only to topics that the caller may publish to.

    Raises:
        ForbiddenError: the topic is not allowed, or a caller who is limited to topics names none.
    """
    if kind is not StreamKind.KINESIS or "topic" not in options or principal.topics is None:
        return
    if options["topic"] is None:
        raise ForbiddenError(f"{principal.name} may publish to some topics only. Name one in the option topic.")
    principal.require_topic(options["topic"])


def _unchangeable(record: StreamRecord, options: Mapping[str, Any]) -> list[dict[str, str]]:
    fields = {each.name: each.spec for each in declared_fields(OPTIONS[record.kind])}
    changeable = ", ".join(name for name, spec in fields.items() if spec.is_changeable)
    way = f"Drain the stream, and launch it with the new value. These options can change: {changeable}."
    return [
        fault_at(f"/options/{name}", "option_fixed", f"{name} can't change while the stream runs. {way}")
        for name in options
        if name in fields and not fields[name].is_changeable
    ]
