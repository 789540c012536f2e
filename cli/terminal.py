"""What the terminal prints and how a command ends: consoles, errors, exit codes, ``--json``."""

import json
import os
import re
import sys
from codecs import lookup
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from enum import IntEnum, StrEnum
from functools import partial
from typing import Any, Final, TypeVar

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from model.errors import (
    ApiUnavailableError,
    HomeUnwritableError,
    InputError,
    InvalidNameError,
    LineError,
    PubSubUnavailableError,
    RefeedError,
    RequestInvalidError,
    RequestRefusedError,
    SettingsError,
    WarehouseUnavailableError,
)

Found = TypeVar("Found", bound=Mapping[str, Any] | Sequence[Any])
# The columns of a table by their names: the field that a cell shows as it is, or what renders the cell.
Columns = Mapping[str, str | Callable[[Any], str]]
# What a terminal has unless somebody made it wider; longer lines are hard to read at 3 a.m.
COLUMNS: Final = 80
row_length: Final = ContextVar("row_length", default=COLUMNS)
"""How long a row of figures may be."""
# Of -o wide.
WHOLE: Final = sys.maxsize
# A text of a figure's row is not cut below this width.
_MIN_TEXT: Final = 16


class ExitCode(IntEnum):
    """How a command ended; README.md and ``refeed --help`` say the same."""

    OK = 0
    FAILED = 1
    WRONG_USAGE = 2
    UNAVAILABLE = 3
    REFUSED = 4
    INTERRUPTED = 130


class Output(StrEnum):
    """A form of what was found; ``--json`` is JSON everywhere."""

    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    WIDE = "wide"


# Control characters but line breaks and tabs, and those that change the direction of text.
_STEERING: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return the text with escapes, as JSON has them, for characters that would steer a terminal."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class _Terminal(Console):
    """Prints texts of others, such as an error that quotes a message: no terminal may obey them."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield the segments of ``renderable``; colours and movements of rich's own are no part of their texts."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


# What a command was asked for goes to stdout, what a person watches meanwhile to stderr: a pipe gets the first.
# A pipe has no width of its own, and rich would take 80 characters for one.
# What is printed has names and texts of others in it: brackets are no markup.
_plain: Final = partial(_Terminal, soft_wrap=True, highlight=False, emoji=False, markup=False)
out = _plain(width=None if sys.stdout is not None and sys.stdout.isatty() else 160)
err = _plain(stderr=True)


_UNAVAILABLE: Final = (ApiUnavailableError, PubSubUnavailableError, WarehouseUnavailableError)
_WRONG_USAGE: Final = (SettingsError, HomeUnwritableError, InputError, InvalidNameError, RequestInvalidError)


def terminal_width() -> int:
    """Return how long a line may be: that of the terminal, or of a usual one for a pipe."""
    return out.width if out.is_terminal else COLUMNS


def open_closed_streams() -> None:
    """Put /dev/null where stdin, stdout or stderr is closed, so that no file takes its place and gets the output.

    Writing to such a stdout fails, as the caller would lose a result; an error on such a stderr goes nowhere.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free descriptor, so that of the closed stream.
            nowhere = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            os.set_inheritable(nowhere, True)
            stream = open(nowhere, mode, encoding="utf-8", errors="backslashreplace")  # noqa: PTH123, SIM115
            setattr(sys, name, stream)


def exit_code_of(error: RefeedError) -> ExitCode:
    """Return the exit code of a command that ended with ``error``."""
    # A bad line is in what was to be read, not in what was typed; what stands before it may be published.
    if isinstance(error, LineError):
        return ExitCode.FAILED
    # What the API finds invalid is a RequestRefusedError; this was found here, in arguments, options and settings.
    if isinstance(error, _WRONG_USAGE):
        return ExitCode.WRONG_USAGE
    # It may be the API that found it so.
    if isinstance(error, _UNAVAILABLE) or error.details.get("code") in {kind.code for kind in _UNAVAILABLE}:
        return ExitCode.UNAVAILABLE
    if isinstance(error, RequestRefusedError) or error.code == "query_refused":
        return ExitCode.REFUSED
    return ExitCode.FAILED


