"""Updates of the simulated stream: the agent's steps as they are, over releases that are all the same code."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from jobs.store import JobStore
from model.stream_record import StreamRecord
from rollout.check import CheckReason, Remedy, UpdateCheck
from rollout.process import StreamProcess
from rollout.update_work import UpdateWork
from streams.control import Order
from streams.folder import StreamFolder
from tests.simulation.agent import Records
from tests.simulation.disk import Disk
from tests.simulation.kernel import World

_REASON = CheckReason("column_removed", "t.a", "A column is gone.", Remedy.MAP)


@dataclass(frozen=True)
class Settings:
    """The settings of a machine, which has one home."""

    home: Any


class Logs:
    """Logs in which nothing is written: :class:`rollout.stream_logs.StreamLogs`."""

    def last_lines(self, stream: str, instance_id: str | None) -> str:
        return ""

    def remove_standbys(self, stream: str, *, keep: list[str]) -> None:
        """Remove nothing."""


class Shadows:
    """No update asks for a shadow here: :class:`rollout.shadow.Shadows`."""

    def end_others(self, wanted: set[str]) -> None:
        """End nothing."""


@dataclass(frozen=True)
class Prepared:
    """A start that is ready: :class:`rollout.starter.PreparedStart`."""

    start: Callable[[Order], StreamProcess]


class Starter:
    """Starts the stream on one machine: :class:`rollout.starter.StreamStarter`."""

    def __init__(self, disk: Disk, start: Callable[[str, Order], StreamProcess]) -> None:
        self.settings = Settings(disk.root)
        self.logs, self.shadows = Logs(), Shadows()
        self._start = start

    def folder(self, name: str, instance_id: str | None = None) -> StreamFolder:
        return StreamFolder(self.settings.home / name, instance_id)

    def prepare(self, record: StreamRecord, instance_id: str, *, is_standby: bool) -> Prepared:
        return Prepared(lambda order: self._start(instance_id, order))


class Checker:
    """Refuses some updates, and lets some have no way back: :class:`rollout.checking.UpdateChecker`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def check(self, *_: Any, **__: Any) -> UpdateCheck:
        dice = self._world.random.random()
        self._world.step("check the update", 2.0)
        if dice < 0.1:
            return UpdateCheck((_REASON,), (), ())
        return UpdateCheck((), (), ("a column is gone",) if dice < 0.3 else ())


def open_update_work(records: Records, world: World) -> UpdateWork:
    """Return the part of an agent that updates streams."""
    work = UpdateWork(
        cast("JobStore", records),
        open_checker=lambda: cast("Any", Checker(world)),
        read_lag=lambda *_: 0.0,
        now=lambda: world.now,
    )
    work._threads._now = lambda: world.now
    return work
