"""Waits for what an agent looks at a few times a second: a standby that is ready, and the end of a hand-over."""

import time

from model.errors import ProcessEndedError
from rollout.handover import HandOver, HandOverState, is_ready
from rollout.process import StreamProcess


def wait_for_end(passing: HandOver, *, seconds: float) -> HandOverState:
    ends_at = time.monotonic() + seconds
    while (state := passing.look()) is HandOverState.UNDER_WAY and time.monotonic() < ends_at:
        time.sleep(0.02)
    return state


def wait_for_standby(new: StreamProcess, *, seconds: float) -> None:
    """Return once ``new`` is ready to go on with its stream.

    Raises:
        ProcessEndedError: it ended, or is not ready after ``seconds``.
    """
    ends_at = time.monotonic() + seconds
    while not is_ready(new):
        if not new.is_running:
            raise new.ended_error()
        if time.monotonic() >= ends_at:
            raise ProcessEndedError(
                f"The standby of {new.name} is not ready after {seconds:.0f} s.", name=new.name
            )
        time.sleep(0.02)
