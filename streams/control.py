"""The control file of one start of a stream: the order of its agent, replaced whole by each new one."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

import structlog

from model.disk import replace_text
from model.format import Format

# Of a control file, which an agent writes for a stream of another release.
CONTROL_FORMAT: Final = Format(1)
_log = structlog.get_logger(__name__)

Order = Literal["run", "drain", "cancel", "pause", "stand_by"]

# A pause without a bound would stop a stream for ever when the agent that asked for it dies.
LONGEST_PAUSE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class BatchPace:
    """How long a batch lasts and how large it may get; None is the value that the stream was started with."""

    batch_seconds: float | None = None
    batch_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class StreamControl:
    """One order; a higher ``number`` replaces a lower one, and 0 is the order before the first.

    ``run`` means to run at this pace. ``stand_by``, as the first order of a start, means to get ready and own
    nothing until ``run``, which then waits for ``timeout_seconds`` until another process lets go of the stream.
    ``drain`` ends the stream after it has committed and acknowledged the messages that it holds; after
    ``timeout_seconds`` (None: no bound) it ends without. ``cancel`` ends it at once.
    ``pause`` lets no commit begin until the next order, for ``timeout_seconds`` at most.

    Example:
        >>> StreamControl(3, "drain", timeout_seconds=120).order
        'drain'
    """

    number: int = 0
    order: Order = "run"
    timeout_seconds: float | None = None
    batch_seconds: float | None = None
    batch_bytes: int | None = None

    @property
    def pace(self) -> BatchPace:
        """The pace that it asks for."""
        return BatchPace(self.batch_seconds, self.batch_bytes)

    def write(self, path: Path) -> None:
        """Replace the control file ``path`` with this order; its folder is made."""
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(asdict(self)))


class ControlFile:
    """The newest order in ``path``.

    A file that is missing, damaged or half-written changes nothing, and neither does an order with a lower number
    than the last one: the last good order stands.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._newest = StreamControl()
        self._damaged = ""

    def read(self) -> StreamControl:
        """Return the newest order that was ever read."""
        try:
            text = self._path.read_text(errors="replace")
        except OSError:
            return self._newest
        try:
            found = _parse_control(text)
        except (ValueError, TypeError) as exc:
            if text != self._damaged:
                _log.warning("control_file_damaged", file=str(self._path), error=str(exc))
                self._damaged = text
            return self._newest
        if found.number > self._newest.number:
            self._newest = found
        return self._newest


def _parse_control(text: str) -> StreamControl:
    """Return the order that ``text`` is.

    Raises:
        ValueError, TypeError: it is none.
    """
    control = StreamControl(**json.loads(text))
    if control.order not in get_args(Order):
        raise ValueError(f"there is no order {control.order!r}")
    if type(control.number) is not int:
        raise ValueError(f"{control.number!r} is not the number of an order")
    _check_bound("timeout_seconds", control.timeout_seconds, least=0.0)
    _check_bound("batch_seconds", control.batch_seconds, least=0.0)
    _check_bound("batch_bytes", control.batch_bytes, least=1.0)
    return control


def _check_bound(name: str, found: Any, *, least: float) -> None:
    is_number = isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found)
    if found is not None and (not is_number or found < least):
        raise ValueError(f"{name} is {found!r}")
