"""The command ``refeed``: one module a command, every error with its code and a way out."""

import errno
import io
import os
import sys
from collections.abc import Callable
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import Annotated, Final, NoReturn, cast

import typer
from rich.text import Text
from typer.exceptions import TyperException

from cli import (
    agent,
    attach,
    backfill,
    backup,
    collector,
    console,
    dead_letters,
    doctor,
    gate,
    init,
    inventory,
    keys,
    kinesis,
    lake,
    look,
    manifest,
    merge,
    messages,
    pipeline,
    publish,
    query,
    registry,
    release,
    schedule,
    services,
    snapshot,
    spark,
    status,
    steer,
    stream,
    up,
    update,
    volumes,
)
from cli.demo import command as demo
from cli.invocation import HomeGroup, HomeOption, unwritable_home
from cli.options import (
    CANCEL_EXIT_CODES,
    DIRECT,
    EXIT_CODES,
    REPLAY_EXIT_CODES,
    UPDATE_EXIT_CODES,
    WAIT_EXIT_CODES,
    WATCH_EXIT_CODES,
)
from cli.terminal import ExitCode, err, exit_code_of, open_closed_streams, out, print_error, print_problem
from model.errors import InputError, OutputUnwritableError, RefeedError, StorageFullError
from model.process import raise_file_limit

_NAME: Final = "refeed"
# Typer's help would import a parser of Markdown, a tenth of what 'refeed --help' takes. No help text needs it.
sys.modules.setdefault("rich.markdown", cast("ModuleType", SimpleNamespace(Markdown=Text)))
# The ways to ask for JSON; errors are JSON then, too.
_JSON: Final = frozenset({"--json", "-o json", "-ojson", "--output json", "--output=json"})