def print_error(error: RefeedError) -> None:
    """Print the error's code and sentence, then every fault that the sentence leaves out, one a line.

    What the API refused has the API's code, by which the runbook and ``/problems`` find it.
    """
    code = error.details.get("code") if isinstance(error, RequestRefusedError) else None
    said = _unauthenticated(error.message) if code == "unauthenticated" else error.message
    line = Text.assemble(("error ", "bold red"), (str(code or error.code), "red"), "  ", said)
    err.print(line)
    for fault in _faults(error):
        err.print(Text.assemble("  - ", fault))


def _unauthenticated(said: str) -> str:
    """Return the API's refusal of a caller with what helps in a terminal instead of a header."""
    way = (
        "The API does not know the key in REFEED_API_KEY, or the key is revoked or has expired."
        if os.environ.get("REFEED_API_KEY")
        else "Commands send the key in REFEED_API_KEY, which is not set. 'refeed key create' makes a key."
    )
    return f"{said.partition(' Send a key')[0]} {way}"


def print_problem(error: RefeedError) -> None:
    """Print the error as problem JSON (RFC 9457) on one line of stderr, as ``--json`` wants it.

    What the API refused is the API's own problem. Stdout stays empty: what reads it gets a result or nothing.
    """
    if isinstance(error, RequestRefusedError) and error.details.get("code"):
        problem = error.details
    else:
        faults = error.details.get("violations") or error.details.get("errors")
        problem = {
            "type": f"/problems/{error.code}",
            "title": (type(error).__doc__ or "").strip().splitlines()[0],
            "detail": error.message,
            "code": error.code,
            **({"errors": faults} if faults else {}),
        }
    sys.stderr.write(printable(json.dumps(problem, ensure_ascii=False, default=str)) + "\n")
    sys.stderr.flush()


def print_json(value: Mapping[str, Any] | Sequence[Any]) -> None:
    """Print one JSON value on one line of stdout, which may be unable to hold every letter."""
    is_utf8 = lookup(sys.stdout.encoding).name == "utf-8"
    sys.stdout.write(printable(json.dumps(value, ensure_ascii=not is_utf8, default=str)) + "\n")
    sys.stdout.flush()


def print_found(found: Found, lines: Callable[[Found], Iterable[str]], *, as_json: bool) -> None:
    """Print what was found, as one JSON value or as the lines that a person reads."""
    if as_json:
        print_json(found)
        return
    for line in lines(found):
        out.print(line)


def print_as(output: Output, found: Mapping[str, Any] | Sequence[Any], names: Iterable[str]) -> None:
    """Print what was found in a form for programs; ``names`` are those of its objects."""
    if output is Output.JSON:
        print_json(found)
    elif output is Output.NAME:
        for name in names:
            out.print(name)
    else:
        from model.plain_yaml import write_yaml

        out.print(write_yaml(found), end="")


def confirm(question: str) -> None:
    """Ask, and go on with a yes only; where nobody can answer, name the option that does.

    Raises:
        Abort: the answer is another one, or there is none.
    """
    try:
        is_yes = typer.confirm(question, err=True)
    except typer.Abort:
        if not sys.stdin.isatty():
            err.print("\nWithout a terminal, you can't answer this question. To answer yes, use --yes.")
        raise
    if not is_yes:
        raise typer.Abort


