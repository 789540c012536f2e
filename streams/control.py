"""The control file of one instance of a stream: the agent's newest order, replaced as a whole."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

import structlog

from model.disk import replace_text
from model.format import Format

# The format of a control file: an agent writes it for streams of other releases too.
CONTROL_FORMAT: Final = Format(1)
_log = structlog.get_logger(__name__)

Order = Literal["run", "drain", "cancel", "pause", "stand_by"]

# A pause has a timeout, so that a stream does not stay paused after its agent dies.
LONGEST_PAUSE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class BatchPace:
    """The longest time and the largest size of a batch; None is the value at the start of the stream."""

    batch_seconds: float | None = None
    batch_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class StreamControl:
    """One order; a higher ``number`` replaces a lower one, and 0 is the order before the first.

    ``run`` sets the pace. ``stand_by``, as the first order of an instance, prepares it without owning the stream.
    A ``run`` after it waits up to ``timeout_seconds`` until another process releases the stream. ``drain`` ends
    the stream after it has committed and acknowledged the messages that it holds; after ``timeout_seconds`` (None:
    no timeout) it ends without this. ``cancel`` ends it at once. ``pause`` keeps commits from beginning until the
    next order, for ``timeout_seconds`` at most.

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
        """The pace in the order."""
        return BatchPace(self.batch_seconds, self.batch_bytes)

    def write(self, path: Path) -> None:
        """Replace the control file ``path`` with this order; create its folder if needed."""
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(asdict(self)))


class ControlFile:
    """The newest order in ``path``.

    A missing, damaged or incomplete file changes nothing, and neither does an order with a lower number than the
    last one: the last good order stays.
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
    """Parse an order.

    Raises:
        ValueError, TypeError: ``text`` is no order.
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
