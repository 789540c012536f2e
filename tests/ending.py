"""Ends a test run's process, which a thread that hangs would keep for ever, and CI without a verdict."""

import os
import signal
import sys
import threading
import time
import traceback

import pytest

# Threads that are about to end, and what runs at a process's end, have their time.
SECONDS = 30.0
_SESSION = pytest.StashKey[pytest.Session]()


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_SESSION] = session
    # Ignored where a shell runs it in the background; then CI's time limit could only kill, without a verdict.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Begin to wait for the process's end; all fixtures are torn down and the verdict is printed."""
    session = config.stash.get(_SESSION, None)
    # A worker of pytest-xdist waits for the others, and whoever started it ends it.
    if session is None or hasattr(config, "workerinput"):
        return
    # Real stderr, not what pytest still captures.
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        capture.suspend_global_capture(in_=True)
    stderr = os.dup(sys.__stderr__.fileno())
    if capture is not None:
        capture.resume_global_capture()
    status = int(session.exitstatus)
    threading.Thread(target=_end, args=(status, SECONDS, stderr), name="ending", daemon=True).start()


def _end(status: int, seconds: float, stderr: int) -> None:
    """End the process with pytest's own status if it is still there after ``seconds``, and print who kept it."""
    time.sleep(seconds)
    report = [
        f"\nThe tests ended {seconds:g} s ago and the process has not; it is ended with exit status {status}.\n"
    ]
    frames = sys._current_frames()
    for thread in threading.enumerate():
        if not thread.daemon and thread.ident in frames:
            report += [f"\n{thread.name}:\n", *traceback.format_stack(frames[thread.ident])]
    os.write(stderr, "".join(report).encode())
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)
