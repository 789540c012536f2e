"""The probe of an agent's container: whether the agent that runs here goes on with its work."""

import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from model.settings import read_settings

# An agent looks at its streams twice a second; a job store that does not answer makes that slower.
_SILENT_SECONDS: Final = 60.0


def beat(home: Path) -> None:
    """Leave a sign of life of this machine's agent; a full disk is not worth its streams' lives."""
    path = _sign_of(home, socket.gethostname())
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def find_fault(home: Path, *, host: str, now: float) -> str | None:
    """Return why the agent of ``home`` on ``host`` is not alive, None when it is; a home is shared by machines."""
    path = _sign_of(home, host)
    try:
        silence = now - path.stat().st_mtime
    except OSError:
        return f"{path} is not there yet"
    return f"the last sign of life is {silence:.0f} s old" if silence > _SILENT_SECONDS else None


def main() -> int:
    """Print why the agent is not alive, and return the exit code."""
    fault = find_fault(read_settings(os.environ).home, host=socket.gethostname(), now=time.time())
    if fault is not None:
        print(fault, file=sys.stderr)  # noqa: T201 - what kubectl describe shows
    return 0 if fault is None else 1


def _sign_of(home: Path, host: str) -> Path:
    return home / "agents" / host


if __name__ == "__main__":
    sys.exit(main())
