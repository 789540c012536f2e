"""Shows a backfill while somebody watches it: a bar in a terminal, elsewhere a line every few seconds."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from rich.console import Console

from cli.api import POLL_SECONDS
from cli.backfill_view import (
    render_canary_missing,
    render_count,
    render_pace,
    render_pause,
    render_warning,
    waits_for_person,
)
from cli.terminal import err, render_leaving
from model.errors import ApiUnavailableError, RequestRefusedError
from model.job import JobState

if TYPE_CHECKING:
    from client.api import RefeedApi

_LINE_SECONDS: Final = 5.0
# Repeat an unchanged line this often, so that a reader of the log sees that the command is still running.
_SAME_LINE_SECONDS: Final = 60.0
# The service counts again 5 s after the end, and later: a pipeline commits within this time, or more landed in it.
_SETTLE_SECONDS: Final = 15.0
# The first count of a busy service, or of a large staging table, takes longer.
_COUNT_SECONDS: Final = 60.0
_JUST_NOW_SECONDS: Final = 60.0
# Of a canary; the API's largest page.
_MOST_MISSING: Final = 1000
# Of a verification that a later count may change.
_OPEN: Final = frozenset({"pending", "incomplete"})


class _Display(Protocol):
    """What shows how far a backfill is."""

    def show(self, backfill: Mapping[str, Any]) -> None:
        """Show the backfill as it is now."""
        ...

    def note(self, line: str) -> None:
        """Print a line that stays."""
        ...


def watch_live(api: "RefeedApi", backfill_id: str) -> dict[str, Any]:
    """Return the backfill once it has ended and is verified, or waits for a person; show it on stderr meanwhile.

    A verification that is not complete is waited for until nothing more lands for some seconds, and so are the
    messages of a canary. Ctrl-C ends the watching alone: it prints how to watch and how to cancel the backfill,
    which goes on.
    """
    found: dict[str, Any] = {}
    try:
        with _open_display() as display:
            display.note(f"watching {backfill_id}; Ctrl-C does not cancel it")
            warned: set[str] = set()
            for found in api.jobs.watch(backfill_id):
                _show(display, found, warned)
                if waits_for_person(found):
                    break
            if waits_for_person(found):
                for line in _pause_lines(api, found):
                    display.note(line)
            elif _may_settle(found) and _ended_just_now(found):
                display.note(f"{backfill_id} has published its messages; it is being verified")
                found = _settle(api, found)
                if found["verification"]["state"] == "pending":
                    display.note(f"It is not verified yet. To wait again: refeed watch {backfill_id}")
            if (found.get("verification") or {}).get("state") == "unknown":
                display.note("Not verified: exit code 0 means only that all messages were published.")
    except KeyboardInterrupt:
        if found and not (JobState(found["state"]).is_final or waits_for_person(found)):
            err.print(render_leaving(backfill_id))
        raise
    return found


def _show(display: _Display, backfill: Mapping[str, Any], warned: set[str]) -> None:
    """Show the backfill, and each of its warnings once."""
    for warning in backfill.get("warnings") or ():
        if warning["code"] not in warned:
            display.note(render_warning(warning))
        warned.add(warning["code"])
    display.show(backfill)


def _pause_lines(api: "RefeedApi", backfill: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the backfill waits for, and what became of its canary."""
    yield render_pause(backfill)
    if (backfill.get("canary") or {}).get("state") == "reached":
        yield from render_canary_missing(_find_canary_missing(api, backfill["id"]), backfill["id"])


def _may_settle(backfill: Mapping[str, Any]) -> bool:
    """Whether a later count of what landed may be another one."""
    state = (backfill.get("verification") or {}).get("state")
    return backfill["state"] == JobState.SUCCEEDED and state in _OPEN