def render_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows below their columns' names, aligned and never cut: ids in them are there to be copied.

    Without a row it says so.

    Example:
        >>> render_table(["id", "state"], [["bf_1", "RUNNING"]])
        ['ID    STATE', 'bf_1  RUNNING']
        >>> render_table(["id", "state"], [])
        ['none']
    """
    if not rows:
        return ["none"]
    lines = [[name.upper() for name in columns], *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    ]


def tabulate(columns: Columns, things: Iterable[Mapping[str, Any]], *, left: int | None = None) -> list[str]:
    """Return a table with a row for each thing; with ``left`` one of figures.

    A field that is null, or that an API of another release does not send, is an empty cell.

    Example:
        >>> tabulate({"id": "id", "rows": lambda it: f"{it['rows']:,}"}, [{"id": "bf_1", "rows": 1200}])
        ['ID    ROWS', 'bf_1  1,200']
    """

    def cell(thing: Mapping[str, Any], wanted: str | Callable[[Any], str]) -> str:
        if not isinstance(wanted, str):
            return wanted(thing)
        return "" if thing.get(wanted) is None else str(thing[wanted])

    rows = [[cell(thing, wanted) for wanted in columns.values()] for thing in things]
    return render_table([*columns], rows) if left is None else render_figures([*columns], rows, left=left)


def list_table(name: str, columns: Columns) -> Callable[[Mapping[str, Any]], list[str]]:
    """Return what renders the things called ``name`` of a page as a table."""
    return lambda page: tabulate(columns, page[name])


def render_figures(columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """Return rows below their columns' names, 80 characters wide; after ``left`` columns of text come figures.

    Where a row would be longer, long texts are cut, but for the first cell: a name that is there to be copied. If
    that is not enough, a terminal shows each first cell on its own line. ``-o wide`` cuts and splits nothing.
    In a pipe, a row is always one line, which a search finds whole.

    Example:
        >>> render_figures(["topic", "lag"], [["orders", "0.8 s"], ["o", "unknown"]])
        ['TOPIC       LAG', 'orders    0.8 s', 'o       unknown']
    """
    lines = [[name.upper() for name in columns], *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    too_long = sum(widths) + 2 * (len(widths) - 1) - row_length.get()
    spare = {place: max(0, widths[place] - _MIN_TEXT) for place in range(1, left)}
    if has_room := too_long <= sum(spare.values()):
        for place in sorted(spare, key=lambda place: -widths[place]):
            cut = min(spare[place], max(0, too_long))
            widths[place] -= cut
            too_long -= cut
        lines = [[_shorten(cell, width) for cell, width in zip(line, widths, strict=True)] for line in lines]
    found = []
    for line in lines:
        cells = [
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        if has_room or not out.is_terminal:
            found.append("  ".join(cells).rstrip())
        else:
            found += [line[0], "  " + "  ".join(cells[1:]).rstrip()]
    return found


def _shorten(cell: str, width: int) -> str:
    return cell if len(cell) <= width else cell[: width - 1] + "…"


def render_change(change: Mapping[str, Any]) -> str:
    """Return one change of a value, as a plan or an entry of a history has it.

    Example:
        >>> render_change({"pointer": "/slots", "before": None, "after": 4})
        '/slots: nothing -> 4'
    """
    if change["before"] is None and change["after"] is None:
        return f"{change['pointer']}: null is added or removed"
    before, after = (
        "nothing" if change[side] is None else json.dumps(change[side], ensure_ascii=False)
        for side in ("before", "after")
    )
    return f"{change['pointer']}: {before} -> {after}"


def render_fault(fault: Mapping[str, Any]) -> str:
    """Return a fault of the API's, such as the error of a job: its code and its sentence."""
    return f"{fault['code']}: {fault['message']}"


def render_details(head: str, details: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the lines that describe an object: what it is, and below it each detail after its label."""
    yield head
    for label, text in details:
        yield f"  {label:<11} {text}"


def render_leaving(job_id: str) -> str:
    """Return what becomes of a job that nobody watches any more, and the commands that go on with it."""
    return (
        f"{job_id} continues without this command. To watch it again, or to stop it:\n"
        f"  refeed watch {job_id}\n"
        f"  refeed cancel {job_id}"
    )


def _faults(error: RefeedError) -> list[str]:
    """Return one line for each fault that an error carries and its sentence leaves out."""
    lines = []
    for fault in error.details.get("violations") or error.details.get("errors") or ():
        line = f"line {fault['line']}, column {fault['column']}" if fault.get("line") else None
        # Without a place in a text, the fault is not more than the sentence has already.
        if not fault.get("line") and fault.get("message") and fault["message"] in error.message:
            continue
        where = "".join(f"{part}: " for part in (fault.get("pointer"), line) if part)
        hint = f"\n    write: {fault['rewrite']}" if fault.get("rewrite") else ""
        lines.append(f"{where}{fault.get('message')} ({fault.get('code')}){hint}")
    return lines
