"""The part of an agent that updates streams."""

import time
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from jobs.steps import StepRunner
from jobs.store import JobStore, update_of
from jobs.stream_threads import StreamThreads
from model.errors import RefeedError
from model.stream_record import StreamRecord
from model.stream_update import StreamUpdate
from rollout.checking import UpdateChecker
from rollout.process import HeldStream
from rollout.shadow_work import ShadowWork
from rollout.standbys import MOVING, Standbys, UpdatedStream
from rollout.starter import StreamStarter
from rollout.update_ends import ReadLag
from rollout.update_steps import UpdateSteps

_log = structlog.get_logger(__name__)

_JOIN_SECONDS: Final = 10.0


class UpdateWork:
    """Carries out the updates of the streams that an agent holds, and ends processes that no update needs.

    ``open_checker`` and ``read_lag`` are as in :class:`UpdateSteps`.
    """

    def __init__(
        self,
        store: JobStore,
        *,
        open_checker: Callable[[], UpdateChecker],
        read_lag: ReadLag,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._updates: dict[str, StreamUpdate] = {}
        # Streams whose update moved to another step, or ended, in the last look.
        self._moved: set[str] = set()
        self._standbys = Standbys(store, now=now)
        self._shadows = ShadowWork()
        self._threads = StreamThreads("check")
        self._steps = UpdateSteps(
            store, open_checker=open_checker, read_lag=read_lag, standbys=self._standbys, shadows=self._shadows
        )
        self._runner = StepRunner(store, [self._steps.kind()], self._threads)

    def look(self, streams: Iterable[tuple[StreamRecord, HeldStream]], starter: StreamStarter) -> None:
        """Move each update one step further; a fault of one stream does not stop the others.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        places = {
            record.name: UpdatedStream(record, held, starter, starter.folder(record.name).state)
            for record, held in streams
        }
        jobs = self._runner.list_jobs()
        self._updates = {each.stream: each for each in map(update_of, jobs)}
        self._threads.keep(set(places), {each.id for each in jobs})
        self._standbys.let_go(places.keys())
        self._standbys.end_orphans(starter.settings.home)
        self._shadows.end_others(list(self._updates.values()), starter.shadows)
        for name, place in places.items():
            try:
                self._standbys.end_leftovers(place, self._updates.get(name))
            except (RefeedError, OSError) as exc:
                _log.warning("leftovers_stay", stream=name, error=str(exc))
        looked = list(map(update_of, self._runner.look(jobs, lambda job: places.get(str(job.request["stream"])))))
        self._moved = {each.stream for each in looked if self._updates[each.stream].state is not each.state}
        self._updates = {each.stream: each for each in looked if not each.state.is_ended}
        self._steps.keep(self._updates.values())

    def is_moving(self, stream: str) -> bool:
        """Whether the stream moves between two processes, so that the agent must not start one by itself."""
        return stream in self._updates and self._updates[stream].state in MOVING

    def is_handing(self, stream: str) -> bool:
        """Whether the stream's processes have orders of a hand-over, and must not get others."""
        return stream in self._updates and self._updates[stream].state.is_handing

    def is_stopping(self, stream: str) -> bool:
        """Whether the agent must drain the stream, and not start it before the update's next step."""
        return stream in self._updates and self._updates[stream].state.is_stopping

    def has_changed(self, stream: str) -> bool:
        """Whether the last look may have changed the stream's record."""
        return stream in self._moved or self.is_handing(stream)

    def is_shown(self, stream: str) -> bool:
        """Whether the stream is UPDATING."""
        return stream in self._updates and self._updates[stream].state.is_shown

    def stop(self) -> None:
        """End the standbys; the next agent continues from the step in the record."""
        self._shadows.stop()
        self._threads.join(_JOIN_SECONDS)
        self._standbys.stop()
