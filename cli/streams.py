"""The pipeline's streams as child processes: one a group of the registry, for as long as the registry has it."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final, Self

from model.errors import RefeedError
from pipeline.registry import Registry, read_snapshot
from rollout.child import STOP_SECONDS, Child

# Seconds before a stream that died is started again: the first time, the second time, and from then on.
_WAITS_SECONDS: Final = (1.0, 5.0, 25.0, 60.0)
# A stream that ran for so long has got over what ended it before.
_HEALTHY_SECONDS: Final = 120.0


@dataclass(slots=True)
class _GroupProcess:
    """One group's process; ``start_at`` is when it is to be started, None while it runs."""

    child: Child
    start_at: float | None = 0.0
    started_at: float = 0.0
    deaths: int = 0


class PipelineStreams:
    """Keeps one stream running for each group of the registry; leaving the block drains all of them.

    A new group's stream is started, one that is gone from the registry is drained, and no other one is
    disturbed by either. A stream that dies is started again, each time a little later, and never keeps anything
    else from running. While the registry can't be read, what runs goes on.
    """

    def __init__(
        self,
        registry: str,
        make_child: Callable[[str], Child],
        *,
        poll_seconds: float,
        say: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = registry
        self._make_child = make_child
        self._poll_seconds = poll_seconds
        self._say = say
        self._now = now
        self._streams: dict[str, _GroupProcess] = {}
        self._leaving: list[Child] = []
        self._fingerprint = ""
        self._problem = ""
        self._read_at: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __iter__(self) -> Iterator[Child]:
        """Yield the processes that were started and have not been seen to end."""
        running = (stream.child for stream in self._streams.values() if stream.start_at is None)
        return iter([*running, *self._leaving])

    def look(self) -> bool:
        """Follow the registry and restart what died; True when a process was started or has ended."""
        if self._read_at is None or self._now() - self._read_at >= self._poll_seconds:
            self._read_at = self._now()
            self._follow()
        left = [child for child in self._leaving if child.is_running]
        has_changed = len(left) < len(self._leaving)
        self._leaving = left
        for stream in self._streams.values():
            has_changed |= self._keep(stream)
        return has_changed

    def stop(self, *, seconds: float = STOP_SECONDS) -> None:
        """Drain all at the same time, and kill what takes longer, each also after another's error."""
        with ExitStack() as stack:
            for child in self:
                stack.callback(child.stop, seconds=seconds)
            for child in self:
                child.ask_to_stop()

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
                self._say(f"{exc.message} What runs goes on.{faults}")
                self._problem = exc.message
            # A fault of one source keeps no other group from starting; none is drained while it stands.
            with suppress(RefeedError):
                self._start(Registry(self._registry).read_valid().groups())
            return
        self._fingerprint, self._problem = fingerprint, ""
        for gone in self._streams.keys() - set(groups):
            stream = self._streams.pop(gone)
            if stream.start_at is None:
                self._say(f"draining {stream.child.name}: the registry has no such group any more")
                stream.child.ask_to_stop()
                self._leaving.append(stream.child)
        self._start(groups)

    def _start(self, groups: Iterable[str]) -> None:
        """Have a stream for each of ``groups`` that has none."""
        for group in groups:
            if group not in self._streams:
                self._streams[group] = _GroupProcess(self._make_child(group))

    def _keep(self, stream: _GroupProcess) -> bool:
        """Start the stream when it is time, or note that it died; True when either happened."""
        now = self._now()
        if stream.start_at is None:
            if stream.child.is_running:
                return False
            if now - stream.started_at >= _HEALTHY_SECONDS:
                stream.deaths = 0
            wait = _WAITS_SECONDS[min(stream.deaths, len(_WAITS_SECONDS) - 1)]
            stream.deaths += 1
            stream.start_at = now + wait
            # What it started and left behind would hold its locks.
            stream.child.kill()
            self._say(f"{stream.child.ended_error().message}\nstarting {stream.child.name} again in {wait:.0f} s")
            return True
        # A group that was taken out and comes back waits until the stream before it has drained.
        if now < stream.start_at or any(child.name == stream.child.name for child in self._leaving):
            return False
        self._say(f"starting {stream.child.name}")
        stream.child.start()
        stream.start_at, stream.started_at = None, now
        return True
