"""Ends the process of a stream after its work, without the teardown of the interpreter."""

import atexit
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import typer


def run_stream(run: Callable[[], int]) -> NoReturn:
    """Run a stream, and let its process end with the exit code that ``run`` returns.

    Threads are joined and everything registered for the exit is done, but the interpreter is not torn down: while
    it is, threads of extension modules run on, and have ended processes with SIGSEGV after a clean drain. An error
    of ``run`` ends the process as usual.

    Raises:
        typer.Exit: the stream has ended.
    """
    end = _End()
    # What is registered later, by what the stream imports, runs before this.
    atexit.register(end.leave)
    end.code = run()
    raise typer.Exit(end.code)


class _End:
    """The end of this process; without a ``code`` it is the interpreter's own."""

    code: int | None = None

    def leave(self) -> None:
        """Write what is buffered, and end the process with the code."""
        if self.code is None:
            return
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            # A reader that is gone must not keep the process.
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(self.code)
