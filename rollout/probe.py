"""The liveness probe of an agent's container."""

import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from model.settings import read_settings

# An agent looks at its streams twice a second, or less often while the job store does not answer.
_SILENT_SECONDS: Final = 60.0


def beat(home: Path) -> None:
    """Write a heartbeat of this machine's agent; a full disk is no error, so that the streams continue."""
    path = _sign_of(home, socket.gethostname())
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def find_fault(home: Path, *, host: str, now: float) -> str | None:
    """Return why the agent of ``home`` on ``host`` is not alive, or None; several machines can share a home."""
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