app = typer.Typer(
    name=_NAME,
    cls=HomeGroup,
    help="Back up every raw Pub/Sub message, and replay any of these messages.",
    epilog="Exit codes: 0 done; 1 failed (the message says why); 2 the command line or a setting is wrong, or "
    "'check' refused the query; 3 the API, Pub/Sub or the warehouse does not answer; 4 the query or the "
    "request was refused; 130 interrupted. Settings are environment variables: docs/reference/settings.md lists "
    "them, and 'refeed doctor' checks them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        out.print(f"refeed {version('refeed')}")
        raise typer.Exit


@app.callback()
def refeed(
    *,
    home: HomeOption = None,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Back up every raw Pub/Sub message, and replay any of these messages."""
    del home, show_version


_REPLAY: Final = "Replay"
_LOOK: Final = "Look"
_STEER: Final = "Steer"
_RUN: Final = "Run"
_ADMIN: Final = "Administer"


def _add(group: str, name: str, command: Callable[..., None], exit_codes: str | None = EXIT_CODES) -> None:
    app.command(name, rich_help_panel=group, epilog=exit_codes)(command)


_add(_RUN, "demo", demo.demo, None)
_add(_RUN, "up", up.up, None)
_add(_RUN, "doctor", doctor.doctor, None)
_add(_RUN, "init", init.init, DIRECT)
_add(_RUN, "api", services.api, None)
_add(_RUN, "agent", agent.agent, None)
_add(_RUN, "collector", collector.collector, None)
_add(_RUN, "console", console.console, None)
_add(_RUN, "pubsub", services.pubsub, None)
app.command("report", hidden=True)(services.report)
app.add_typer(backup.app, name="backup", rich_help_panel=_RUN)
app.add_typer(pipeline.app, name="pipeline", rich_help_panel=_RUN)
app.add_typer(kinesis.app, name="kinesis", rich_help_panel=_RUN)
app.add_typer(spark.app, name="spark", rich_help_panel=_RUN)
_add(_REPLAY, "backfill", backfill.backfill, REPLAY_EXIT_CODES)
_add(_REPLAY, "dead-letters", dead_letters.dead_letters)
_add(_REPLAY, "missing", backfill.missing)
_add(_REPLAY, "redrive", dead_letters.redrive, REPLAY_EXIT_CODES)
_add(_REPLAY, "messages", messages.messages)
_add(_REPLAY, "histogram", inventory.histogram)
_add(_REPLAY, "volumes", volumes.volumes)
_add(_REPLAY, "query", query.query, DIRECT)
_add(_REPLAY, "check", gate.check, None)
_add(_LOOK, "status", status.status, status.EXIT_CODES)
_add(_LOOK, "inbox", status.inbox)
_add(_LOOK, "get", look.get)
_add(_LOOK, "describe", look.describe)
_add(_LOOK, "watch", look.watch, WATCH_EXIT_CODES)
_add(_LOOK, "logs", look.logs)
_add(_LOOK, "figures", look.figures)
_add(_LOOK, "events", status.events)
_add(_STEER, "pause", steer.pause)
_add(_STEER, "resume", steer.resume, WATCH_EXIT_CODES)
_add(_STEER, "cancel", steer.cancel, CANCEL_EXIT_CODES)
_add(_STEER, "retry", steer.retry, WATCH_EXIT_CODES)
_add(_STEER, "rerun", steer.rerun, WATCH_EXIT_CODES)
_add(_STEER, "revert", steer.revert, WATCH_EXIT_CODES)
_add(_STEER, "approve", steer.approve, WATCH_EXIT_CODES)
_add(_STEER, "reject", steer.reject)
_add(_STEER, "set", steer.set_)
_add(_STEER, "launch", stream.launch, WAIT_EXIT_CODES)
_add(_STEER, "drain", stream.drain, WAIT_EXIT_CODES)
_add(_STEER, "update", update.update, UPDATE_EXIT_CODES)
_add(_STEER, "snapshot", snapshot.snapshot, WAIT_EXIT_CODES)
_add(_STEER, "restore", snapshot.restore, WAIT_EXIT_CODES)
_add(_STEER, "run-now", schedule.run_now)
_add(_STEER, "compact", lake.compact, DIRECT)
_add(_STEER, "diff", manifest.diff, manifest.DIFF_CODES)
_add(_STEER, "apply", manifest.apply, manifest.EXIT_CODES)
_add(_STEER, "delete", manifest.delete, manifest.EXIT_CODES)
app.add_typer(merge.app, name="merge", rich_help_panel=_STEER)
_add(_ADMIN, "attach", attach.attach, DIRECT)
_add(_ADMIN, "detach", attach.detach, DIRECT)
_add(_ADMIN, "publish", publish.publish, DIRECT)
app.add_typer(registry.app, name="source", rich_help_panel=_ADMIN)
app.add_typer(keys.app, name="key", rich_help_panel=_ADMIN)
app.add_typer(lake.app, name="archive", rich_help_panel=_ADMIN)
app.add_typer(release.app, name="release", rich_help_panel=_ADMIN)
for _group in (registry, keys, lake, release):
    for _command in _group.app.registered_commands:
        _command.epilog = DIRECT


def main() -> None:
    """Run ``refeed``; the exit code is one of :class:`cli.terminal.ExitCode`."""
    open_closed_streams()
    raise_file_limit()
    words = sys.argv[1:]
    is_json = not _JSON.isdisjoint((*words, *map(" ".join, pairwise(words))))
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A letter that the terminal's encoding lacks must not end a command that has done its work.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            if is_json:
                sys.exit(_run_for_json())
            app(prog_name=_NAME)
        finally:
            sys.stdout.flush()
    except RefeedError as error:
        _end(error, is_json=is_json)
    except KeyboardInterrupt:
        err.print("interrupted")
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output, such as 'head', has enough.
        sys.stderr.close()
        sys.exit(ExitCode.OK)
    except OSError as exc:
        if exc.errno == errno.ENOSPC:
            _drop_output()
            full = f"The disk is full: {exc.filename or 'the output'} can't be written; free some space."
            _end(StorageFullError(full), is_json=is_json)
        if not _takes_output():
            _drop_output()
            lost = f"Stdout can't be written ({exc.strerror}): send it to a terminal, file or pipe that is open."
            _end(OutputUnwritableError(lost), is_json=is_json)
        unwritable = unwritable_home(exc)
        if unwritable is None:
            raise
        _end(unwritable, is_json=is_json)


def _run_for_json() -> int:
    """Run ``refeed`` and return the exit code; wrong usage is an error like every other, not a text in a frame."""
    try:
        code = app(prog_name=_NAME, standalone_mode=False)
    except TyperException as exc:
        raise InputError(exc.format_message()) from exc
    except typer.Abort:
        # As without --json, where it is a word.
        print_problem(
            InputError("You did not answer yes, so the command did nothing. To skip the question, use --yes.")
        )
        return ExitCode.FAILED
    return code if isinstance(code, int) else ExitCode.OK


def _takes_output() -> bool:
    """Whether stdout can be written: what a failed write left in its buffer is tried again."""
    try:
        sys.stdout.flush()
    except OSError:
        return False
    return True


def _drop_output() -> None:
    """Let what is still to be written to stdout go nowhere, so that the process's end does not try it again."""
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123  a file of this process alone
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _end(error: RefeedError, *, is_json: bool) -> NoReturn:
    if is_json:
        print_problem(error)
    else:
        print_error(error)
    sys.exit(exit_code_of(error))


if __name__ == "__main__":
    main()