def _ended_just_now(backfill: Mapping[str, Any]) -> bool:
    """Whether the service counts again within seconds; later it does so ever less often."""
    finished_at = backfill.get("finished_at")
    age = None if finished_at is None else datetime.now(UTC) - datetime.fromisoformat(finished_at)
    return age is None or age.total_seconds() < _JUST_NOW_SECONDS


def _settle(api: "RefeedApi", backfill: dict[str, Any]) -> dict[str, Any]:
    """Return the backfill once it is verified, or once nothing has landed for some seconds."""
    found = backfill["verification"]
    is_counted = found["state"] != "pending" or found.get("landed") is not None
    deadline = time.monotonic() + (_SETTLE_SECONDS if is_counted else _COUNT_SECONDS)
    # An API that is stopped now takes nothing from what is known.
    with suppress(ApiUnavailableError):
        while _may_settle(backfill) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            before = backfill["verification"].get("landed")
            backfill = api.jobs.read(backfill["id"])
            if backfill["verification"].get("landed") != before:
                deadline = time.monotonic() + _SETTLE_SECONDS
    return backfill


def _find_canary_missing(api: "RefeedApi", backfill_id: str) -> dict[str, Any]:
    """Return the page of the canary's messages that have not landed, once none of them is on its way.

    It is empty where nobody knows what landed.
    """
    page: dict[str, Any] = {"messages": []}
    deadline = time.monotonic() + _SETTLE_SECONDS
    with suppress(ApiUnavailableError, RequestRefusedError):
        while True:
            before = page["messages"]
            page = api.jobs.read_part(backfill_id, "missing", page_size=str(_MOST_MISSING))
            if page["messages"] != before:
                deadline = time.monotonic() + _SETTLE_SECONDS
            if all(each["code"] for each in page["messages"]) or time.monotonic() >= deadline:
                break
            time.sleep(POLL_SECONDS)
    return page


@contextmanager
def _open_display() -> Iterator[_Display]:
    # A console of its own: the shared one never folds or cuts a line, which a bar needs.
    console = Console(stderr=True, highlight=False, emoji=False)
    if console.is_terminal and not console.is_dumb_terminal:
        with _Bar(console) as bar:
            yield bar
    else:
        with _Lines() as lines:
            yield lines


class _Bar:
    """A bar on one line of the terminal, which goes when it ends."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[count]}"),
            TextColumn("{task.fields[pace]}"),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=console, transient=True, expand=True)
        self._task = self._progress.add_task("", total=None, count="", pace="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, backfill: Mapping[str, Any]) -> None:
        """Move the bar."""
        progress = backfill.get("progress") or {}
        self._progress.update(
            self._task,
            description=str(backfill["state"]),
            total=progress.get("selected"),
            completed=progress.get("published") or 0,
            count=render_count(backfill),
            pace=render_pace(backfill, with_event_time=False),
            refresh=True,
        )

    def note(self, line: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(line, markup=False, soft_wrap=True)


class _Lines:
    """Lines on stderr: at each new state at once, else every few seconds."""

    def __init__(self) -> None:
        self._latest = ""
        self._state = ""
        self._printed = ""
        self._printed_at = time.monotonic()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch-lines", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def show(self, backfill: Mapping[str, Any]) -> None:
        """Print the state if it is another one, and keep the figures for the next line."""
        parts = (render_count(backfill), render_pace(backfill))
        state = str(backfill["state"])
        with self._lock:
            self._latest = f"{state} {', '.join(part for part in parts if part)}".rstrip()
            if state != self._state:
                self._print()
            self._state = state

    def note(self, line: str) -> None:
        """Print a line."""
        err.print(line)

    def _run(self) -> None:
        while not self._ended.wait(_LINE_SECONDS):
            with self._lock:
                is_old = time.monotonic() - self._printed_at >= _SAME_LINE_SECONDS
                if self._latest and (self._latest != self._printed or is_old):
                    self._print()

    def _print(self) -> None:
        err.print(self._latest)
        self._printed, self._printed_at = self._latest, time.monotonic()
