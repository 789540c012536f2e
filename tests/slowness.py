"""How slow this machine is right now, for bounds in seconds of CPU time."""

import time

_STEPS = 1_000_000
# What the steps take a core of 2023 with Python 3.11.
_USUAL_SECONDS = 0.05


def slowness() -> float:
    """Return how many times longer than usual plain Python takes here, at least 1; takes half a second at most.

    CPU time is no constant: a machine whose neighbours are busy takes three times as much for the same work.
    """
    return max(1.0, min(_measure() for _ in range(3)) / _USUAL_SECONDS)


def _measure() -> float:
    began = time.process_time()
    total = 0
    for number in range(_STEPS):
        total += number
    return time.process_time() - began
