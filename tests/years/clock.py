"""A clock that the test moves, in the place of the machine's for every module of the project."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from types import SimpleNamespace
from typing import Any, Final

# The packages whose modules read this clock; libraries and threads go on with the machine's.
_PACKAGES: Final = frozenset(
    {"api", "app", "backfill", "backup", "inventory", "jobs", "model", "reporting", "rollout"}
)


class Clock:
    """The time of day, which may jump, and seconds since the start, which do not."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.seconds = 1000.0
        # How much the clock of the replica that is looking differs from the store's.
        self.skew = timedelta()

    def go(self, duration: timedelta) -> None:
        """Let time pass."""
        self.now += duration
        self.seconds += duration.total_seconds()

    def jump(self, by: timedelta) -> None:
        """Set the time of day, and let no time pass."""
        self.now += by

    def _shown(self) -> datetime:
        return self.now + self.skew

    @contextmanager
    def is_everybody_s(self) -> Iterator[None]:
        """Have the project's modules read this clock while the block runs."""
        shown, steady = self._datetime(), self._time()
        changed: list[tuple[Any, str, Any]] = []
        try:
            for name, module in list(sys.modules.items()):
                if name.partition(".")[0] in _PACKAGES:
                    for attribute, real, ours in (("datetime", datetime, shown), ("time", time, steady)):
                        if getattr(module, attribute, None) is real:
                            changed.append((module, attribute, real))
                            setattr(module, attribute, ours)
            yield
        finally:
            for module, attribute, real in changed:
                setattr(module, attribute, real)

    def _datetime(self) -> Any:
        clock = self

        class Shown(type):
            def __call__(cls, *arguments: Any, **given: Any) -> datetime:
                return datetime(*arguments, **given)  # noqa: DTZ001  as its caller has it

            def __getattr__(cls, name: str) -> Any:
                return getattr(datetime, name)

            def __instancecheck__(cls, value: object) -> bool:
                return isinstance(value, datetime)

            def now(cls, zone: tzinfo | None = None) -> datetime:
                return clock._shown().astimezone(zone or UTC)

        return Shown("datetime", (), {})

    def _time(self) -> Any:
        return SimpleNamespace(
            **{
                **vars(time),
                "monotonic": lambda: self.seconds,
                "time": lambda: self._shown().timestamp(),
                "time_ns": lambda: int(self._shown().timestamp() * 1_000_000) * 1000,
            }
        )
