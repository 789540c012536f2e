"""The streams that ``refeed up`` wants: the backup, and one for each group that the registry has at the moment."""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, Literal

from model.errors import RefeedError, StoreUnavailableError, StreamNotFoundError, StreamStateError
from model.event import HistoryEventType
from model.principal import STREAMS_OPERATE, STREAMS_READ, Principal
from model.stream import BACKUP_STREAM, PIPELINE_PREFIX
from model.stream_options import StreamKind
from model.stream_record import StreamRecord, Wanted
from pipeline.registry import Registry, read_snapshot
from rollout.request import StreamLaunch
from rollout.service import StreamService

UP: Final = Principal("refeed up", frozenset({STREAMS_READ, STREAMS_OPERATE}))


class WantedStreams:
    """Launches the backup and a stream for each group of the registry, by the calls that everybody has.

    A stream that a person drained or cancelled is left so. A group that is gone from the registry is drained, and
    launched again when it comes back; no other stream is disturbed by either. While the registry can't be read,
    nothing changes.
    """

    def __init__(
        self,
        service: StreamService,
        registry: str,
        *,
        poll_seconds: float,
        say: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._service = service
        self._registry = registry
        self._poll_seconds = poll_seconds
        self._say = say
        self._now = now
        self._fingerprint = ""
        self._problem = ""
        self._read_at: float | None = None
        # Streams to launch: a group that comes back while its stream still drains waits here.
        self._wanted: dict[str, dict[str, Any]] = {BACKUP_STREAM: {}}

    def look(self) -> None:
        """Follow the registry, and launch what is wanted and has no stream."""
        if self._read_at is None or self._now() - self._read_at >= self._poll_seconds:
            self._read_at = self._now()
            self._follow()
        for name, options in list(self._wanted.items()):
            if self._launch(name, options):
                del self._wanted[name]

    def is_running(self, name: str) -> bool:
        """Whether the stream lives and is to run."""
        with suppress(StreamNotFoundError):
            record = self._service.get(name, principal=UP)
            return record.is_living and record.wanted is Wanted.RUNNING
        return False

    def _follow(self) -> None:
        try:
            registry = Registry(self._registry)
            fingerprint = registry.fingerprint()
            if fingerprint == self._fingerprint:
                return
            files = registry.read_files()
            groups = read_snapshot(files, self._registry).groups() if files else []
        except RefeedError as exc:
            if exc.message != self._problem:
                faults = "".join(
                    f"\n  {each['pointer']}: {each['message']}" for each in exc.details.get("errors", [])
                )
                self._say(f"{exc.message} Running streams continue.{faults}")
                self._problem = exc.message
            # A fault of one source keeps no other group from starting; none is drained while it stands.
            with suppress(RefeedError):
                self._want(Registry(self._registry).read_valid().groups())
            return
        self._fingerprint, self._problem = fingerprint, ""
        self._want(groups)
        self._drain_all_but({f"{PIPELINE_PREFIX}{group}" for group in groups})

    def _want(self, groups: Iterable[str]) -> None:
        for group in groups:
            self._wanted[f"{PIPELINE_PREFIX}{group}"] = {"group": group}

    def _drain_all_but(self, names: set[str]) -> None:
        """Drain the streams of groups that the registry no longer has, as far as they were launched from here."""
        for record in self._service.list_records(principal=UP):
            is_ours = record.kind is StreamKind.PIPELINE and record.launched_by == UP.name
            if not is_ours or record.name in names:
                continue
            self._wanted.pop(record.name, None)
            if record.is_living and record.wanted is Wanted.RUNNING:
                self._say(f"draining {record.name}: the registry no longer has this group")
                # It may have ended meanwhile.
                with suppress(StreamStateError):
                    self._service.drain(record.name, principal=UP)

    def _launch(self, name: str, options: dict[str, Any]) -> bool:
        """Launch the stream unless it lives, or a person ended it; False to try again later."""
        try:
            record = self._service.get(name, principal=UP)
        except StreamNotFoundError:
            pass
        else:
            if record.is_living:
                return record.wanted is Wanted.RUNNING or not self._was_ended_by_up(record)
            if not self._was_ended_by_up(record):
                group = f" --group {options['group']}" if options else ""
                again = f"refeed launch {name} --kind {record.kind}{group}"
                self._say(f"{name} is {record.state}; '{again}' starts it again")
                return True
        kind: Literal["backup", "pipeline"] = "backup" if name == BACKUP_STREAM else "pipeline"
        try:
            self._service.launch(StreamLaunch(name=name, kind=kind, options=options), principal=UP)
        except StoreUnavailableError:
            raise
        except RefeedError as exc:
            self._say(f"{name} is not launched: {exc.message}")
        return True

    def _was_ended_by_up(self, record: StreamRecord) -> bool:
        """Whether it was a ``refeed up`` that drained or cancelled the stream last."""
        events = self._service.list_events(record.name, principal=UP)
        actors = [event.actor for event in events if event.type is HistoryEventType.WANTED]
        return bool(actors) and actors[-1] == UP.name
