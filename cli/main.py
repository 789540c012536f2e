"""The command ``refeed``: one module a command, every error with its code and a way out."""

import errno
import io
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer
from typer.exceptions import TyperException

from cli import (
    agent,
    approval,
    attach,
    backfill,
    backup,
    collector,
    compaction,
    console,
    dead_letters,
    doctor,
    gate,
    init,
    inventory,
    keys,
    kinesis,
    lake,
    manifest,
    merge,
    messages,
    pipeline,
    publish,
    query,
    registry,
    release,
    rollout,
    schedule,
    services,
    snapshot,
    spark,
    status,
    stream,
    template,
    up,
    update,
    volumes,
)
from cli.demo import command as demo
from cli.invocation import HOME_HELP, HomeGroup, unwritable_home, use_home
from cli.options import EXIT_CODES, UPDATE_EXIT_CODES, WAIT_EXIT_CODES
from cli.terminal import ExitCode, err, exit_code_of, open_closed_streams, out, print_error, print_problem
from model.errors import InputError, OutputUnwritableError, RefeedError, StorageFullError
from model.process import raise_file_limit

_NAME: Final = "refeed"

app = typer.Typer(
    name=_NAME,
    cls=HomeGroup,
    help="Back up every raw Pub/Sub message, and replay any of these messages.",
    epilog="Exit codes: 0 done; 1 failed (the message says why); 2 the command line or a setting is wrong, or "
    "'sql check' refused the query; 3 the API, Pub/Sub or the warehouse does not answer; 4 the query or the "
    "request was refused; 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(f"refeed {version('refeed')}")
        raise typer.Exit


@app.callback()
def refeed(
    *,
    home: Annotated[Path | None, typer.Option("--home", help=HOME_HELP)] = None,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Back up every raw Pub/Sub message, and replay any of these messages."""
    del show_version
    use_home(home)


app.command("demo")(demo.demo)
app.command("up")(up.up)
app.command("doctor")(doctor.doctor)
app.command("init")(init.init)
app.command("attach")(attach.attach)
app.command("detach")(attach.detach)
app.command("publish")(publish.publish)
app.command("query")(query.query)
app.command("status", epilog=status.EXIT_CODES)(status.status)
app.command("inbox", epilog=EXIT_CODES)(status.inbox)
app.command("events", epilog=EXIT_CODES)(status.events)
app.command("topics", epilog=EXIT_CODES)(inventory.topics)
app.command("topic", epilog=EXIT_CODES)(inventory.topic)
app.command("volumes", epilog=EXIT_CODES)(volumes.volumes)
app.command("messages", epilog=EXIT_CODES)(messages.messages)
app.command("streams", epilog=EXIT_CODES)(inventory.streams)
app.add_typer(stream.app, name="stream")
stream.app.command("snapshot", epilog=WAIT_EXIT_CODES)(snapshot.create)
stream.app.command("rollback", epilog=WAIT_EXIT_CODES)(snapshot.rollback)
stream.app.command("update", epilog=UPDATE_EXIT_CODES)(update.update)
stream.app.command("updates", epilog=EXIT_CODES)(update.updates)
app.add_typer(snapshot.app, name="snapshot")
app.add_typer(approval.app, name="approval")
app.add_typer(backfill.app, name="backfill")
app.add_typer(dead_letters.app, name="dead-letters")
app.command("pubsub")(services.pubsub)
app.add_typer(backup.app, name="backup")
app.command("api")(services.api)
app.command("report", hidden=True)(services.report)
app.command("console")(console.console)
app.command("agent")(agent.agent)
app.command("collector")(collector.collector)
app.add_typer(keys.app, name="keys")
app.add_typer(kinesis.app, name="kinesis")
app.add_typer(manifest.app, name="manifest")
app.command("plan", epilog=manifest.PLAN_CODES)(manifest.plan)
app.command("apply", epilog=manifest.EXIT_CODES)(manifest.apply)
app.command("delete", epilog=manifest.EXIT_CODES)(manifest.delete)
app.add_typer(schedule.app, name="schedule")
app.add_typer(rollout.app, name="rollout")
app.add_typer(merge.app, name="merge")
app.add_typer(compaction.app, name="compaction")
app.add_typer(lake.app, name="lake")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(registry.app, name="registry")
app.add_typer(release.app, name="release")
app.add_typer(spark.app, name="spark")
app.add_typer(template.app, name="template")
app.add_typer(gate.app, name="sql")


def main() -> None:
    """Run ``refeed``; the exit code is one of :class:`cli.terminal.ExitCode`."""
    open_closed_streams()
    raise_file_limit()
    is_json = "--json" in sys.argv[1:]
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
            InputError("The command did nothing, because you did not answer yes. To skip the question, use --yes.")
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
