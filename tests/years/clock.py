"""A clock that the test moves, in the place of the machine's for every module of the project."""

import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from types import SimpleNamespace
from typing import Any, Final

# The packages whose modules read this clock; libraries and threads go on with the machine's.
_PACKAGES: Final = frozenset(
    {"api", "app", "backfill", "backup", "inventory", "jobs", "model", "reporting", "rollout"}
)


# Knows a field that holds a time by the real class, and reads no clock.
_TYPES: Final = "model.typed"


class Clock:
    """The time of day, which may jump, and seconds since the start, which do not."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.seconds = 1000.0
        # How much the clock of the replica that is looking differs from the store's.
        self.skew = timedelta()

    def go(self, duration: timedelta) -> None:
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
        names = [("datetime", datetime, datetime_of(self._shown)), ("time", time, self._time())]
        with replaced(_PACKAGES, names):
            yield

    def _time(self) -> Any:
        return SimpleNamespace(
            **{
                **vars(time),
                "monotonic": lambda: self.seconds,
                "time": lambda: self._shown().timestamp(),
                "time_ns": lambda: int(self._shown().timestamp() * 1_000_000) * 1000,
            }
        )


@contextmanager
def replaced(packages: Collection[str], names: Iterable[tuple[str, Any, Any]]) -> Iterator[None]:
    """Put another object in the place of a real one, (name, real, other), in every module of ``packages``."""
    names = list(names)
    changed: list[tuple[Any, str, Any]] = []
    try:
        for path, module in list(sys.modules.items()):
            if path != _TYPES and (path in packages or path.partition(".")[0] in packages):
                for name, real, other in names:
                    if getattr(module, name, None) is real:
                        changed.append((module, name, real))
                        setattr(module, name, other)
        yield
    finally:
        for module, name, real in changed:
            setattr(module, name, real)


def datetime_of(now: Callable[[], datetime]) -> Any:
    """Return what stands for the class ``datetime``, whose now is that of the function ``now``."""

    class Shown(type):
        def __call__(cls, *arguments: Any, **given: Any) -> datetime:
            return datetime(*arguments, **given)  # noqa: DTZ001  as its caller has it

        def __getattr__(cls, name: str) -> Any:
            return getattr(datetime, name)

        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, datetime)

        def now(cls, zone: tzinfo | None = None) -> datetime:
            return now().astimezone(zone or UTC)

    return Shown("datetime", (), {})
