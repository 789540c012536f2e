"""The liveness probe of a stream's container."""

import os
import socket
import sys
import time
from typing import Final

from model.settings import read_settings
from streams.folder import StreamFolder, read_newest_status

# A stream writes its status every five seconds, also while a batch waits for the warehouse.
_SILENT_SECONDS: Final = 60.0


def find_fault(name: str, *, host: str, now: float) -> str | None:
    """Return why the stream ``name`` of this home is not alive on ``host``, or None.

    Pods share a home: a status from another host does not count, because an earlier pod may have written it
    seconds ago.
    """
    home = read_settings(os.environ).home
    status = read_newest_status(home, name)
    if status is None:
        return f"{StreamFolder.of(home, name).status} is not there yet"
    if status.get("host") != host:
        return f"the last report is from the host {status.get('host')}, but this host is {host}"
    silence = now - status["at"]
    return f"the last report is {silence:.0f} s old" if silence > _SILENT_SECONDS else None


def main() -> int:
    """Print why the stream named on the command line is not alive, and return the exit code."""
    fault = find_fault(sys.argv[1], host=socket.gethostname(), now=time.time())
    if fault is not None:
        print(fault, file=sys.stderr)  # noqa: T201 - what kubectl describe shows
    return 0 if fault is None else 1


if __name__ == "__main__":
    sys.exit(main())
