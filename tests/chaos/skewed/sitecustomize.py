"""Read by a Python whose clock libfaketime skews: keeps the skew to this process, and lets it sleep."""

import os
import select
import time

# The library is loaded. A JVM that inherits it hangs, and workers are processes of their own.
os.environ.pop("LD_PRELOAD", None)


def sleep(seconds: float) -> None:
    """Wait by a timeout: under libfaketime 0.9.10 the sleep of Python 3.11 fails with EINVAL."""
    select.select([], [], [], seconds)


time.sleep = sleep
